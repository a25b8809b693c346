"""Books about every item: whether each was completed once, and by its owner."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

__all__ = ["SHIFT", "Ledger", "Wrong", "judge", "numbers"]

# An item's number is its client process's number and a count.
SHIFT = 40


class Wrong(Exception):
    """A peer, or its adapter, did what a queue must not do."""


def numbers(client: int, first: int, many: int) -> range:
    """The next numbers of a client."""
    return range((client << SHIFT) + first, (client << SHIFT) + first + many)


class Ledger:
    """What one client process saw. A number is granted to a worker, and completed by it or it was an error."""

    def __init__(self, client: int) -> None:
        self._client = client
        self._next = 0
        # Arrays are nothing to Python's garbage collector. Of lists it would look at each number again and again, and
        # stop the client for it: the longer, the more a peer has got done.
        self.enqueued = array("q")
        self.completed = array("q")
        self.faults: list[str] = []
        self._held: dict[int, str] = {}

    def draw(self, many: int) -> range:
        """Numbers for new items."""
        drawn = numbers(self._client, self._next, many)
        self._next += many
        return drawn

    def note_enqueued(self, items: Iterable[int]) -> None:
        """The peer has confirmed them."""
        self.enqueued.extend(items)

    def note_leased(self, items: Iterable[int], owner: str) -> None:
        """A worker was granted them; nobody else may hold them."""
        for item in items:
            if item in self._held:
                self.faults.append(f"item {item} was leased to {owner} while {self._held[item]} held it")
            self._held[item] = owner

    def note_completed(self, items: Iterable[int], owner: str) -> None:
        """The peer has confirmed the end, to this worker."""
        for item in items:
            if self._held.pop(item, None) != owner:
                self.faults.append(f"item {item} was completed by {owner}, who did not hold it")
            self.completed.append(item)

    def summary(self) -> dict[str, Any]:
        """For the judge, as JSON."""
        return {"enqueued": self.enqueued.tolist(), "completed": self.completed.tolist(), "faults": self.faults}


def judge(
    summaries: Sequence[dict[str, Any]], *, backlog: Sequence[range] = (), left: int = 0, lax: bool = False
) -> None:
    """Raises ``Wrong`` unless each item that was confirmed was completed exactly once, or is left where it was.

    ``backlog`` was there before; ``left`` is how many items the peer says are still there. With ``lax``, answers may
    have been lost: items may have been added that nobody knows of.

    >>> judge([{"enqueued": [1, 2], "completed": [2], "faults": []}, {"enqueued": [], "completed": [1], "faults": []}])
    """
    faults = [fault for summary in summaries for fault in summary["faults"]]
    enqueued = Counter(item for summary in summaries for item in summary["enqueued"])
    completed = Counter(item for summary in summaries for item in summary["completed"])
    before = sum(len(items) for items in backlog)
    if not lax:
        faults += [f"item {item} was completed {times} times" for item, times in completed.items() if times > 1]
        strangers = [item for item in completed if item not in enqueued and not any(item in part for part in backlog)]
        faults += [f"item {item} was completed, but never confirmed as enqueued" for item in strangers]
        expected = before + enqueued.total() - completed.total()
        if expected != left:
            faults.append(f"{left} items are left, and should be {expected}")
    elif not left:
        faults += [f"item {item} was confirmed and never came back" for item in enqueued if item not in completed]
    if faults:
        more = f" (and {len(faults) - 3} more)" if len(faults) > 3 else ""
        raise Wrong("; ".join(faults[:3]) + more)
