"""A certificate authority and certificates of its own, for trying TLS out. Real clusters have a real authority."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

__all__ = ["AUTHORITY", "HOSTS", "CertsError", "make_authority", "make_certificate"]

AUTHORITY = "ca"
HOSTS = ("localhost", "127.0.0.1", "::1")
_DAYS = 365


class CertsError(Exception):
    """Why there are no certificates, in one line."""


def make_authority(directory: Path, days: int = _DAYS) -> Path:
    """Makes ``ca.pem`` and ``ca-key.pem`` unless they are there; the first one's path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{AUTHORITY}.pem"
    if not path.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        name = _name("resourcelease trial authority")
        builder = _builder(name, name, key.public_key(), days)
        usage = x509.KeyUsage(
            key_cert_sign=True, crl_sign=True, digital_signature=True, content_commitment=False, key_encipherment=False,
            data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        )  # fmt: skip
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        _write(directory, AUTHORITY, _sign(builder.add_extension(usage, critical=True), key), key)
    return path


def make_certificate(directory: Path, name: str, hosts: Sequence[str] = HOSTS, days: int = _DAYS) -> Path:
    """Makes ``<name>.pem`` and ``<name>-key.pem``, signed by the authority in the same directory; the first one's path.

    It serves a node that is reached under ``hosts``, and a client, or a node that calls others, as ``name``; without
    hosts a client only. What is there is not overwritten.
    """
    authority = directory / f"{AUTHORITY}.pem"
    if not authority.exists():
        raise CertsError(f"there is no authority in {directory}; make one first")
    if not name or not all(letter.isalnum() or letter in "._-" for letter in name) or name in (AUTHORITY, ".", ".."):
        raise CertsError(f"{name!r} is no name for a certificate: letters, digits, dots, dashes and underscores")
    path = directory / f"{name}.pem"
    if path.exists():
        raise CertsError(f"{path} exists already; name other certificates, or another directory")
    issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    issuer_key = load_pem_private_key((directory / f"{AUTHORITY}-key.pem").read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer.subject, key.public_key(), days)
    # A node is a client of the other nodes.
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
    _write(directory, name, _sign(builder, issuer_key), key)
    return path


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, days: int) -> x509.CertificateBuilder:
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


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    return builder.sign(key, hashes.SHA256())


def _write(directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    (directory / f"{name}.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    # Nobody else may read it, not even for the moment before its mode is changed.
    file = os.open(directory / f"{name}-key.pem", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as opened:
        opened.write(secret)
