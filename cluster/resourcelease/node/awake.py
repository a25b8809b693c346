"""A node's loop does not go to sleep between entries that come one right after the other.

To sleep and be woken costs the entry that comes next: tens of microseconds in a virtual machine, whose processor is
given away at once, and several times in each life of an item. So after an entry the loop looks whether something came,
and looks again, for a moment, where entries have come within such a moment of each other for a while; unless somebody
else wants the processor.
"""

import asyncio
import os
import time
from collections.abc import Callable

__all__ = ["Awake"]

# So many entries must have come one right after the other. One that is late halves what is counted, of at most so many.
_IN_A_ROW = 4
_COUNTED_MAX = 16
_MOMENT_S = 0.0015
# Who was away for longer than this has let somebody through.
_WANTED_S = 0.00002
_let_others_through: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


class Awake:
    """Keeps the loop that it is made in awake for a moment after each entry, while they come so fast."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._last = self._until = float("-inf")
        self._in_a_row = 0
        self._looking = False

    def stirred(self) -> None:
        """An entry was applied."""
        last, self._last = self._last, self._clock()
        late = self._last - last > _MOMENT_S
        self._in_a_row = self._in_a_row // 2 if late else min(self._in_a_row + 1, _COUNTED_MAX)
        if self._in_a_row >= _IN_A_ROW:
            self._until = self._last + _MOMENT_S
            if not self._looking:
                self._looking = True
                self._loop.call_soon(self._look)

    def _look(self) -> None:
        now = self._clock()
        if now < self._until:
            _let_others_through()
            if self._clock() - now < _WANTED_S:
                self._loop.call_soon(self._look)
                return
        self._looking = False
