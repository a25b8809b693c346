"""The queue of pending items: one lane a priority, each in the order of tickets."""

from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterator

from resourcelease.model.limits import PRIORITIES

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Ids of pending items, kept as runs ``[first, end)`` of consecutive ids.

    Items leave at the front only: every way out of the queue takes the first ones.
    """

    __slots__ = ("_lanes", "size")

    def __init__(self) -> None:
        self._lanes: list[deque[list[int]]] = [deque() for _ in range(PRIORITIES)]
        self.size = 0

    def __iter__(self) -> Iterator[int]:
        for lane in reversed(self._lanes):
            for first, end in lane:
                yield from range(first, end)

    def append(self, priority: int, sequence_id: int) -> None:
        """Puts one item at the tail of its lane."""
        self.append_run(priority, sequence_id, 1)

    def append_run(self, priority: int, first_id: int, size: int) -> None:
        """Puts consecutive ids at the tail of their lane."""
        lane = self._lanes[priority]
        if lane and lane[-1][1] == first_id:
            lane[-1][1] += size
        else:
            lane.append([first_id, first_id + size])
        self.size += size

    def first(self, limit: int) -> list[int]:
        """The ids that are next in line, without taking them."""
        ids: list[int] = []
        for lane in reversed(self._lanes):
            for first, end in lane:
                ids += range(first, min(end, first + limit - len(ids)))
                if len(ids) >= limit:
                    return ids
        return ids

    def take(self, count: int) -> list[int]:
        """Takes the next ``count`` out."""
        ids = self.first(count)
        left = len(ids)
        self.size -= left
        for lane in reversed(self._lanes):
            while lane and left:
                run = lane[0]
                length = min(left, run[1] - run[0])
                run[0] += length
                left -= length
                if run[0] == run[1]:
                    lane.popleft()
            if not left:
                break
        return ids

    def put_back(self, priority: int, sequence_id: int, ticket: int, ticket_of: Callable[[int], int]) -> None:
        """Puts an item where its ticket belongs. Only items put back before it can stand ahead, so that is near."""
        lane = self._lanes[priority]
        ahead = 0
        for run in lane:
            if ticket_of(run[1] - 1) > ticket:
                break
            ahead += 1
        lane.rotate(-ahead)
        if lane and ahead < len(lane) and ticket_of(lane[0][0]) < ticket:
            # Its place is inside a run: of ids that follow each other, but came into line one by one.
            run = lane[0]
            split = run[0] + bisect(range(run[0], run[1]), ticket, key=ticket_of)
            lane.appendleft([run[0], split])
            run[0] = split
            lane.rotate(-1)
            ahead += 1
        lane.appendleft([sequence_id, sequence_id + 1])
        lane.rotate(ahead)
        self.size += 1

    def ahead_of(self, priority: int, sequence_id: int) -> int:
        """How many items go before one that is in the queue."""
        ahead = self.above(priority)
        for first, end in self._lanes[priority]:
            if first <= sequence_id < end:
                return ahead + sequence_id - first
            ahead += end - first
        raise KeyError(sequence_id)

    def above(self, priority: int) -> int:
        """How many items have a higher priority."""
        lanes = self._lanes[priority + 1 : PRIORITIES]
        return sum(end - first for lane in lanes for first, end in lane)
