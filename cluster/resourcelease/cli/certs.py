"""``certs``: a certificate authority and certificates, for trying out TLS."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["certs"]

CA = "ca"
HOSTS = ("localhost", "127.0.0.1", "::1")


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
    names = [*nodes, *clients]
    there = [directory / f"{name}.pem" for name in names if (directory / f"{name}.pem").exists()]
    if there:
        raise click.ClickException(f"{there[0]} exists already; name other certificates, or another directory")
    if CA in names or len(set(names)) < len(names):
        raise click.UsageError("every certificate needs a name of its own, and 'ca' is the authority's")
    directory.mkdir(parents=True, exist_ok=True)
    authority = _authority(directory, days)
    for name in nodes:
        _issue(directory, name, authority, [*HOSTS, *hosts], days)
    for name in clients:
        _issue(directory, name, authority, [], days)
    first, user = directory / nodes[0], directory / (clients[0] if clients else nodes[0])
    click.echo(f"{directory} has {', '.join(f'{name}.pem' for name in (CA, *names))} and their keys\n")
    click.echo(f'  [tls]\n  ca = "{directory / CA}.pem"\n  cert = "{first}.pem"\n  key = "{first}-key.pem"\n')
    click.echo(f"  resourcelease status --ca {directory / CA}.pem --cert {user}.pem --key {user}-key.pem")


Authority = tuple["x509.Certificate", "EllipticCurvePrivateKey"]


def _authority(directory: Path, days: int) -> Authority:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate, key_file = directory / f"{CA}.pem", directory / f"{CA}-key.pem"
    if certificate.exists():
        key = load_pem_private_key(key_file.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return x509.load_pem_x509_certificate(certificate.read_bytes()), key
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("resourcelease trial authority")
    builder = _builder(name, name, key.public_key(), days)
    usage = x509.KeyUsage(
        key_cert_sign=True, crl_sign=True, digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = _sign(builder.add_extension(usage, critical=True), key)
    _write(directory, CA, made, key)
    return made, key


def _issue(directory: Path, name: str, authority: Authority, hosts: Sequence[str], days: int) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    issuer, issuer_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer.subject, key.public_key(), days)
    # A node is a client of the other nodes.
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    _write(directory, name, _sign(builder, issuer_key), key)


def _name(name: str) -> "x509.Name":
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _host(host: str) -> "x509.GeneralName":
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: "x509.Name", issuer: "x509.Name", key: Any, days: int) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        # A clock that is a little behind is no reason to refuse a new certificate.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _sign(builder: "x509.CertificateBuilder", key: "EllipticCurvePrivateKey") -> "x509.Certificate":
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _write(directory: Path, name: str, certificate: "x509.Certificate", key: "EllipticCurvePrivateKey") -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    (directory / f"{name}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # Nobody else may read it, not even for the moment before its mode is changed.
    file = os.open(directory / f"{name}-key.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(secret)
