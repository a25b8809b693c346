"""The commands by name, each loaded when it is called."""

import difflib
import sys
from importlib import import_module
from typing import Any, NamedTuple

import click

__all__ = ["COMMANDS", "app"]


class Entry(NamedTuple):
    """A command in the list: the heading it stands under, the module it lives in, and what it does."""

    heading: str
    module: str
    help: str


RUN, WORK, LOOK, STEER = "Run a cluster", "Produce and work", "Look", "Steer"

COMMANDS: dict[str, Entry] = {
    "dev": Entry(RUN, "dev", "Run a cluster on this machine; Ctrl-C stops it."),
    "demo": Entry(RUN, "demo", "Watch three nodes survive the death of their leader."),
    "node": Entry(RUN, "node", "Run one node of a cluster."),
    "certs": Entry(RUN, "certs", "Make a certificate authority and certificates for trying out TLS."),
    "completion": Entry(RUN, "completion", "Print the completion script for your shell."),
    "enqueue": Entry(WORK, "work", "Append an item, or many."),
    "lease": Entry(WORK, "work", "Take items under a lease."),
    "complete": Entry(WORK, "work", "End items well."),
    "heartbeat": Entry(WORK, "work", "Extend leases."),
    "fail": Entry(WORK, "work", "End attempts badly, or give leases back."),
    "drain": Entry(WORK, "bundles", "Take items out of a namespace, into a file."),
    "restore": Entry(WORK, "bundles", "Put the items of a drained file back."),
    "status": Entry(LOOK, "cluster", "Show the nodes, who leads, and the namespaces."),
    "queues": Entry(LOOK, "look", "Show the namespaces, their depths and options."),
    "items": Entry(LOOK, "look", "Browse items, or look some up."),
    "explain": Entry(LOOK, "look", "Say why an item waits, or what became of it."),
    "peers": Entry(LOOK, "look", "Show the workers and producers that the cluster knows."),
    "backpressure": Entry(LOOK, "follow", "Show where backpressure is on."),
    "events": Entry(LOOK, "follow", "Show the history, and follow it."),
    "export": Entry(LOOK, "export", "Copy the history to SQLite or object storage, and keep it up to date."),
    "lineage": Entry(LOOK, "lineage", "Tell who held what, as tables and as a report, from the logs of nodes."),
    "verify": Entry(LOOK, "cluster", "Compare the nodes, byte for byte."),
    "configure": Entry(STEER, "steer", "Change options of a namespace."),
    "pause": Entry(STEER, "steer", "Stop granting in a namespace."),
    "resume": Entry(STEER, "steer", "Grant again in a namespace."),
    "redrive": Entry(STEER, "steer", "Put dead letters back to work."),
    "members": Entry(STEER, "cluster", "List the nodes, add one, or remove one."),
    "transfer": Entry(STEER, "cluster", "Hand leadership to another node."),
    "snapshot": Entry(STEER, "cluster", "Have nodes write a snapshot to their disks."),
}


class _Lazy(click.Group):
    """A group that knows its commands' names and purposes without loading them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        found: click.Command = getattr(import_module(f"resourcelease.cli.{entry.module}"), cmd_name)
        return found

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            meant = f"; did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"there is no command {args[0]!r}{meant}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading in (RUN, WORK, LOOK, STEER):
            with formatter.section(heading):
                formatter.write_dl([(name, entry.help) for name, entry in COMMANDS.items() if entry.heading == heading])


def _version(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from resourcelease import __version__

        click.echo(f"resourcelease {__version__} (Python {sys.version.split()[0]})")
        ctx.exit()


@click.group(
    cls=_Lazy,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Commands find the cluster by --endpoints or RESOURCELEASE_ENDPOINTS; by default they try 127.0.0.1:7101.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show which.")
def app() -> None:
    """A cluster that hands out work under leases, and never hands the same work out twice."""
