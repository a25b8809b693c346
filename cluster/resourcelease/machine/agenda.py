"""When something falls due: the ends of leases, and of delays."""

from heapq import heapify, heappop, heappush
from typing import NamedTuple

__all__ = ["Delay", "Delays", "Hold", "Leases"]


class Hold:
    """Leases that were granted, or extended, together: one owner, one deadline."""

    __slots__ = (
        "_fences_by_id",
        "_lead",
        "deadline_ms",
        "due_ms",
        "fences",
        "live",
        "namespace",
        "peer",
        "principal",
        "sequence_ids",
    )

    def __init__(
        self, namespace: str, peer: str, principal: str, deadline_ms: int, sequence_ids: list[int], fences: list[int]
    ) -> None:
        self.namespace = namespace
        self.peer = peer
        self.principal = principal
        self.deadline_ms = deadline_ms
        self.sequence_ids = sequence_ids
        self.fences = fences
        # How many of them still stand under this hold; the others ended, or were extended into a later one.
        self.live = len(sequence_ids)
        # Where the agenda keeps it: the deadline, or later if the owner's heartbeat covers it.
        self.due_ms = deadline_ms
        # Consecutive fences of consecutive ids are told by the distance between the two.
        self._lead = fences[0] - sequence_ids[0]
        self._fences_by_id: dict[int, int] | None = None
        if not (_is_run(sequence_ids) and _is_run(fences)):
            self._fences_by_id = dict(zip(sequence_ids, fences, strict=True))

    @property
    def is_run(self) -> bool:
        """Whether ids and fences are consecutive."""
        return self._fences_by_id is None

    def fence_of(self, sequence_id: int) -> int:
        """The fence of one of its leases."""
        by_id = self._fences_by_id
        return sequence_id + self._lead if by_id is None else by_id[sequence_id]


def _is_run(numbers: list[int]) -> bool:
    if len(numbers) == 1:
        return True
    first, last = numbers[0], numbers[-1]
    return last - first == len(numbers) - 1 and numbers == list(range(first, last + 1))


class Leases:
    """Holds by the time they are due, kept exact: a hold leaves when its last lease does."""

    __slots__ = ("_buckets", "_order")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Hold, None]] = {}
        self._order: list[int] = []

    def add(self, hold: Hold, due_ms: int) -> None:
        """Notes a hold under a time."""
        hold.due_ms = due_ms
        bucket = self._buckets.get(due_ms)
        if bucket is None:
            bucket = self._buckets[due_ms] = {}
            heappush(self._order, due_ms)
            if len(self._order) > 2 * len(self._buckets) + 16:
                self._order = list(self._buckets)
                heapify(self._order)
        bucket[hold] = None

    def end(self, hold: Hold, count: int) -> None:
        """``count`` leases of the hold are over."""
        hold.live -= count
        if not hold.live:
            bucket = self._buckets[hold.due_ms]
            del bucket[hold]
            if not bucket:
                del self._buckets[hold.due_ms]

    def due(self, clock_ms: int) -> list[Hold]:
        """The holds whose time has come, in no order that may matter. The caller ends or postpones each at once."""
        order = self._order
        holds: dict[Hold, None] = {}
        while order and order[0] <= clock_ms:
            holds.update(self._buckets.get(heappop(order), {}))
        return list(holds)

    def postpone(self, hold: Hold, due_ms: int) -> None:
        """Moves a hold to a later time."""
        bucket = self._buckets[hold.due_ms]
        del bucket[hold]
        if not bucket:
            del self._buckets[hold.due_ms]
        self.add(hold, due_ms)

    def next_ms(self) -> int | None:
        """The earliest time at which a hold may be due."""
        order = self._order
        while order and order[0] not in self._buckets:
            heappop(order)
        return order[0] if order else None


class Delay(NamedTuple):
    """An item that waits for its time. Tickets are unique, so the order never depends on what follows them."""

    due_ms: int
    ticket: int
    sequence_id: int
    namespace: str


class Delays:
    """Delayed items of all namespaces by the time they are due."""

    __slots__ = ("_noted", "_order")

    def __init__(self) -> None:
        # By ticket; what was taken out is skipped when it comes up in the order.
        self._noted: dict[int, Delay] = {}
        self._order: list[Delay] = []

    def add(self, delay: Delay) -> None:
        """Notes an item."""
        self._noted[delay.ticket] = delay
        heappush(self._order, delay)
        if len(self._order) > 2 * len(self._noted) + 16:
            self._order = list(self._noted.values())
            heapify(self._order)

    def remove(self, ticket: int) -> None:
        """Forgets an item that is no longer delayed."""
        del self._noted[ticket]

    def due(self, clock_ms: int) -> list[Delay]:
        """The items whose time has come, by (due, ticket). The caller removes each at once."""
        taken = []
        while (next_ms := self.next_ms()) is not None and next_ms <= clock_ms:
            taken.append(heappop(self._order))
        return taken

    def next_ms(self) -> int | None:
        """When the next item is due."""
        order = self._order
        while order and order[0].ticket not in self._noted:
            heappop(order)
        return order[0].due_ms if order else None
