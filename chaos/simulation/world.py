"""Virtual time: what happens, happens because it is on this calendar."""

import random
from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

__all__ = ["World"]

# How often it is asked whether what is waited for has come.
_ASK_S = 0.005


class World:
    """The calendar, the seed's randomness, the count of faults, and the story that is told with ``--trace``."""

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        # Seconds since the start of the run.
        self.now = 0.0
        # What has gone wrong so far, by kind.
        self.faults: Counter[str] = Counter()
        self._calendar: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self._tell = tell

    def at(self, when: float, what: Callable[..., None], *args: Any) -> None:
        """Calls ``what(*args)`` at a time; in the order of the calls where times are equal."""
        self._count += 1
        heappush(self._calendar, (when if when > self.now else self.now, self._count, what, args))

    def after(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        """The same, from now."""
        now = self.now
        self._count += 1
        heappush(self._calendar, (now + delay_s if delay_s > 0.0 else now, self._count, what, args))

    def run_until(self, when: float, done: Callable[[], bool] | None = None) -> bool:
        """Lives until a time, or until ``done()``, which is asked every now and then; True if it was done."""
        calendar = self._calendar
        ask_at = self.now if done is not None else float("inf")
        while calendar and calendar[0][0] <= when:
            now, _, what, args = heappop(calendar)
            self.now = now
            what(*args)
            if now >= ask_at and done is not None:
                if done():
                    return True
                ask_at = now + _ASK_S
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
