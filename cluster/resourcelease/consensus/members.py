"""The configuration as a function of the log.

A configuration holds from the moment its entry is in the log, committed or not, and ceases to hold when that entry is
cut. So it is never changed by hand: it is looked up in the log that is there, also after a restart or a snapshot.
"""

from collections.abc import Mapping

import msgpack

from resourcelease.consensus.entries import KIND_MEMBERS, decode_members

__all__ = ["MEMBERS_ROW", "Membership", "pack_members", "unpack_members"]

# The configuration as of the stored rows stands among them, out of the way of the machine's own keys.
MEMBERS_ROW = b"\x00consensus/members"


def pack_members(members: Mapping[str, str]) -> bytes:
    """The row's value."""
    packed: bytes = msgpack.packb(sorted(members.items()))
    return packed


def unpack_members(value: bytes) -> dict[str, str]:
    """Back from the row."""
    return {str(node): str(address) for node, address in msgpack.unpackb(value)}


class Membership:
    """Which nodes make up the cluster: id to address, by log index.

    >>> from resourcelease.consensus.entries import encode_members
    >>> membership = Membership(0, {"a": "host:1"})
    >>> membership.appended(7, encode_members({"a": "host:1", "b": "host:2"}))
    True
    >>> sorted(membership.current), sorted(membership.at(6))
    (['a', 'b'], ['a'])
    """

    def __init__(self, index: int, members: Mapping[str, str]) -> None:
        # Ascending by index; the first is the base and never goes.
        self._history: list[tuple[int, dict[str, str]]] = [(index, dict(members))]

    def is_alone(self, node: str) -> bool:
        """Whether the configuration is this node and no other."""
        members = self._history[-1][1]
        return len(members) == 1 and node in members

    @property
    def current(self) -> Mapping[str, str]:
        """What holds now."""
        return self._history[-1][1]

    @property
    def changed_at(self) -> int:
        """Index of the entry that it comes from."""
        return self._history[-1][0]

    def at(self, index: int) -> Mapping[str, str]:
        """What held at an index not below the base."""
        for changed_at, members in reversed(self._history):
            if changed_at <= index:
                return members
        return self._history[0][1]

    def appended(self, index: int, command: bytes) -> bool:
        """An entry came; True if it changed the configuration."""
        if command[0] != KIND_MEMBERS:
            return False
        self._history.append((index, decode_members(command)))
        return True

    def truncated(self, index: int) -> bool:
        """Entries from ``index`` on are gone; True if that changed the configuration."""
        before = len(self._history)
        while len(self._history) > 1 and self._history[-1][0] >= index:
            self._history.pop()
        return len(self._history) != before

    def compacted(self, index: int) -> None:
        """What came before the configuration at ``index`` will not be asked for again."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            self._history.pop(0)

    def reset(self, index: int, members: Mapping[str, str]) -> None:
        """A snapshot brought its own."""
        self._history = [(index, dict(members))]
