"""What the machine has given to be stored of late, so that its rows at one place of the log can be told.

Rows are written behind, when it suits the node, so those on disk stand for another place on each node. Yet the rows on
disk, with what has changed since laid over them, are the rows of now: to know those of one entry it is enough to take
the changes once when that entry has been applied, and to keep later ones from the disk until it has been looked at.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

__all__ = ["HeldLog", "Take", "Takes", "laid_over"]

Row = tuple[bytes, bytes]


class Take(NamedTuple):
    """Rows that changed up to an entry."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    puts: Sequence[Row]
    deletes: Sequence[bytes]


class Takes:
    """The changes that the disk may not have yet. Belongs to the loop."""

    def __init__(self, stored_index: Callable[[], int]) -> None:
        self._stored_index = stored_index
        # Oldest first; those that are surely on disk are forgotten when the next comes.
        self._recent: list[Take] = []
        # The last of them that were taken for a look only, and have yet to be given to whoever stores.
        self._early = 0
        # The entries that somebody looks at: rows of later ones stay away from the disk.
        self._held: list[int] = []
        # Rows on disk of before this entry are those of another machine.
        self.floor = 0

    def restart(self, index: int) -> None:
        """Another machine took over, whose rows stand for an entry."""
        self._recent.clear()
        self._early = 0
        self.floor = index

    def stored(self, take: Take) -> Take:
        """These changes are about to be stored; with those that were taken early, which go along."""
        stored = self._stored_index()
        early = self._recent[len(self._recent) - self._early :]
        self._early = 0
        self._recent = [each for each in self._recent if each.index > stored]
        self._recent.append(take)
        if not early:
            return take
        changes = _summed([*early, take])
        puts = [(key, value) for key, value in changes.items() if value is not None]
        return Take(take.index, puts, [key for key, value in changes.items() if value is None])

    def look(self, take: Take) -> tuple[Take, ...]:
        """These changes were taken for a look; all that the disk may lack of this place. ``let_go`` follows."""
        self._recent.append(take)
        self._early += 1
        self._held.append(take.index)
        return tuple(self._recent)

    def let_go(self, index: int) -> None:
        """The look is over."""
        self._held.remove(index)

    def storable(self, durable_index: int) -> int:
        """How far rows may be stored, of a log that is durable so far."""
        return min(durable_index, *self._held) if self._held else durable_index


class _Log(Protocol):
    @property
    def durable_index(self) -> int: ...

    def hurry(self) -> None: ...


class HeldLog:
    """A log of events that seems durable no further than rows may be stored."""

    def __init__(self, log: _Log, takes: Takes) -> None:
        self._log = log
        self._takes = takes

    @property
    def durable_index(self) -> int:
        """As consensus asks for it."""
        return self._takes.storable(self._log.durable_index)

    def hurry(self) -> None:
        """Somebody waits."""
        self._log.hurry()


def laid_over(rows: Iterable[Row], takes: Iterable[Take]) -> Iterator[Row]:
    """Rows in the order of their keys, with what changed since.

    >>> list(laid_over([(b"a", b"1"), (b"c", b"3")], [Take(9, [(b"b", b"2"), (b"c", b"4")], [b"a"])]))
    [(b'b', b'2'), (b'c', b'4')]
    """
    changes = _summed(takes)
    keys = sorted(changes, reverse=True)
    for row in rows:
        while keys and keys[-1] < row[0]:
            yield from _there(keys[-1], changes[keys.pop()])
        if keys and keys[-1] == row[0]:
            yield from _there(row[0], changes[keys.pop()])
        else:
            yield row
    while keys:
        yield from _there(keys[-1], changes[keys.pop()])


def _there(key: bytes, value: bytes | None) -> Iterator[Row]:
    if value is not None:
        yield key, value


def _summed(takes: Iterable[Take]) -> Mapping[bytes, bytes | None]:
    changes: dict[bytes, bytes | None] = {}
    for take in takes:
        changes.update(take.puts)
        changes.update(dict.fromkeys(take.deletes))
    return changes
