"""``drain`` and ``restore``: items between clusters, by way of a file."""

from pathlib import Path
from typing import Any

import click

from resourcelease.cli.session import Session, in_namespace, on_cluster

__all__ = ["drain", "restore"]


@click.command()
@on_cluster
@in_namespace
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--bundle-id", metavar="NAME", help="Names the bundle.  [default: one of its own]")
@click.option("--page-items", default=0, type=click.IntRange(0, 10_000), help="Items a page.  [default: 1000]")
@click.option("--resume", is_flag=True, help="Go on with the FILE of a drain that broke off.")
@click.option("--include-active", is_flag=True, help="Take items under a lease too; their leases end.")
async def drain(
    session: Session, file: Path, bundle_id: str | None, page_items: int, include_active: bool, resume: bool
) -> None:
    """Take the items out of a namespace, into FILE.

    The queue stays open. Each page is on this disk before the cluster lets go of it. Put them back, here or in another
    cluster, with `restore FILE`.
    """
    there = file.exists()  # noqa: ASYNC240 - before anything else goes on
    if resume and not there:
        raise click.ClickException(f"{file} is not there; leave --resume out to begin a new drain")
    if there and not resume:
        raise click.ClickException(f"{file} exists already; name a new file, or go on with it by --resume")
    queues = await session.client.queues(session.client.namespace)
    depth = queues[0].summary.depth if queues else None
    total = depth.pending + depth.delayed + (depth.active if include_active else 0) if depth is not None else None
    with session.out.progress(f"items drained to {file}", total) as advance:
        items = await session.client.drain_to(
            file, bundle_id=bundle_id, page_items=page_items, include_active=include_active, resume=resume,
            progress=lambda summary: advance(summary.items),
        )  # fmt: skip
    session.out.say(f"{items} items drained to {file}")
    if session.out.as_json:
        session.out.data({"items": items, "file": str(file)})


@click.command()
@on_cluster
@in_namespace
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
async def restore(session: Session, file: Path) -> None:
    """Put the items of FILE back, with their ids, attempts and history.

    What is there already is passed over, so doing it twice is harmless.
    """
    present = 0

    def count(answer: Any) -> None:
        nonlocal present
        present += answer.present
        advance(answer.restored + answer.present)

    with session.out.progress(f"items restored from {file}") as advance:
        restored = await session.client.restore_from(file, progress=count)
    session.out.say(f"{restored} items restored" + (f", {present} were there already" if present else ""))
    if session.out.as_json:
        session.out.data({"restored": restored, "present": present})
