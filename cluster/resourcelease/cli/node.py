"""``node``: one node of a cluster, until a signal."""

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import click

__all__ = ["node"]


@click.command()
@click.option("--config", "-c", type=click.Path(path_type=Path), help="The node's configuration, as TOML.")
@click.option("--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE",
              help="One setting, such as grpc.listen=127.0.0.1:7101; repeatable.")  # fmt: skip
@click.option("--check", is_flag=True, help="Only say whether the configuration is good.")
@click.option("--until-stdin-ends", is_flag=True, hidden=True)
def node(config: Path | None, settings: Sequence[str], check: bool, until_stdin_ends: bool) -> int:
    """Run one node of a cluster, until Ctrl-C or SIGTERM.

    Settings come from --config, from the environment (RESOURCELEASE_GRPC_LISTEN is grpc.listen), and from --set; the
    later of these wins.

    \b
    resourcelease node --set node.id=n1 --set node.dir=./n1 --set cluster.id=demo
    """
    from resourcelease.node.config import ConfigError, load

    try:
        loaded = load(config, os.environ, dict(map(_pair, settings)))
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    if check:
        click.echo(f"good: node {loaded.node.id} of cluster {loaded.cluster.id}, clients at {loaded.grpc.listen}")
        return 0
    from resourcelease.node.run import run

    if until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    return run(loaded)


def _pair(setting: str) -> tuple[str, str]:
    name, found, value = setting.partition("=")
    if not found or "." not in name:
        raise click.UsageError(f"--set {setting!r} is not SECTION.KEY=VALUE, such as grpc.listen=127.0.0.1:7101")
    return name, value


def _end_with_stdin() -> None:
    """Whoever started us holds the other end: when it is gone, however it went, nobody would ever stop us."""
    # Not by sys.stdin, whose lock the interpreter would wait for at its end.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
