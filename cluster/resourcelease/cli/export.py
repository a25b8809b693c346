"""``export``: the history, copied to another store and kept up to date."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import click

from resourcelease.cli.session import Session, on_cluster

__all__ = ["export"]

_WORD_EVERY_S = 5.0
_KEPT = "what follows is kept for it; to end that: the same command with --forget"


@click.command()
@on_cluster
@click.option("--sink", "url", default="", metavar="URL",
              help="sqlite:///path/file.db, or what fsspec knows: s3://bucket/prefix, file:///folder.")  # fmt: skip
@click.option("--from", "start", type=click.IntRange(1), default=1, metavar="N", help="Where an empty sink begins.")
@click.option("--to", "end", type=click.IntRange(0), default=0, metavar="N", help="End once this event is there.")
@click.option("--bodies", is_flag=True, help="With the items' bodies.")
@click.option("--name", default="", metavar="NAME", help="Names this export.  [default: made of the URL]")
@click.option("--no-hold", is_flag=True, help="Let retention delete what this copy has yet to take.")
@click.option("--forget", is_flag=True, help="End an export: no history is kept for it any more.")
async def export(
    session: Session, url: str, start: int, end: int, bodies: bool, name: str, no_hold: bool, forget: bool
) -> int:
    """Copy the history to another store, and keep the copy up to date, until Ctrl-C.

    It goes on where the store ends, after any crash. Started on several machines, one of them works, under a lease of
    the cluster itself, and another takes over when it goes.

    Retention keeps what the copy has yet to take, on all nodes, also while nobody works on it: until it has all up to
    --to, or is told to --forget.

    \b
    resourcelease export --sink sqlite:///var/lib/events.db
    resourcelease export --sink s3://bucket/history
    resourcelease export --forget --name history
    """
    from resourcelease.events.exporter import export_name
    from resourcelease.events.readers import EXPORTS
    from resourcelease.events.runner import Runner
    from resourcelease.events.sink import SinkError
    from resourcelease.events.stores import sink_at, wrong_url

    if not url and not (forget and name):
        raise click.UsageError("say where to: --sink URL")
    if url and (wrong := wrong_url(url)):
        raise click.UsageError(f"--sink {wrong}, not {url}")
    namespace = EXPORTS + (name or export_name(url))
    if forget:
        return await _forget(session, namespace)
    client = session.client
    cluster_id = (await client.status()).cluster_id
    kept = False
    try:
        runner = Runner(_source(client, bodies), sink_at(url), cluster_id, start=start, head=_head(client))
        try:
            # Nothing is asked of the cluster for a store that will not do.
            await runner.check()
            kept = not no_hold
            await _under_lease(session, runner, namespace, end, hold=not no_hold)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        finally:
            await runner.close()
    except SinkError as error:
        if kept:
            session.out.say(_KEPT)
        raise click.ClickException(str(error)) from error
    counters = runner.counters
    if session.out.as_json:
        session.out.data({"position": counters.position, "events": counters.events, "lag": counters.lag})
    session.out.say(f"the copy at {url} goes up to event {counters.position:,}")
    done = bool(end) and counters.position >= end
    if kept and not done:
        session.out.say(_KEPT)
    return 130 if end and not done else 0


def _head(client: Any) -> Any:
    async def head() -> int:
        return int((await client.status(linearizable=True)).last_sequence)

    return head


def _source(client: Any, bodies: bool) -> Any:
    from resourcelease.client import ResourceLeaseError
    from resourcelease.client.following import answers
    from resourcelease.events.sink import NotKept

    async def source(first: int) -> AsyncGenerator[Any, None]:
        try:
            async for answer in answers(client, first, include_bodies=bodies):
                yield answer
        except ResourceLeaseError as error:
            if error.reason != "NOT_FOUND":
                raise
            raise NotKept(f"{error}. This copy can not be continued; begin another one with --from") from error

    return source


async def _under_lease(session: Session, runner: Any, namespace: str, end: int, *, hold: bool = True) -> None:
    """Waits for the one lease of this export, and works while it holds."""
    from resourcelease.client import LeaseLost
    from resourcelease.events.exporter import EXPORT_OPTIONS, REQUEST_ID
    from resourcelease.events.readers import REGISTERED

    client, out = session.client, session.out
    await client.configure(namespace=namespace, **EXPORT_OPTIONS)
    # What the item is says to every node whether history is kept for it.
    kind = REGISTERED if hold else "export"
    await client.enqueue(kind, namespace, namespace=namespace, request_id=REQUEST_ID)
    out.say("waiting for the lease of this export")
    # Without a name it has one of its own: under one name the newer takes over what the older holds.
    async with client.leases(credit=1, namespace=namespace) as leases:
        async for lease in leases:
            tasks = [asyncio.ensure_future(_tell(out, runner.counters))]
            try:
                if lease.resource_type != kind:
                    # It stood for the same export, run in the other way.
                    await lease.complete()
                    await client.enqueue(kind, namespace, namespace=namespace, request_id=REQUEST_ID)
                    continue
                async with lease:
                    out.say(f"exporting, under fence {lease.fence}")
                    if hold:
                        tasks.append(asyncio.ensure_future(_report(client, lease, runner, namespace)))
                    await runner.run(lease.fence, until=end)
                    if not end:
                        # Not completed: the item stands for the export, which somebody may go on with.
                        await lease.give_back()
                    return
            except LeaseLost:
                out.say("the lease was lost; waiting for it again")
            finally:
                for task in tasks:
                    task.cancel()


async def _report(client: Any, lease: Any, runner: Any, namespace: str) -> None:
    """Has every node hear how far the copy is, as exporters of nodes do."""
    from resourcelease.client import ResourceLeaseError
    from resourcelease.events.readers import POSITION

    await runner.opened.wait()
    while True:
        told = {POSITION: str(runner.counters.position)}
        with suppress(ResourceLeaseError):
            await client.heartbeat(lease, namespace=namespace, metadata=told)
        await asyncio.sleep(_WORD_EVERY_S)


async def _forget(session: Session, namespace: str) -> int:
    """Ends the item that stands for an export; the nodes then keep nothing for it."""
    from resourcelease.client import NotFound

    client, items = session.client, []
    # Looked for first: a namespace that is leased from is there from then on.
    with suppress(NotFound):
        items = [item async for item in client.items(namespace=namespace)]
    leases = await client.lease(1, namespace=namespace, wait=0) if items else []
    if not leases:
        holders = [item.peer_id for item in items if item.peer_id]
        if holders:
            raise click.ClickException(
                f"{holders[0]} exports it: stop that command, or take the option out of the node's configuration first"
            )
        session.out.say("there is no such export")
        return 1
    await client.complete(leases[0])
    session.out.say("it is forgotten, and no history is kept for it")
    return 0


async def _tell(out: Any, counters: Any) -> None:
    began, before = time.monotonic(), counters.events
    while True:
        await asyncio.sleep(_WORD_EVERY_S)
        if not counters.opened:
            out.say("the store has yet to say where the copy ends")
            continue
        rate = (counters.events - before) / (time.monotonic() - began)
        began, before = time.monotonic(), counters.events
        out.say(f"event {counters.position:,}, {counters.lag:,} behind, {rate:,.0f} a second")
