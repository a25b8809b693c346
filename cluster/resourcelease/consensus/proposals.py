"""The proposals of this node's callers, from the call to the answer, and the queue of a leader.

A proposal is sent again under the same number and bytes until it is answered or its deadline passes. It may thus be in
the log twice; the machine answers the second from what it remembers of the first.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from resourcelease.consensus.api import NoLeader, OutcomeUnknown
from resourcelease.consensus.entries import Origin

__all__ = ["Pending", "Proposals", "Queue", "forwarded"]

# How often the proposals under way are looked through for those to send again.
_REVIEW_S = 0.1
_NEVER = float("inf")


@dataclass(slots=True)
class Pending:
    """One proposal that waits for its answer."""

    number: int
    count: int
    ops: bytes
    deadline: float
    # To whom it went last, in which term, over which connection; None if it never left.
    sent_to: tuple[str, int, int] | None = None
    sent_at: float = 0.0

    def too_late(self) -> Exception:
        """What its caller is told when there was no answer in time."""
        if self.sent_to:
            return OutcomeUnknown("no answer before the deadline; ask again under the same operation ids")
        return NoLeader("no leader was found before the deadline; nothing was done, propose it again")


class Proposals:
    """What this node's callers wait for, by number."""

    def __init__(self, retry_s: float) -> None:
        self._retry_s = retry_s
        self._pending: dict[int, Pending] = {}
        self._fresh: deque[Pending] = deque()
        self._route: tuple[str, int, int] | None = None
        self._review_at = 0.0
        # No deadline is earlier. It may lag behind, so that a turn need not look through all that wait.
        self._earliest = _NEVER
        self._count = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, count: int, ops: bytes, deadline: float) -> int:
        """A new proposal; its number counts from 1 in each run of the node."""
        self._count += 1
        pending = Pending(self._count, count, ops, deadline)
        self._pending[pending.number] = pending
        self._earliest = min(self._earliest, deadline)
        self._fresh.append(pending)
        return pending.number

    def answered(self, number: int) -> bool:
        """Its entry was applied; False if nobody waits any more."""
        return self._pending.pop(number, None) is not None

    def expired(self, now: float) -> list[Pending]:
        """Those whose deadline has passed; they are forgotten."""
        if now < self._earliest:
            return []
        late = [pending for pending in self._pending.values() if pending.deadline <= now]
        for pending in late:
            del self._pending[pending.number]
        self._earliest = min((pending.deadline for pending in self._pending.values()), default=_NEVER)
        return late

    def to_send(self, route: tuple[str, int, int] | None, now: float) -> Iterator[Pending]:
        """What should go to the leader now: what is new, and what went to another one, or long ago."""
        if route is None:
            self._route = None
            return
        if route != self._route or now >= self._review_at:
            self._route = route
            self._review_at = now + _REVIEW_S
            self._fresh.clear()
            due = [p for p in self._pending.values() if p.sent_to != route or now - p.sent_at >= self._retry_s]
        else:
            due = [p for p in self._fresh if p.number in self._pending]
            self._fresh.clear()
        for pending in due:
            pending.sent_to = route
            pending.sent_at = now
            yield pending

    def next_deadline(self, now: float) -> float:
        """When to look again."""
        if not self._pending:
            return _NEVER
        return min(self._earliest, max(self._review_at, now))


def forwarded(due: Iterable[Pending], bytes_max: int) -> Iterator[list[tuple[int, int, bytes]]]:
    """What a leader is sent of proposals: number, count of ops, and ops; each list for one message."""
    batch: list[tuple[int, int, bytes]] = []
    size = 0
    for pending in due:
        if batch and size + len(pending.ops) > bytes_max:
            yield batch
            batch, size = [], 0
        batch.append((pending.number, pending.count, pending.ops))
        size += len(pending.ops)
    if batch:
        yield batch


class Queue:
    """What a leader has been handed and has not yet appended; each proposal once, however often it was sent."""

    def __init__(self) -> None:
        self._queue: deque[tuple[Origin, bytes]] = deque()
        # Queued, or appended and not yet applied.
        self._known: set[tuple[str, int, int]] = set()
        # Of those appended: how many ops, and bytes.
        self._under_way: dict[tuple[str, int, int], tuple[int, int]] = {}
        self.ops_under_way = 0
        self.bytes_under_way = 0

    def __bool__(self) -> bool:
        return bool(self._queue)

    def offer(self, origin: Origin, ops: bytes) -> None:
        """Takes a proposal unless it is under way."""
        key = origin[:3]
        if key not in self._known:
            self._known.add(key)
            self._queue.append((origin, ops))

    def take(self, bytes_max: int, ops_max: int) -> list[tuple[Origin, bytes]]:
        """As many as fit into one entry, at least one, in order."""
        taken: list[tuple[Origin, bytes]] = []
        size = count = 0
        while self._queue:
            origin, ops = self._queue[0]
            size += len(ops)
            count += origin.ops
            if taken and (size > bytes_max or count > ops_max):
                break
            taken.append(self._queue.popleft())
            self._under_way[origin[:3]] = origin.ops, len(ops)
            self.ops_under_way += origin.ops
            self.bytes_under_way += len(ops)
        return taken

    def applied(self, origin: Origin) -> None:
        """It is done; sent again, it is answered by the machine."""
        self._known.discard(origin[:3])
        ops, size = self._under_way.pop(origin[:3], (0, 0))
        self.ops_under_way -= ops
        self.bytes_under_way -= size

    def clear(self) -> None:
        """This node no longer leads; the proposers will turn to the next leader."""
        self._queue.clear()
        self._known.clear()
        self._under_way.clear()
        self.ops_under_way = self.bytes_under_way = 0
