"""A leader's loop stays on one processor, where that makes it wait less.

A loop that is woken thousands of times a second, each time for a little, is moved from processor to processor by a
system that means well: to where it was woken from, to where nobody runs just now. Each time it finds caches that hold
nothing of its own. So the thread of a leader's loop, and no other one, keeps to the processor that it runs on. It is
measured whether that does any good: if the thread waits for its processor longer than it did when it was free, it is
let go, for longer each time.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

__all__ = ["HERE", "Keeper", "Place", "Processor", "ThisThread", "Times", "keep_still"]

logger = logging.getLogger(__name__)

# How often it is looked at.
LOOK_S = 0.25
# A thread that neither ran nor wanted to run for this part of the time tells nothing.
_BUSY = 0.02
# So many looks it is free before it is kept, to know what that is like. Each time it had to be let go it is twice as
# many, up to about a minute.
_FREE_LOOKS = 2
_REST_MAX = 256
# Kept for so many looks, it is in its place.
_SETTLED_LOOKS = 240
# What it may wait while it is kept, of the time that it runs or waits: so much in any case, and this many times what it
# was when it was free.
_WAITS_LITTLE = 0.4
_WORSE = 1.25
# How many looks in a row it waits for too long before it is let go.
_CROWDED_LOOKS = 2


class Place(NamedTuple):
    """Where a thread is to be: anywhere but on processor ``off``, or where it is just now."""

    off: int | None


HERE = Place(None)


class Times(NamedTuple):
    """What a thread has had so far, in nanoseconds."""

    run: int
    waited: int


class Processor(Protocol):
    """What is asked of the system."""

    def times(self) -> Times:
        """How long the thread has run, and how long it has waited for a processor."""

    def keep(self, place: Place) -> None:
        """It stays in its place."""

    def let_go(self) -> None:
        """It runs wherever there is room."""

    def tidy(self) -> None:
        """Lets go of threads that were begun by one that is kept, and are kept with it."""


class ThisThread:
    """The thread that makes it. Raises ``OSError`` where the system does not tell enough, or there is no choice."""

    def __init__(self) -> None:
        if not hasattr(os, "sched_setaffinity"):
            raise OSError("this system does not let a thread choose its processor")
        self._id = threading.get_native_id()
        self._allowed = os.sched_getaffinity(self._id)
        if len(self._allowed) < 2:
            raise OSError("there is one processor")
        self._kept: set[int] | None = None
        self.times()

    def times(self) -> Times:
        """How long it has run, and how long it has waited for a processor."""
        run, waited, _ = Path(f"/proc/self/task/{self._id}/schedstat").read_text().split()
        return Times(int(run), int(waited))

    def keep(self, place: Place) -> None:
        """It stays in its place."""
        # Somebody may have said meanwhile where it may run.
        self._allowed = os.sched_getaffinity(self._id)
        kept = self._allowed & {self._here()} if place.off is None else self._allowed - {place.off}
        if kept and kept != self._allowed:
            os.sched_setaffinity(self._id, kept)
            self._kept = kept

    def _here(self) -> int:
        # The 39th field, of which the second, in brackets, may hold anything.
        return int(Path(f"/proc/self/task/{self._id}/stat").read_text().rpartition(")")[2].split()[36])

    def let_go(self) -> None:
        """It runs wherever there is room."""
        if self._kept is not None:
            os.sched_setaffinity(self._id, self._allowed)
            self.tidy()
            self._kept = None

    def tidy(self) -> None:
        """Lets go of threads that it has begun since it was kept."""
        if self._kept is None:
            return
        for thread in map(int, os.listdir("/proc/self/task")):
            # It may have ended meanwhile.
            with suppress(OSError):
                if thread != self._id and os.sched_getaffinity(thread) == self._kept:
                    os.sched_setaffinity(thread, self._allowed)


class Keeper:
    """Decides, from look to look."""

    def __init__(self, processor: Processor) -> None:
        self._processor = processor
        self._last = processor.times()
        self.kept = False
        # Where it is wanted.
        self._place: Place | None = None
        # For how many looks it is as it is; how many it is to be free, the last time and this time.
        self._looks = 0
        self._rest = _FREE_LOOKS
        # The part of its time that it waited when it was free.
        self._free_share = 0.0
        self._crowded = 0

    def look(self, place: Place | None) -> None:
        """Time has passed; ``place`` is where the thread is wanted now, None where that is all the same."""
        share = self._share()
        if place != self._place:
            self._move(place)
        if place is None or share is None:
            return
        self._looks += 1
        if self.kept:
            self._processor.tidy()
            crowded = share > max(_WAITS_LITTLE, _WORSE * self._free_share)
            self._crowded = self._crowded + 1 if crowded else 0
            if self._crowded >= _CROWDED_LOOKS:
                self._back_off()
                logger.debug("the loop waits for its processor, and is let go")
                self.let_go()
        else:
            self._free_share = share if self._looks == 1 else (self._free_share + share) / 2
            if self._looks >= self._rest:
                self._processor.keep(place)
                self.kept, self._looks, self._crowded = True, 0, 0

    def _move(self, place: Place | None) -> None:
        if {None, HERE} & {place, self._place}:
            # It leads, or follows, from now on; what it has learnt was about something else.
            self._rest = _FREE_LOOKS
        elif self.kept:
            self._back_off()
        self.let_go()
        self._place, self._looks = place, 0

    def _back_off(self) -> None:
        self._rest = _FREE_LOOKS if self._looks > _SETTLED_LOOKS else min(2 * self._rest, _REST_MAX)

    def let_go(self) -> None:
        """It is free again."""
        if self.kept:
            self._processor.let_go()
            self.kept, self._looks = False, 0

    def _share(self) -> float | None:
        """How much of the time that it ran or waited, since the last look, it waited; None if that was too little."""
        last, self._last = self._last, self._processor.times()
        run, waited = self._last.run - last.run, self._last.waited - last.waited
        return waited / (run + waited) if run + waited > _BUSY * LOOK_S * 1e9 else None


async def keep_still(place: Callable[[], Place | None]) -> None:
    """Looks after the thread that this runs in, until it is cancelled; ``place`` says where it is wanted."""
    try:
        keeper = Keeper(ThisThread())
    except (OSError, ValueError) as error:
        logger.debug("the loop stays on no processor of its own: %s", error)
        return
    try:
        while True:
            await asyncio.sleep(LOOK_S)
            keeper.look(place())
    except OSError as error:
        logger.warning("the loop stays on no processor of its own any more: %s", error)
    finally:
        with suppress(OSError):
            keeper.let_go()
