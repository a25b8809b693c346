"""The queue of pending items: one lane a priority, each in the order of tickets."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from resourcelease.model.limits import PRIORITIES

__all__ = ["ReadyQueue"]


class ReadyQueue:
    """Ids of pending items. They leave at the front only: every way out of the queue takes the first ones."""

    __slots__ = ("_lanes", "size")

    def __init__(self) -> None:
        self._lanes: list[deque[int]] = [deque() for _ in range(PRIORITIES)]
        self.size = 0

    def __iter__(self) -> Iterator[int]:
        for lane in reversed(self._lanes):
            yield from lane

    def lane(self, priority: int) -> Sequence[int]:
        """The ids of one priority, first in line first."""
        return self._lanes[priority]

    def append(self, priority: int, sequence_ids: Sequence[int]) -> None:
        """Puts items at the tail of their lane."""
        self._lanes[priority].extend(sequence_ids)
        self.size += len(sequence_ids)

    def first(self, limit: int) -> list[int]:
        """The ids that are next in line, without taking them."""
        taken: list[int] = []
        for lane in reversed(self._lanes):
            if lane:
                taken += islice(lane, limit - len(taken))
                if len(taken) >= limit:
                    break
        return taken

    def take(self, count: int) -> list[int]:
        """Takes the next ``count`` out."""
        taken: list[int] = []
        for lane in reversed(self._lanes):
            if lane:
                pop = lane.popleft
                taken += [pop() for _ in range(min(count - len(taken), len(lane)))]
                if len(taken) >= count:
                    break
        self.size -= len(taken)
        return taken

    def put_back(self, sequence_id: int, priority: int, ticket: int, ticket_of: Callable[[int], int]) -> None:
        """Puts an item where its ticket belongs. Only items put back before it can stand ahead, so that is near."""
        lane = self._lanes[priority]
        ahead = 0
        for other in lane:
            if ticket_of(other) > ticket:
                break
            ahead += 1
        lane.rotate(-ahead)
        lane.appendleft(sequence_id)
        lane.rotate(ahead)
        self.size += 1
