"""Digests over the whole state, taken on all nodes at one place of the log, also while it goes on.

The leader names an index a little ahead, and each node takes the digest when the first entry at or behind it has been
applied: which entry that is the log decides, so it is the same on all.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping

from resourcelease.consensus import Machines
from resourcelease.machine import Machine
from resourcelease.machine.machine import Applied

__all__ = ["StateWatch", "judged"]

# A digest is computed while everything else waits; of more items than this it is not.
_ITEMS_MAX = 50_000
_KEPT = 16


class StateWatch:
    """One node's part in it. Belongs to the loop."""

    def __init__(self) -> None:
        self._wanted = 0
        # By the index that was named: the index of the entry that was then applied, and the digest in hex.
        self._taken: OrderedDict[int, str] = OrderedDict()
        self._news = asyncio.Event()

    def machines(self, cluster_id: str) -> Machines:
        """Machines that are watched."""

        def watched(machine: "_Watched") -> Machine:
            machine.watch = self
            return machine

        return Machines(lambda: watched(_Watched(cluster_id)), lambda rows: watched(_loaded(rows)))

    def want(self, machine: Machine, index: int) -> None:
        """Takes the digest at an index; one that has been passed is missed."""
        if machine.applied_index < index:
            self._wanted = index
        elif machine.applied_index == index:
            self._wanted = index
            self.look(machine)

    def look(self, machine: Machine) -> None:
        """An entry was applied."""
        if not self._wanted or machine.applied_index < self._wanted:
            return
        index, self._wanted = self._wanted, 0
        queues = [queue for name in machine.namespaces() if (queue := machine.queue(name)) is not None]
        items = sum(each.pending + each.delayed + each.active + each.dead for each in queues)
        if items <= _ITEMS_MAX:
            self._taken[index] = f"{machine.applied_index}:{machine.digest().hex()}"
            if len(self._taken) > _KEPT:
                self._taken.popitem(last=False)
        self._news.set()

    async def digest_at(self, index: int, patience_s: float) -> str:
        """The digest at an index, which this node may yet have to hear of; "" if it has none in time."""
        try:
            async with asyncio.timeout(patience_s):
                while index not in self._taken:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        return self._taken.get(index, "")


class _Watched(Machine):
    """A machine that says when an entry has been applied."""

    watch: StateWatch | None = None

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """Applies one entry."""
        applied = super().apply(index, term, data)
        if self.watch is not None:
            self.watch.look(self)
        return applied


def _loaded(rows: Iterable[tuple[bytes, bytes]]) -> _Watched:
    machine = _Watched.load_rows(rows)
    assert isinstance(machine, _Watched)
    return machine


def judged(own: str, digests: Mapping[str, str]) -> int:
    """How many of all members agree on another digest than the own one; 0 if they are no majority.

    >>> judged("a", {"n1": "a", "n2": "b", "n3": "b"}), judged("a", {"n1": "a", "n2": "b", "n3": ""})
    (2, 0)
    """
    told = Counter(digest for digest in digests.values() if digest)
    if not own or not told:
        return 0
    usual, votes = told.most_common(1)[0]
    return votes if usual != own and votes * 2 > len(digests) else 0
