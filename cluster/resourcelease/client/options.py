"""How a client reaches a cluster, and how long it tries."""

import os
import random
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc

__all__ = ["DEFAULT_ENDPOINT", "DEFAULT_NAMESPACE", "Backoff", "Tls", "endpoints_of", "own_peer_id"]

DEFAULT_NAMESPACE = "resourcelease"
DEFAULT_ENDPOINT = "127.0.0.1:7101"
VARIABLE = "RESOURCELEASE_ENDPOINTS"


@dataclass(frozen=True)
class Tls:
    """How to know the nodes, and to be known by them. Paths of PEM files.

    ``ca`` signs the nodes' certificates; without it the system's authorities count. ``cert`` and ``key`` are the
    client's own, where nodes ask for one. ``server_name`` is the name in the nodes' certificates, if it is not the
    host of the endpoint.

    >>> Tls(ca="ca.pem").ca
    'ca.pem'
    """

    ca: str | Path | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    server_name: str = ""

    def credentials(self) -> grpc.ChannelCredentials:
        """What a channel is opened with."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key belong together; give both or neither")
        return grpc.ssl_channel_credentials(_read("ca", self.ca), _read("key", self.key), _read("cert", self.cert))

    def context(self) -> ssl.SSLContext:
        """The same for a direct stream."""
        context = ssl.create_default_context(cafile=self.ca)
        if self.cert is not None and self.key is not None:
            context.load_cert_chain(self.cert, self.key)
        return context

    def own_name(self, name: str) -> str:
        """A peer's name as nodes that know callers by their certificates allow it: below the certificate's own."""
        if self.cert is None:
            return name
        from cryptography.x509 import NameOID, load_pem_x509_certificate

        text = _read("cert", self.cert)
        assert text is not None
        subject = load_pem_x509_certificate(text).subject
        common = [str(part.value) for part in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        return f"{common[0]}/{name}" if common else name


def _read(name: str, path: str | Path | None) -> bytes | None:
    if path is None:
        return None
    text = Path(path).read_bytes()
    # gRPC would only say that no connection comes about.
    if b"-----BEGIN " not in text:
        raise ValueError(f"tls {name}: {path} is not a PEM file: it has no -----BEGIN line")
    return text


@dataclass(frozen=True)
class Backoff:
    """Waits between attempts, in seconds: full jitter below a bound that doubles.

    >>> import random
    >>> waits = [Backoff().wait(attempt, random.Random(1)) for attempt in range(8)]
    >>> all(0 <= wait <= 1 for wait in waits)
    True
    """

    first: float = 0.05
    most: float = 1.0

    def wait(self, attempt: int, chance: random.Random, at_least: float | None = None) -> float:
        """How long to wait after attempt 0, 1, 2; not less than the node asks for."""
        bound = min(self.most, self.first * 2.0 ** min(attempt, 30))
        wait = chance.uniform(0, bound)
        # Whoever is told the same wait is not to come back at the same moment.
        return wait if at_least is None else at_least + wait / 2


def endpoints_of(given: str | Iterable[str] | None) -> list[str]:
    """The endpoints as ``host:port``, from a list, a comma-separated text, or the environment.

    >>> endpoints_of("127.0.0.1:7101, [::1]:7102")
    ['127.0.0.1:7101', '[::1]:7102']
    >>> endpoints_of(["localhost"])
    Traceback (most recent call last):
    ValueError: endpoint 'localhost' is not host:port, such as 127.0.0.1:7101
    """
    if given is None:
        given = os.environ.get(VARIABLE) or DEFAULT_ENDPOINT
    parts = given.split(",") if isinstance(given, str) else given
    found = list(dict.fromkeys(part.strip() for part in parts if part.strip()))
    if not found:
        raise ValueError("no endpoint given; name at least one node as host:port, such as 127.0.0.1:7101")
    for endpoint in found:
        host, _, port = endpoint.rpartition(":")
        if not host or not (port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"endpoint {endpoint!r} is not host:port, such as {DEFAULT_ENDPOINT}")
    return found


def own_peer_id() -> str:
    """A name for this process that no other has."""
    return f"{socket.gethostname()}-{os.getpid()}-{random.randrange(1 << 24):06x}"  # noqa: S311
