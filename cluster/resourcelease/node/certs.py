"""A certificate authority and certificates of its own, for trying TLS out. Real clusters have a real authority."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

__all__ = ["CertsError", "make_authority", "make_certificate"]

_DAYS = "825"
_LOOPBACK = ("127.0.0.1", "localhost")


class CertsError(Exception):
    """Why there are no certificates, in one line."""


def make_authority(directory: Path, name: str = "resourcelease trial authority") -> tuple[Path, Path]:
    """Makes ``ca.pem`` and ``ca-key.pem`` unless they are there; their paths."""
    directory.mkdir(parents=True, exist_ok=True)
    certificate, key = directory / "ca.pem", directory / "ca-key.pem"
    if not certificate.exists():
        _make_key(key)
        usage = "keyUsage=critical,keyCertSign,cRLSign"
        _openssl(
            *("req", "-x509", "-new", "-key", str(key), "-out", str(certificate), "-days", _DAYS),
            *("-subj", _subject(name), "-addext", usage),
        )
    return certificate, key


def make_certificate(
    directory: Path, name: str, hosts: Sequence[str] = ("127.0.0.1", "localhost")
) -> tuple[Path, Path]:
    """Makes ``<name>.pem`` and ``<name>-key.pem``, signed by the authority in the same directory; their paths.

    The certificate serves a node that is reached under ``hosts``, and a client or a node that calls others as ``name``.
    """
    authority, authority_key = directory / "ca.pem", directory / "ca-key.pem"
    if not authority.exists():
        raise CertsError(f"there is no authority in {directory}; make one first")
    if not name or not all(letter.isalnum() or letter in "._-" for letter in name) or name in ("ca", ".", ".."):
        raise CertsError(f"{name!r} is no name for a certificate: letters, digits, dots, dashes and underscores")
    certificate, key, request = (directory / f"{name}{end}" for end in (".pem", "-key.pem", ".csr"))
    extensions = directory / f"{name}.ext"
    _make_key(key)
    _openssl("req", "-new", "-key", str(key), "-out", str(request), "-subj", _subject(name))
    extensions.write_text(
        "basicConstraints=critical,CA:FALSE\n"
        "keyUsage=critical,digitalSignature\n"
        "extendedKeyUsage=serverAuth,clientAuth\n"
        f"subjectAltName={','.join(map(_alternative, hosts))}\n",
        encoding="ascii",
    )
    try:
        _openssl(
            *("x509", "-req", "-in", str(request), "-out", str(certificate), "-days", _DAYS),
            *("-CA", str(authority), "-CAkey", str(authority_key), "-CAcreateserial", "-extfile", str(extensions)),
        )
    finally:
        request.unlink(missing_ok=True)
        extensions.unlink(missing_ok=True)
    return certificate, key


def _make_key(path: Path) -> None:
    # Made for nobody else's eyes before anything is in it.
    path.touch(mode=0o600)
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(path))


def _subject(name: str) -> str:
    return f"/CN={name.replace('/', '-')}"


def _alternative(host: str) -> str:
    kind = "IP" if host.replace(".", "").isdigit() or ":" in host else "DNS"
    return f"{kind}:{host}"


def _openssl(*arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        raise CertsError("the program openssl is not installed; it makes the certificates")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)  # noqa: S603 our own words
    if done.returncode:
        reason = done.stderr.strip().splitlines()
        raise CertsError(f"openssl {arguments[0]} failed: {reason[-1] if reason else done.returncode}")
