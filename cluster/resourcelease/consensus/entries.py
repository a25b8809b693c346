"""Log entries as bytes. The first byte is the kind, as the library numbers them; the rest is ours.

An entry of ops is ``kind, length of the origins, origins, machine entry``. The origins say which proposal of which node
each stretch of ops answers, so every node finds the results of its own callers when it applies the entry, and no
reply message can be lost. The machine entry is what ``machine.apply`` gets.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

import msgpack

__all__ = [
    "KIND_MEMBERS",
    "KIND_NOOP",
    "KIND_OPS",
    "NOOP",
    "OLDEST_VERSION",
    "Origin",
    "decode_members",
    "decode_ops",
    "encode_members",
    "encode_ops",
    "join_ops",
    "version_of",
]

KIND_OPS = 0
KIND_NOOP = 1
KIND_MEMBERS = 2
NOOP = bytes((KIND_NOOP,))
# Of the machine's part of an entry: what a node reads that says nothing else.
OLDEST_VERSION = 1

_KIND_OPS = bytes((KIND_OPS,))
_KIND_MEMBERS = bytes((KIND_MEMBERS,))
_LENGTH = Struct(">I")
_STAMP = Struct(">BQBQBI")
# Of the machine's part: an array of four, and its version.
_MACHINE_ARRAY = 0x94
_BODY_AT = 1 + _LENGTH.size


class Origin(NamedTuple):
    """Whose ops these are: proposal ``number`` of one incarnation of a node, ``ops`` ops long."""

    node: str
    incarnation: int
    number: int
    ops: int


def join_ops(ops: Iterable[bytes]) -> bytes:
    """Packed ops as the inside of a msgpack array of byte strings: such pieces join by concatenation."""
    pack = msgpack.Packer().pack
    return b"".join([pack(op) for op in ops])


def encode_ops(
    origins: Sequence[Origin], clock_ms: int, wall_ms: int, ops: Sequence[bytes], version: int = OLDEST_VERSION
) -> bytes:
    """The entry that a leader appends; ``ops`` are pieces made by ``join_ops``, one an origin."""
    head: bytes = msgpack.packb(origins)
    count = sum(origin.ops for origin in origins)
    stamp = _STAMP.pack(0xCF, clock_ms, 0xCF, wall_ms, 0xDD, count)
    return b"".join((_KIND_OPS, _LENGTH.pack(len(head)), head, bytes((_MACHINE_ARRAY, version)), stamp, *ops))


def decode_ops(command: bytes) -> tuple[list[Origin], bytes]:
    """The origins, and the machine's part."""
    (length,) = _LENGTH.unpack_from(command, 1)
    body_at = _BODY_AT + length
    origins = [Origin(*origin) for origin in msgpack.unpackb(command[_BODY_AT:body_at])]
    return origins, command[body_at:]


def version_of(entry: bytes) -> int:
    """The version of the machine's part; it stands at the same place in all of them.

    >>> version_of(decode_ops(encode_ops([], 0, 0, [], version=2))[1])
    2
    """
    return entry[1]


def encode_members(members: Mapping[str, str]) -> bytes:
    """A change of membership: the whole new configuration, node id to address, not the difference."""
    return _KIND_MEMBERS + bytes(msgpack.packb(sorted(members.items())))


def decode_members(command: bytes) -> dict[str, str]:
    """The configuration that an entry carries."""
    return {str(node): str(address) for node, address in msgpack.unpackb(command[1:])}
