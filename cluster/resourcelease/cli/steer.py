"""``configure``, ``pause``, ``resume``, ``redrive``: steering a namespace."""

from collections.abc import Sequence
from typing import Any

import click

from resourcelease.cli.output import plain
from resourcelease.cli.session import Session, in_namespace, on_cluster

__all__ = ["configure", "pause", "redrive", "resume"]

OPTIONS = {
    "capacity": "Most items that are not settled.",
    "lease_duration_ms": "How long a lease runs from its grant, and from each heartbeat.",
    "heartbeat_interval_ms": "How often a worker should heartbeat.",
    "max_attempts": "Attempts after which an item becomes a dead letter.",
    "requeue_delay_ms": "Wait after the first failed attempt.",
    "requeue_multiplier": "Each further wait is so many times longer.",
    "requeue_delay_cap_ms": "Longest such wait.",
    "high_watermark": "Backpressure goes on at so many pending; 0 switches it off.",
    "low_watermark": "Backpressure goes off at so many pending.",
    "dedup_window_ms": "How long a request id stays known after its item's end.",
    "dedup_limit": "Most request ids of ended items that are kept.",
    "dead_letter_limit": "Most dead letters that are kept.",
    "max_body_bytes": "Longest body of an item.",
    "enforce_peer_health": "Refuse leases to disconnected peers.",
    "peer_grace_ms": "A peer is unhealthy after so long without a sign.",
}


def _queue_options(command: Any) -> Any:
    for name, words in reversed(OPTIONS.items()):
        kind: Any = bool if name == "enforce_peer_health" else int
        command = click.option("--" + name.replace("_", "-"), name, type=kind, help=words)(command)
    return command


@click.command()
@on_cluster
@in_namespace
@_queue_options
async def configure(session: Session, **options: Any) -> None:
    """Change options of a namespace; what is not named stays. Creates a namespace that is not there.

    Without any option, shows those in force.
    """
    wanted = {name: value for name, value in options.items() if value is not None}
    if wanted:
        answer = await session.client.configure(**wanted)
    else:
        found = await session.client.queues(session.client.namespace)
        if not found:
            raise click.ClickException(
                f"there is no namespace {session.client.namespace!r}; name an option to change, and it is created"
            )
        answer = found[0].options
    if session.out.as_json:
        session.out.data(plain(answer))
        return
    rows = [
        (name, getattr(answer, name) if answer.HasField(name) else "off", words)  # type: ignore[arg-type]
        for name, words in OPTIONS.items()
    ]
    session.out.table(("option", ">value", ""), rows, title=session.client.namespace)


@click.command()
@on_cluster
@in_namespace
async def pause(session: Session) -> None:
    """Stop granting in a namespace; everything else goes on, and leases run on."""
    await session.client.pause()
    _done(session, "paused")


@click.command()
@on_cluster
@in_namespace
async def resume(session: Session) -> None:
    """Grant again in a namespace."""
    await session.client.resume()
    _done(session, "resumed")


def _done(session: Session, what: str) -> None:
    session.out.say(f"{session.client.namespace} is {what}")
    if session.out.as_json:
        session.out.data({"namespace": session.client.namespace, "state": what})


@click.command()
@on_cluster
@in_namespace
@click.argument("sequence_ids", metavar="[ID…]", nargs=-1, type=int)
@click.option("--limit", type=click.IntRange(1, 10_000), help="The so many that died longest ago.")
@click.option("--delay", default=0.0, metavar="SECONDS", help="Nobody gets them before.")
async def redrive(session: Session, sequence_ids: Sequence[int], limit: int | None, delay: float) -> int:
    """Put dead letters back to work, with all their attempts anew: by ID, or the oldest by --limit."""
    if bool(sequence_ids) == bool(limit):
        raise click.UsageError("give ids, or --limit")
    results = await session.client.redrive(*sequence_ids, limit=limit or 0, delay=delay)
    refused = [result.error for result in results if result.HasField("error")]
    if session.out.as_json:
        session.out.data([plain(result) for result in results])
    else:
        session.out.say(f"{len(results) - len(refused)} back in the queue")
        for error in refused:
            click.echo(f"resourcelease: {error.reason}: {error.message}", err=True)
    return 1 if refused else 0
