"""What the benchmark asks of a peer: its servers, and its client as a worker uses it."""

import importlib
import importlib.metadata
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from bench.peers.servers import Server

__all__ = [
    "BODY_BYTES",
    "LEASE_SECONDS",
    "TRY_SECONDS",
    "Claim",
    "Peer",
    "Refused",
    "Session",
    "Worker",
    "body_of",
    "number_of",
    "no_client",
    "optional",
    "version_of",
]

BODY_BYTES = 256
LEASE_SECONDS = 30
# How long a client waits for one answer before it counts as lost; only failover ever gets there.
TRY_SECONDS = 2.0

_NUMBER_BYTES = 8
_REST = random.Random(1).randbytes(BODY_BYTES - _NUMBER_BYTES)


class Refused(Exception):
    """The peer said no where it should not have: a completion by the item's owner, for one."""


class Claim(NamedTuple):
    """An item that a worker has leased; the handle is the adapter's own."""

    number: int
    handle: Any


class Worker(Protocol):
    """One worker: it has a name, it does one thing at a time, and each answer means that the peer has confirmed it."""

    async def enqueue(self, numbers: Sequence[int]) -> None:
        """Adds items, in one go as far as the peer offers that."""

    async def lease(self, many: int) -> list[Claim]:
        """Takes up to so many items, at least one, under this worker's name, for ``LEASE_SECONDS``."""

    async def complete(self, claims: Sequence[Claim]) -> None:
        """Ends items that this worker holds; raises if the peer says that it does not."""

    async def close(self) -> None:
        """Gives back what was taken ahead."""


class Session(Protocol):
    """A client process's connection."""

    async def worker(self, name: str) -> Worker:
        """Another worker of this process."""

    async def fill(self, numbers: Sequence[int]) -> None:
        """Adds many items, as fast as the client can."""

    async def depth(self) -> int:
        """How many items are there, waiting or leased."""

    async def close(self) -> None:
        """Ends the connection."""


class Peer(ABC):
    """A system under test: how it is started, looked into and killed. One object serves one start."""

    name: ClassVar[str]
    title: ClassVar[str]
    # Whether an answer means: on more than one node, and on disk there.
    replicated: ClassVar[bool] = True
    fsyncs: ClassVar[bool] = True
    # Whether the survivors of a dead leader choose another by themselves.
    fails_over: ClassVar[bool] = True
    # What a reader should know about the way it is used here.
    notes: ClassVar[tuple[str, ...]] = ()

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.servers: list[Server] = []

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Why it cannot be run here; None if it can."""

    @abstractmethod
    def start(self) -> None:
        """Starts all servers, and returns when they take work; whoever calls it calls ``stop`` in any case."""

    def stop(self) -> None:
        """Ends all servers at once: nothing on their disks is needed any more."""
        for server in self.servers:
            server.kill()

    @abstractmethod
    def connect(self) -> dict[str, Any]:
        """What a client process needs to know, as JSON."""

    @classmethod
    @abstractmethod
    async def session(cls, connect: dict[str, Any], workers: int, batch: int) -> Session:
        """A client; called in the client process."""

    @classmethod
    @abstractmethod
    def versions(cls) -> dict[str, str]:
        """Server and client."""

    @classmethod
    @abstractmethod
    def settings(cls) -> dict[str, Any]:
        """What is set, and not left as it ships."""

    def leader(self) -> Server:
        """The server that leads."""
        raise NotImplementedError(f"{self.name} has no leader")

    def revive(self, server: Server) -> None:
        """Starts a killed server again and returns when all are in order."""
        raise NotImplementedError(f"{self.name} is not killed")

    def data(self) -> list[Path]:
        """Where the servers keep their data."""
        return [self.directory]


def body_of(number: int) -> bytes:
    """An item's body: its number, and bytes that do not compress.

    >>> len(body_of(7)), number_of(body_of(7))
    (256, 7)
    """
    return number.to_bytes(_NUMBER_BYTES, "big") + _REST


def number_of(body: bytes) -> int:
    """The number of the item with this body; a damaged one is not taken for another."""
    if len(body) != BODY_BYTES or body[_NUMBER_BYTES:] != _REST:
        raise Refused(f"a body of {len(body)} bytes came back that nobody enqueued")
    return int.from_bytes(body[:_NUMBER_BYTES], "big")


def optional(module: str) -> Any:
    """A module of a peer's client, which only the extra ``bench`` installs."""
    return importlib.import_module(module)


def no_client(package: str, name: str) -> str | None:
    """Why a peer is left out for want of its client; None if that can be imported."""
    try:
        optional(package)
    except ImportError:
        return f"{name} is not installed"
    return None


def version_of(distribution: str) -> str:
    """The installed version of a Python distribution."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
