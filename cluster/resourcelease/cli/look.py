"""``queues``, ``items``, ``explain``, ``peers``: looking into a cluster."""

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeVar

import click

from resourcelease.cli.output import plain, short_bytes, since
from resourcelease.cli.session import Session, in_namespace, on_cluster

__all__ = ["explain", "items", "peers", "queues"]

T = TypeVar("T")
LINEARIZABLE = click.option("--linearizable", is_flag=True, help="Be sure to see all that was committed before.")
LIMIT = click.option("--limit", default=100, show_default=True, type=click.IntRange(1), help="How many at most.")


@click.command()
@on_cluster
@click.argument("namespaces", metavar="[NAMESPACE…]", nargs=-1)
@click.option("--options", "with_options", is_flag=True, help="Show the options too.")
@LINEARIZABLE
async def queues(session: Session, namespaces: Sequence[str], with_options: bool, linearizable: bool) -> None:
    """Show the namespaces, their depths and options."""
    found = await session.client.queues(*namespaces, linearizable=linearizable)
    if session.out.as_json:
        session.out.data([plain(queue) for queue in found])
        return
    if not found:
        session.out.say("there is no such namespace" if namespaces else "there is no namespace yet; enqueue makes one")
        return
    columns = ("namespace", ">pending", ">active", ">delayed", ">dead letters", "oldest", "state")
    session.out.table(columns, [_queue(queue) for queue in found])
    if with_options:
        for queue in found:
            rows = [(field.name, value) for field, value in queue.options.ListFields()]
            session.out.table(("option", ">value"), rows, title=queue.summary.namespace)


def _queue(queue: Any) -> tuple[object, ...]:
    summary = queue.summary
    state = [word for word, on in (("paused", summary.paused), ("backpressure", summary.backpressure)) if on]
    age = since(queue.oldest_pending_age_ms) if summary.depth.pending else ""
    depth = summary.depth
    return (
        summary.namespace, depth.pending, depth.active, depth.delayed, summary.dead_letters, age,
        ", ".join(state) or "open",
    )  # fmt: skip


@click.command()
@on_cluster
@in_namespace
@click.argument("sequence_ids", metavar="[ID…]", nargs=-1, type=int)
@click.option("--state", "states", multiple=True, type=click.Choice(["pending", "delayed", "active", "dead"]),
              help="Only these; repeatable.")  # fmt: skip
@click.option("--type", "resource_type", default="", help="Only about this type of resource.")
@click.option("--resource", "resource_id", default="", help="Only about this resource.")
@click.option("--held-by", default="", metavar="PEER", help="Only under a lease of this peer.")
@click.option("--request-id", default="", help="The item with this request id.")
@click.option("--bodies", "include_bodies", is_flag=True, help="With the bodies.")
@LIMIT
@LINEARIZABLE
async def items(session: Session, sequence_ids: Sequence[int], limit: int, **filters: Any) -> None:
    """Browse the items of a namespace, or look some up by ID."""
    pages = session.client.items(*sequence_ids, page_size=min(limit, 1000), **filters)
    found, more = await _first(pages, limit)
    if session.out.as_json:
        session.out.data([plain(item) for item in found])
        return
    if not found:
        session.out.say("no item matches")
        return
    columns = [">item", "state", "type", "resource", ">attempt", "held by", "last error"]
    if filters["include_bodies"]:
        columns.append("body")
    session.out.table(columns, [_item(item, with_body=filters["include_bodies"]) for item in found])
    if more:
        session.out.say(f"the first {limit}; --limit shows more")


def _item(item: Any, *, with_body: bool) -> list[object]:
    from resourcelease.v1 import ItemState

    error = item.last_error
    said = f"{error.code}: {error.message}".strip(": ") if item.HasField("last_error") else ""
    cells: list[object] = [
        item.sequence_id,
        ItemState.Name(item.state).removeprefix("ITEM_STATE_").lower(),
        item.payload.resource_type,
        item.payload.resource_id,
        item.attempt,
        item.peer_id,
        said,
    ]
    return [*cells, short_bytes(item.payload.body)] if with_body else cells


@click.command()
@on_cluster
@in_namespace
@click.argument("sequence_id", metavar="ID", type=int)
@LINEARIZABLE
async def explain(session: Session, sequence_id: int, linearizable: bool) -> None:
    """Say why an item waits, or what became of it."""
    answer = await session.client.explain(sequence_id, linearizable=linearizable)
    session.out.say(answer.words)
    if session.out.as_json:
        session.out.data(plain(answer))


@click.command()
@on_cluster
@in_namespace
@click.argument("peer_ids", metavar="[PEER…]", nargs=-1)
@LIMIT
@LINEARIZABLE
async def peers(session: Session, peer_ids: Sequence[str], limit: int, linearizable: bool) -> None:
    """Show the workers and producers that the cluster knows, and what they hold."""
    found, more = await _first(session.client.peers(*peer_ids, linearizable=linearizable), limit)
    if session.out.as_json:
        session.out.data([plain(peer) for peer in found])
        return
    if not found:
        session.out.say("the cluster knows no such peer" if peer_ids else "the cluster knows no peer yet")
        return
    rows = [
        (peer.peer_id, "healthy" if peer.healthy else "disconnected" if peer.disconnected else "silent",
         peer.active_leases, peer.pending_reassignments, peer.reason)
        for peer in found
    ]  # fmt: skip
    session.out.table(("peer", "health", ">leases", ">to reassign", "reason"), rows)
    if more:
        session.out.say(f"the first {limit}; --limit shows more")


async def _first(source: AsyncIterator[T], limit: int) -> tuple[list[T], bool]:
    """The first few, and whether there are more."""
    found: list[T] = []
    counter = itertools.count()
    async for each in source:
        if next(counter) == limit:
            return found, True
        found.append(each)
    return found, False
