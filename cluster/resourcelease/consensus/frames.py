"""Frames on a stream: four bytes of length, then so many bytes; and the handshake that every connection begins with."""

import asyncio
from dataclasses import dataclass
from struct import Struct

import msgpack

from resourcelease.consensus.wire import PROTOCOL_VERSION, WireError

__all__ = ["Hello", "greet", "read_frame", "write_frame"]

_LENGTH = Struct(">I")
_MAGIC = "resourcelease"
_HELLO_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Hello:
    """Who speaks, and to whom it believes to speak."""

    cluster_id: str
    node_id: str
    # The node it wants; a reused address is noticed so.
    wanted: str
    incarnation: int


async def read_frame(reader: asyncio.StreamReader, bytes_max: int) -> bytes:
    """One frame; ``WireError`` if it claims to be larger than allowed, ``IncompleteReadError`` at the end."""
    (length,) = _LENGTH.unpack(await reader.readexactly(4))
    if length > bytes_max:
        raise WireError(f"a frame of {length} bytes, where {bytes_max} are allowed")
    return await reader.readexactly(length) if length else b""


def write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Hands a frame to the stream; an empty one is a sign of life."""
    writer.write(_LENGTH.pack(len(frame)) + frame)


async def greet(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cluster_id: str, mine: Hello | None, node_id: str
) -> Hello:
    """Exchanges hellos. The caller speaks first; who was called (``mine`` is None) answers once it has been checked."""
    if mine is not None:
        _write_hello(writer, mine)
    theirs = _parse(await read_frame(reader, _HELLO_BYTES_MAX))
    if theirs.cluster_id != cluster_id:
        raise WireError(f"node {theirs.node_id!r} belongs to cluster {theirs.cluster_id!r}, not to {cluster_id!r}")
    if theirs.wanted != node_id:
        raise WireError(f"node {theirs.node_id!r} wants {theirs.wanted!r} at this address; here is {node_id!r}")
    if mine is not None and theirs.node_id != mine.wanted:
        raise WireError(f"{theirs.node_id!r} answers at the address of {mine.wanted!r}")
    return theirs


def answer(writer: asyncio.StreamWriter, mine: Hello) -> None:
    """The second hello."""
    _write_hello(writer, mine)


def _write_hello(writer: asyncio.StreamWriter, hello: Hello) -> None:
    fields = [_MAGIC, PROTOCOL_VERSION, hello.cluster_id, hello.node_id, hello.wanted, hello.incarnation]
    write_frame(writer, msgpack.packb(fields))


def _parse(frame: bytes) -> Hello:
    try:
        magic, version, cluster_id, node_id, wanted, incarnation = msgpack.unpackb(frame)
    except Exception as error:  # anything but six fields is not a hello
        raise WireError("the connection does not begin with a hello; is this address another service's?") from error
    if magic != _MAGIC or version != PROTOCOL_VERSION:
        raise WireError(f"protocol {magic!r} version {version!r}; this node speaks {_MAGIC!r} {PROTOCOL_VERSION}")
    if not (isinstance(cluster_id, str) and isinstance(node_id, str) and isinstance(wanted, str)):
        raise WireError("a hello with names that are not text")
    return Hello(cluster_id, node_id, wanted, int(incarnation))
