"""What commands that call a cluster have in common: how to reach it, how long to try, and how errors are said."""

import asyncio
import functools
import getpass
import os
import socket
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from resourcelease.cli.output import Output

if TYPE_CHECKING:
    from resourcelease.client import Client

__all__ = ["JSON", "Session", "in_namespace", "on_cluster"]

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


class Session:
    """A command at work: the client, and where to print."""

    def __init__(self, client: "Client", out: Output) -> None:
        self.client = client
        self.out = out


Handler = Callable[..., Awaitable[int | None]]

_OPTIONS = (
    click.option(
        "--endpoints", "-e", metavar="HOST:PORT,…", envvar="RESOURCELEASE_ENDPOINTS", show_envvar=True,
        help="Some nodes of the cluster; the others are found.  [default: 127.0.0.1:7101]",
    ),
    click.option("--timeout", default=10.0, show_default=True, metavar="SECONDS", help="How long to try."),
    JSON,
    click.option("--ca", type=click.Path(exists=True, dir_okay=False), envvar="RESOURCELEASE_CA", show_envvar=True,
                 help="TLS: who signs the nodes' certificates (PEM). Given, TLS is used."),
    click.option("--cert", type=click.Path(exists=True, dir_okay=False), envvar="RESOURCELEASE_CERT", show_envvar=True,
                 help="TLS: your own certificate (PEM)."),
    click.option("--key", type=click.Path(exists=True, dir_okay=False), envvar="RESOURCELEASE_KEY", show_envvar=True,
                 help="TLS: the key of your certificate (PEM)."),
    click.option("--server-name", default="", metavar="NAME", help="TLS: the name in the nodes' certificates."),
)  # fmt: skip

_NAMESPACE = click.option(
    "--namespace", "-n", default="resourcelease", show_default=True, envvar="RESOURCELEASE_NAMESPACE",
    help="Whose items.",
)  # fmt: skip
_PEER = click.option(
    "--peer", envvar="RESOURCELEASE_PEER", show_envvar=True, metavar="NAME",
    help="Who you are to the cluster.  [default: cli-USER@HOST]",
)  # fmt: skip


def on_cluster(handler: Handler) -> Callable[..., int]:
    """Makes the callback of a command from a coroutine that takes a session and the command's own options."""

    @functools.wraps(handler)
    def callback(
        endpoints: str | None,
        timeout: float,
        as_json: bool,
        ca: str | None,
        cert: str | None,
        key: str | None,
        server_name: str,
        namespace: str = "resourcelease",
        peer: str | None = None,
        **options: Any,
    ) -> int:
        if (cert is None) != (key is None):
            raise click.UsageError("--cert and --key belong together; give both or neither")
        tls = {"ca": ca, "cert": cert, "key": key, "server_name": server_name} if ca or cert or server_name else None
        settings = {"namespace": namespace, "peer_id": peer, "timeout": timeout}
        return asyncio.run(_run(handler, endpoints, tls, settings, Output(as_json=as_json), options))

    own: list[Any] = callback.__dict__.pop("__click_params__", [])
    for option in reversed(_OPTIONS):
        option(callback)
    callback.__dict__["__click_params__"] = [*callback.__dict__["__click_params__"], *own]
    return callback


def in_namespace(command: Any) -> Any:
    """Adds --namespace and --peer to a command."""
    return _NAMESPACE(_PEER(command))


def own_name() -> str:
    """The same name in every call of one user on one machine, so that one command can end what another leased."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"cli-{user}@{socket.gethostname()}"


async def _run(
    handler: Handler,
    endpoints: str | None,
    tls: dict[str, Any] | None,
    settings: dict[str, Any],
    out: Output,
    options: dict[str, Any],
) -> int:
    from resourcelease.client import Client, ResourceLeaseError, Tls

    known_by = Tls(**tls or {})
    try:
        settings["peer_id"] = settings["peer_id"] or known_by.own_name(own_name())
        client = Client(endpoints, tls=known_by if tls else None, prefer_leader=False, **settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        async with client:
            return await handler(Session(client, out), **options) or 0
    except ResourceLeaseError as error:
        field = f" (field {error.field})" if error.field else ""
        raise click.ClickException(f"{error.reason}: {error}{field}: {error.what_to_do}") from error
    except BrokenPipeError:
        # Whoever read our output has seen enough; nothing more can be said to them, also not at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 0
    except (ValueError, OSError) as error:
        raise click.ClickException(str(error)) from error
