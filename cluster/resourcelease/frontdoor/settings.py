"""What a front door is told about its node and its bounds."""

import ssl
from dataclasses import dataclass

__all__ = ["DoorLimits", "DoorSettings"]


@dataclass(frozen=True, slots=True)
class DoorLimits:
    """What one node, and one client on it, may ask for at a time."""

    message_bytes: int = 16 * 1024 * 1024
    calls: int = 10_000
    calls_per_peer: int = 2_000
    streams_per_peer: int = 64
    # How long a call waits for the cluster's answer.
    answer_s: float = 5.0
    # Events kept in memory for subscribers.
    tail_events: int = 100_000
    tail_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class DoorSettings:
    """Where and how clients are let in."""

    listen: str
    # What clients are told to call; "": where it listens.
    advertise: str = ""
    limits: DoorLimits = DoorLimits()
    trust_principal_header: bool = False
    # PEM texts: the node's key and certificate; with ``client_ca``, clients must show a certificate of that authority.
    key: bytes = b""
    certificate: bytes = b""
    client_ca: bytes = b""
    # Where direct streams are taken: host:port, "auto" for any port beside ``listen``, or "off"; and where they are
    # encrypted, how.
    direct: str = "off"
    direct_advertise: str = ""
    direct_tls: ssl.SSLContext | None = None
