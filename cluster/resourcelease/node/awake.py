"""A node's loop does not go to sleep between entries that come one right after the other.

To sleep and be woken costs the entry that comes next: tens of microseconds in a virtual machine, whose processor is
given away at once, and several times in each life of an item. So after an entry the loop looks whether something came,
and looks again, for a moment, where entries have come within such a moment of each other for a while; unless somebody
else wants the processor, or the process may use only so much of one: what it spent on looking it would lack for work.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from resourcelease.consensus.service import give_way

__all__ = ["Awake", "is_rationed"]

# So many entries must have come one right after the other. One that is late quarters what is counted, of at most so
# many: one among many is forgiven, a few at a time are never enough.
_IN_A_ROW = 8
_COUNTED_MAX = 4 * _IN_A_ROW
_MOMENT_S = 0.0015
# Whoever was away for so long has let somebody work; for so long, and several times in a row, another loop that only
# looks, too.
_WORK_S = 0.00002
_LOOK_S = 0.0000025
_LOOKS = 4


class Awake:
    """Keeps the loop that it is made in awake for a moment after each entry, while they come so fast."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._last = self._until = float("-inf")
        self._in_a_row = 0
        self._looking = False
        # How many times in a row somebody else has had a look.
        self._others = 0

    def stirred(self) -> None:
        """An entry was applied."""
        last, self._last = self._last, self._clock()
        late = self._last - last > _MOMENT_S
        self._in_a_row = self._in_a_row // 4 if late else min(self._in_a_row + 1, _COUNTED_MAX)
        if self._in_a_row >= _IN_A_ROW:
            self._until = self._last + _MOMENT_S
            if not self._looking:
                self._looking = True
                self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        now = self._clock()
        if now >= self._until:
            return
        give_way()
        away = self._clock() - now
        self._others = self._others + 1 if away > _LOOK_S else 0
        if away < _WORK_S and self._others < _LOOKS:
            self._looking = True
            self._loop.call_soon(self._look)


def is_rationed(groups: Path = Path("/proc/self/cgroup"), mounted: Path = Path("/sys/fs/cgroup")) -> bool:
    """Whether this process may use a processor for a part of the time only, as far as Linux tells."""
    lines: list[str] = []
    with suppress(OSError):
        lines = groups.read_text().splitlines()
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        bases = [mounted / controllers, mounted / "cpu"] if controllers else [mounted, mounted / "unified"]
        group = Path(path.strip("/"))
        if any(_has_quota(base / each) for base in bases for each in (group, *group.parents)):
            return True
    return False


def _has_quota(group: Path) -> bool:
    for name in ("cpu.max", "cpu.cfs_quota_us"):
        with suppress(OSError):
            if (group / name).read_text().partition(" ")[0].strip().isdigit():
                # The older one is -1, the newer one "max", where there is none.
                return True
    return False
