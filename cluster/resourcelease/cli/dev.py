"""``dev``: a cluster on this machine in one command."""

import asyncio
import contextlib
import json
import signal
import tempfile
from pathlib import Path

import click

from resourcelease.cli.processes import FIRST_PORT, LocalCluster
from resourcelease.cli.session import JSON

__all__ = ["dev"]


@click.command()
@click.option("--nodes", type=click.IntRange(1, 9), help="How many.  [default: 3, or as many as DIR has]")
@click.option(
    "--dir",
    "directory",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the cluster here; the same DIR resumes it.  [default: one that is removed at the end]",
)
@click.option("--first-port", default=FIRST_PORT, show_default=True, type=click.IntRange(0, 65_000), metavar="PORT",
              help="Nodes listen from here on, if these ports are free; 0: anywhere.")  # fmt: skip
@JSON
def dev(nodes: int | None, directory: Path | None, first_port: int, as_json: bool) -> int:
    """Run a cluster on this machine; Ctrl-C stops it.

    Prints its endpoints once it can be called; with --json as one line of JSON. Each node is a process of its own, and
    its log is DIR/n1/node.log and so on.
    """
    with contextlib.ExitStack() as stack:
        if directory is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="resourcelease-dev-"))) / "cluster"
        else:
            place = directory
        try:
            cluster = LocalCluster.plan(place, nodes, first_port)
            return asyncio.run(_run(cluster, as_json=as_json, kept=directory is not None))
        except (ValueError, OSError) as error:
            raise click.ClickException(str(error)) from error


async def _run(cluster: LocalCluster, *, as_json: bool, kept: bool) -> int:
    from resourcelease.client import Client

    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    try:
        cluster.start()
        async with Client(cluster.endpoints) as client:
            starting = asyncio.create_task(cluster.ready(client))
            stopped = asyncio.create_task(stopping.wait())
            await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
            if not stopping.is_set():
                _announce(cluster, await starting, as_json=as_json, kept=kept)
            starting.cancel()
        while not stopping.is_set():
            for node in cluster.nodes:
                if node.exit_code is not None:
                    click.echo(
                        f"resourcelease: node {node.name} ended: {node.last_words()}; it is started again", err=True
                    )
                    node.start()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await stopping.wait()
        if not as_json:
            click.echo("stopping …")
    finally:
        await cluster.stop()
    return 0


def _announce(cluster: LocalCluster, leader: str, *, as_json: bool, kept: bool) -> None:
    endpoints = ",".join(cluster.endpoints)
    if as_json:
        nodes = [{"node_id": node.name, "address": node.address, "pid": node.pid} for node in cluster.nodes]
        shown = {"endpoints": cluster.endpoints, "dir": str(cluster.directory), "leader_id": leader, "nodes": nodes}
        click.echo(json.dumps(shown))
        return
    what = "resumed" if cluster.resumed else "started"
    click.echo(f"{len(cluster.nodes)} nodes {what} in {cluster.directory}; {leader} leads\n")
    click.echo(f"  export RESOURCELEASE_ENDPOINTS={endpoints}\n")
    click.echo("  resourcelease status\n  resourcelease enqueue table orders 'hello'\n  resourcelease lease\n")
    click.echo("Ctrl-C stops it" + ("; the same --dir goes on with it." if kept else " and removes its files."))
