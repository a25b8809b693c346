"""``certs``: a certificate authority and certificates, for trying out TLS."""

from collections.abc import Sequence
from pathlib import Path

import click

__all__ = ["certs"]


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("--node", "nodes", multiple=True, default=("node",), show_default=True, metavar="NAME",
              help="A certificate for a node; repeatable.")  # fmt: skip
@click.option("--client", "clients", multiple=True, default=("client",), show_default=True, metavar="NAME",
              help="A certificate for a client, whose principal is NAME; repeatable.")  # fmt: skip
@click.option("--host", "hosts", multiple=True, metavar="NAME|ADDRESS",
              help="Where nodes are reached, beside localhost; repeatable.")  # fmt: skip
@click.option("--days", default=365, show_default=True, type=click.IntRange(1, 3650), help="How long they hold.")
def certs(directory: Path, nodes: Sequence[str], clients: Sequence[str], hosts: Sequence[str], days: int) -> None:
    """Make a certificate authority and certificates in DIR, for trying out TLS.

    An authority that is there already is used again, so certificates can be added later. What is there is never
    overwritten. For production, have your own authority sign them.
    """
    from resourcelease.node.certs import AUTHORITY, HOSTS, CertsError, make_authority, make_certificate

    names = [*nodes, *clients]
    there = [directory / f"{name}.pem" for name in names if (directory / f"{name}.pem").exists()]
    if there:
        raise click.ClickException(f"{there[0]} exists already; name other certificates, or another directory")
    if AUTHORITY in names or len(set(names)) < len(names):
        raise click.UsageError("every certificate needs a name of its own, and 'ca' is the authority's")
    try:
        make_authority(directory, days)
        for name in nodes:
            make_certificate(directory, name, [*HOSTS, *hosts], days)
        for name in clients:
            make_certificate(directory, name, [], days)
    except CertsError as error:
        raise click.ClickException(str(error)) from error
    first, user = directory / nodes[0], directory / (clients[0] if clients else nodes[0])
    click.echo(f"{directory} has {', '.join(f'{name}.pem' for name in (AUTHORITY, *names))} and their keys\n")
    click.echo(f'  [tls]\n  ca = "{directory / AUTHORITY}.pem"\n  cert = "{first}.pem"\n  key = "{first}-key.pem"\n')
    click.echo(f"  resourcelease status --ca {directory / AUTHORITY}.pem --cert {user}.pem --key {user}-key.pem")
