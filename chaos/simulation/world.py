"""Virtual time: what happens, happens because it is on this calendar."""

import heapq
import random
from collections.abc import Callable
from typing import Any

__all__ = ["World"]


class World:
    """The calendar, the seed's randomness, and the story that is told with ``--trace``."""

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        # Seconds since the start of the run.
        self.now = 0.0
        self._calendar: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._tell = tell

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Calls ``what(*args)`` at a time; in the order of the calls where times are equal."""
        self._count += 1
        heapq.heappush(self._calendar, (max(when, self.now), self._count, what, args))

    def after(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        """The same, from now."""
        self.at(self.now + delay_s, what, *args)

    def run_until(self, when: float, done: Callable[[], bool] | None = None) -> bool:
        """Lives until a time, or until ``done()``; True if it was done."""
        calendar = self._calendar
        while calendar and calendar[0][0] <= when:
            self.now, _, what, args = heapq.heappop(calendar)
            what(*args)
            if done is not None and done():
                return True
        self.now = when
        return False

    @property
    def telling(self) -> bool:
        """Whether anybody listens."""
        return self._tell is not None

    def tell(self, who: str, text: str) -> None:
        """One line of the story."""
        if self._tell is not None:
            self._tell(f"{self.now:9.4f}  {who:>8}  {text}")
