"""``enqueue``, ``lease``, ``complete``, ``heartbeat``, ``fail``: the life of an item, by hand."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from resourcelease.cli.output import plain, short_bytes, since
from resourcelease.cli.session import Session, in_namespace, on_cluster

if TYPE_CHECKING:
    from resourcelease.client import Lease
    from resourcelease.v1 import Handle

__all__ = ["complete", "enqueue", "fail", "heartbeat", "lease"]

CHUNK = 2_000


class _HandleType(click.ParamType[Any]):
    """A lease as ``lease`` prints it: sequence id, attempt and fence."""

    name = "handle"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from resourcelease.v1 import Handle

        parts = value.split(":") if isinstance(value, str) else []
        if len(parts) != 3 or not all(part.isdigit() for part in parts):
            self.fail(f"{value!r} is no handle; one looks like 12:1:40 (item, attempt, fence)", param, ctx)
        return Handle(sequence_id=int(parts[0]), attempt=int(parts[1]), lease_id=int(parts[2]))


class _PairType(click.ParamType[Any]):
    """``name=value``."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name, found, text = str(value).partition("=")
        if not found or not name:
            self.fail(f"{value!r} is not name=value", param, ctx)
        return name, text


HANDLE, PAIR = _HandleType(), _PairType()
_HANDLES = click.argument("handles", metavar="HANDLE…", nargs=-1, type=HANDLE)


@click.command()
@on_cluster
@in_namespace
@click.argument("resource_type", metavar="TYPE", required=False)
@click.argument("resource_id", metavar="ID", required=False)
@click.argument("body", required=False)
@click.option("--body-file", type=click.File("rb"), help="Take the body from a file; - is standard input.")
@click.option("--lines", type=click.File("r"), help="Many items: one JSON object a line; - is standard input.")
@click.option("--priority", type=click.IntRange(0, 9), help="Higher first.  [default: 4]")
@click.option("--delay", default=0.0, metavar="SECONDS", help="Nobody gets it before.")
@click.option("--request-id", default="", help="Your name for the item: enqueueing it again adds nothing.")
@click.option("--partition-key", default="", help="A hint for whoever spreads the work.")
@click.option("--encoding", "payload_encoding", default="", help="How the body is encoded, such as json.")
@click.option("--attribute", "-a", "attributes", multiple=True, type=PAIR, help="A note for the worker; repeatable.")
@click.option("--wait", default=0.0, metavar="SECONDS", help="How long to wait for room in a full queue.")
async def enqueue(
    session: Session, resource_type: str | None, resource_id: str | None, body: str | None, body_file: IO[bytes] | None,
    lines: IO[str] | None, attributes: Sequence[tuple[str, str]], wait: float, **item: Any,
) -> None:  # fmt: skip
    """Append an item, or many.

    \b
    resourcelease enqueue table orders '{"day": 1}'
    resourcelease enqueue --lines items.jsonl

    A line of --lines looks like {"resource_type": "table", "resource_id": "orders", "body": "..."} and may have the
    other options too, such as "priority" and "request_id".
    """
    if lines is not None:
        if resource_type is not None:
            raise click.UsageError("give TYPE and ID, or --lines, not both")
        await _enqueue_lines(session, lines, wait)
        return
    if resource_type is None or resource_id is None:
        raise click.UsageError("TYPE and ID are missing, such as: resourcelease enqueue table orders")
    if body is not None and body_file is not None:
        raise click.UsageError("give BODY or --body-file, not both")
    content = body_file.read() if body_file is not None else (body or "").encode()
    done = await session.client.enqueue(
        resource_type, resource_id, content, attributes=dict(attributes), wait=wait, **item
    )
    session.out.say(f"item {done.sequence_id}" + (" (was there already)" if done.duplicate else ""))
    if session.out.as_json:
        session.out.data({"sequence_id": done.sequence_id, "duplicate": done.duplicate})


async def _enqueue_lines(session: Session, lines: IO[str], wait: float) -> None:
    many = duplicates = 0
    first = last = 0
    with session.out.progress("items enqueued") as advance:
        async for items in _chunks(_parsed(lines)):
            results = await session.client.enqueue_many(items, wait=wait)
            first = first or results[0].sequence_id
            last = results[-1].sequence_id
            many += len(results)
            duplicates += sum(result.duplicate for result in results)
            advance(len(results))
    session.out.say(f"{many} items, {first} to {last}" + (f", {duplicates} were there already" if duplicates else ""))
    if session.out.as_json:
        session.out.data({"enqueued": many, "duplicates": duplicates, "first": first, "last": last})


def _parsed(lines: IO[str]) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            item = json.loads(line)
            body = item.get("body", "")
            item["body"] = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            _checked(item)
        except (ValueError, TypeError, AttributeError) as error:
            raise click.ClickException(f"{lines.name}:{number}: {error}") from error
        yield item


def _checked(item: dict[str, Any]) -> None:
    from resourcelease.client import new_item

    new_item(**item)


async def _chunks(items: Iterator[dict[str, Any]]) -> AsyncIterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    # Standard input may make us wait, which must not hold up the connection.
    while (item := await asyncio.to_thread(next, items, None)) is not None:
        chunk.append(item)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


@click.command()
@on_cluster
@in_namespace
@click.option("--count", "-c", default=1, show_default=True, type=click.IntRange(1, 10_000), help="How many at most.")
@click.option("--wait", default=0.0, metavar="SECONDS", help="How long to wait for the first.  [default: not at all]")
@click.option("--body", "only_body", is_flag=True, help="Print the bodies alone, as they are.")
async def lease(session: Session, count: int, wait: float, only_body: bool) -> None:
    """Take items under a lease, for this user and machine or for --peer.

    End them with `complete`, `fail` or `fail --give-back`, by the handle that this prints; keep them with `heartbeat`.
    """
    leases = await session.client.lease(count, wait=wait)
    if only_body:
        for each in leases:
            sys.stdout.buffer.write(each.body)
        sys.stdout.buffer.flush()
    elif session.out.as_json:
        session.out.data([_shown(each) for each in leases])
    elif not leases:
        session.out.say("nothing is pending")
    else:
        rows = [
            (_handle(each.handle), each.resource_type, each.resource_id, short_bytes(each.body),
             since(each.remaining * 1000))
            for each in leases
        ]  # fmt: skip
        session.out.table(("handle", "type", "resource", "body", ">left"), rows)


def _shown(lease: "Lease") -> dict[str, Any]:
    return {
        "handle": _handle(lease.handle),
        "sequence_id": lease.sequence_id,
        "attempt": lease.attempt,
        "fence": lease.fence,
        "peer_id": lease.peer_id,
        "remaining_ms": int(lease.remaining * 1000),
        "payload": plain(lease.payload),
        "last_error": plain(lease.last_error) if lease.last_error is not None else None,
    }


def _handle(handle: "Handle") -> str:
    return f"{handle.sequence_id}:{handle.attempt}:{handle.lease_id}"


@click.command()
@on_cluster
@in_namespace
@_HANDLES
async def complete(session: Session, handles: Sequence["Handle"]) -> int:
    """End items well. A HANDLE is what `lease` prints, such as 12:1:40."""
    return await _each(session, handles, "completed", session.client.complete)


@click.command()
@on_cluster
@in_namespace
@_HANDLES
@click.option("--all", "everything", is_flag=True, help="Every lease that the peer holds.")
async def heartbeat(session: Session, handles: Sequence["Handle"], everything: bool) -> int:
    """Extend leases: by their handles, or all that the peer holds."""
    if everything == bool(handles):
        raise click.UsageError("give handles, or --all")
    if everything:
        await session.client.heartbeat()
        session.out.say("all leases extended")
        if session.out.as_json:
            session.out.data({"extended": "all"})
        return 0
    return await _each(session, handles, "extended", session.client.heartbeat)


@click.command()
@on_cluster
@in_namespace
@_HANDLES
@click.option("--message", "-m", default="", help="What went wrong, for people.")
@click.option("--code", default="", help="What went wrong, for programs: a short word.")
@click.option("--no-requeue", is_flag=True, help="Do not try again: the item becomes a dead letter.")
@click.option("--delay", type=float, metavar="SECONDS", help="Before the next attempt.")
@click.option("--give-back", is_flag=True, help="Return the lease unused: no attempt is spent.")
async def fail(
    session: Session, handles: Sequence["Handle"], message: str, code: str, no_requeue: bool, delay: float | None,
    give_back: bool,
) -> int:  # fmt: skip
    """End attempts badly, or give leases back."""
    client = session.client
    if give_back:
        if message or code or no_requeue or delay is not None:
            raise click.UsageError("--give-back goes with none of --message, --code, --no-requeue and --delay")
        return await _each(session, handles, "given back", client.give_back)

    async def one(handle: "Handle") -> None:
        await client.fail(handle, message, code=code, requeue=not no_requeue, delay=delay)

    return await _each(session, handles, "failed", one)


async def _each(session: Session, handles: Sequence["Handle"], done: str, call: Any) -> int:
    """Makes a call for each handle, all at the same time, and says what became of each."""
    from resourcelease.client import ResourceLeaseError

    if not handles:
        raise click.UsageError("no handle is given; `resourcelease lease` prints them, such as 12:1:40")
    results = await asyncio.gather(*(call(handle) for handle in handles), return_exceptions=True)
    refused = 0
    shown = []
    for handle, result in zip(handles, results, strict=True):
        if isinstance(result, ResourceLeaseError):
            refused += 1
            shown.append({"handle": _handle(handle), "error": result.reason, "message": result.message})
            if not session.out.as_json:
                click.echo(f"resourcelease: {result.reason}: {result}: {result.what_to_do}", err=True)
        elif isinstance(result, BaseException):
            raise result
        else:
            shown.append({"handle": _handle(handle), "result": done})
            session.out.say(f"{_handle(handle)} {done}")
    if session.out.as_json:
        session.out.data(shown)
    return 1 if refused else 0
