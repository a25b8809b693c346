"""``events`` and ``backpressure``: what happens, as it happens."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import click

from resourcelease.cli.output import plain
from resourcelease.cli.session import Session, on_cluster

__all__ = ["backpressure", "events"]


@click.command()
@on_cluster
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now on, until Ctrl-C.")
@click.option("--from", "start", type=click.IntRange(1), metavar="N",
              help="The first event.  [default: the oldest that is kept; with --follow, the next one]")  # fmt: skip
@click.option("--to", "end", type=click.IntRange(1), metavar="N",
              help="The last event; waited for if it is to come.  [default: the newest]")  # fmt: skip
@click.option("--last", type=click.IntRange(1), metavar="N", help="Begin so many before the newest.")
@click.option("--namespace", "-n", "namespaces", multiple=True, help="Only of these; repeatable.")
@click.option("--type", "types", multiple=True, help="Only of these, such as COMPLETED; repeatable.")
@click.option("--bodies", "include_bodies", is_flag=True, help="With the items' bodies.")
async def events(
    session: Session, follow: bool, start: int | None, end: int | None, last: int | None, namespaces: Sequence[str],
    types: Sequence[str], include_bodies: bool,
) -> None:  # fmt: skip
    """Show the history, and follow it. One event a line; with --json, one object a line."""
    if start is not None and last is not None:
        raise click.UsageError("give --from or --last, not both")
    if start is not None and end is not None and start > end:
        raise click.UsageError(f"--from {start} lies behind --to {end}")
    from resourcelease.client.following import event_type

    try:
        numbers = [event_type(name) for name in types]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    status = await session.client.status()
    head, oldest = status.last_sequence, max(1, status.first_sequence)
    if last is not None:
        start = max(oldest, head - last + 1)
    if start is None:
        start = 0 if follow else oldest
    if not follow:
        end = end or head
        if end < start or end == 0:
            session.out.say("there are no events yet" if not head else f"the newest event is {head}")
            return
    following = session.client.events(
        start, to_sequence=end or 0, namespaces=namespaces, types=numbers, include_bodies=include_bodies
    )
    async for event in _until_interrupted(following):
        if session.out.as_json:
            session.out.data(plain(event))
        else:
            click.echo(_line(event))


def _line(event: Any) -> str:
    from resourcelease.v1 import EventType

    names = EventType.values()
    name = EventType.Name(event.type).removeprefix("EVENT_TYPE_") if event.type in names else f"TYPE {event.type}"
    at = time.strftime("%H:%M:%S", time.localtime(event.occurred_at / 1000))
    parts = [f"{event.sequence_number:>8}  {at}.{event.occurred_at % 1000:03d}  {name:<16} {event.namespace}"]
    handle = event.handle
    if event.HasField("handle"):
        parts.append(f"item {handle.sequence_id}" + (f" fence {handle.lease_id}" if handle.lease_id else ""))
    if event.HasField("payload"):
        parts.append(f"{event.payload.resource_type}/{event.payload.resource_id}")
    if event.peer_id:
        parts.append(f"peer {event.peer_id}")
    if event.HasField("error"):
        parts.append(f"error {event.error.code}: {event.error.message}")
    shown = {key: value for key, value in event.metadata.items() if key not in ("operation_id", "deadline_ms")}
    parts += [f"{key}={value}" for key, value in sorted(shown.items())]
    return "  ".join(parts)


@click.command()
@on_cluster
@click.argument("namespaces", metavar="[NAMESPACE…]", nargs=-1)
@click.option("--watch", "-w", is_flag=True, help="Go on with every change, until Ctrl-C.")
async def backpressure(session: Session, namespaces: Sequence[str], watch: bool) -> None:
    """Show where backpressure is on."""
    if watch:
        async for change in _until_interrupted(session.client.watch_backpressure(*namespaces)):
            if session.out.as_json:
                session.out.data(plain(change))
            else:
                state = "on " if change.active else "off"
                marks = (
                    f"{change.low_watermark} to {change.high_watermark}" if change.high_watermark else "no watermarks"
                )
                click.echo(f"{change.namespace}  {state}  {change.depth.pending} pending  ({marks})")
        return
    found = await session.client.queues(*namespaces)
    if session.out.as_json:
        session.out.data([_state(queue) for queue in found])
        return
    rows = [
        (queue.summary.namespace, "on" if queue.summary.backpressure else "off", queue.summary.depth.pending,
         queue.options.low_watermark or "", queue.options.high_watermark or "")
        for queue in found
    ]  # fmt: skip
    session.out.table(("namespace", "backpressure", ">pending", ">off at", ">on at"), rows)


def _state(queue: Any) -> dict[str, Any]:
    return {
        "namespace": queue.summary.namespace,
        "active": queue.summary.backpressure,
        "pending": queue.summary.depth.pending,
        "low_watermark": queue.options.low_watermark,
        "high_watermark": queue.options.high_watermark,
    }


async def _until_interrupted(source: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Ends quietly at Ctrl-C, which is how one leaves what has no end."""
    try:
        async for each in source:
            yield each
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()
