"""Reads all sealed files of a node again, slowly and for ever: damage is found before somebody needs the file."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from resourcelease.storage.errors import NewerFormat
from resourcelease.storage.segments import CorruptSegment, segment_paths, verify_content

__all__ = ["Scrubber", "Scrubbed"]

logger = logging.getLogger(__name__)

BYTES_PER_S = 8 << 20
# Between two rounds over all files.
REST_S = 3600.0


class Scrubbed(NamedTuple):
    """What came of it since the node started."""

    # Whole rounds over all files.
    rounds: int = 0
    files: int = 0
    damaged: int = 0
    # When the last whole round ended, wall time in ms; 0: none has.
    round_ended_ms: int = 0


class Scrubber:
    """A thread that reads no faster than so many bytes a second. ``on_damage`` and ``on_round`` are called on it."""

    def __init__(
        self,
        directory: Path,
        on_damage: Callable[[Path], None],
        on_round: Callable[[], None] = lambda: None,
        *,
        bytes_per_s: int = BYTES_PER_S,
        rest_s: float = REST_S,
    ) -> None:
        self._directory = directory
        self._on_damage = on_damage
        self._on_round = on_round
        self._bytes_per_s = bytes_per_s
        self._rest_s = rest_s
        self._ending, self._look = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.found = Scrubbed()

    def start(self) -> None:
        """Begins with a round."""
        self._ending.clear()
        self._thread = threading.Thread(target=self._run, name="scrub", daemon=True)
        self._thread.start()

    def hurry(self) -> None:
        """Begins the next round now."""
        self._look.set()

    def stop(self) -> None:
        """Ends, after the frame that is being read. Blocks."""
        self._ending.set()
        self._look.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._round()
            except OSError as error:
                logger.warning("%s cannot be read: %s", self._directory, error)
            self._look.wait(self._rest_s)
            self._look.clear()

    def _round(self) -> None:
        before = self.found
        for _, path in segment_paths(self._directory):
            if self._ending.is_set():
                return
            self._check(path)
        ended_ms = time.time_ns() // 1_000_000
        self.found = found = self.found._replace(rounds=before.rounds + 1, round_ended_ms=ended_ms)
        files, damaged = found.files - before.files, found.damaged - before.damaged
        if files:
            logger.info("all %d sealed files were read again; %d are damaged", files, damaged)
        self._on_round()

    def _check(self, path: Path) -> None:
        pace = _Pace(self._bytes_per_s, self._ending)
        found = self.found
        try:
            if verify_content(path, pace.pause):
                self.found = found._replace(files=found.files + 1)
        except FileNotFoundError:
            pass  # retired meanwhile
        except _Stopped:
            pass
        except (CorruptSegment, NewerFormat) as error:
            self.found = found._replace(files=found.files + 1, damaged=found.damaged + 1)
            logger.warning("damage was found: %s", error)
            self._on_damage(path)


class _Stopped(Exception):
    """The thread is to end."""


class _Pace:
    """Holds a reader back to a number of bytes a second."""

    def __init__(self, bytes_per_s: int, ending: threading.Event) -> None:
        self._bytes_per_s = bytes_per_s
        self._ending = ending
        self._began = time.monotonic()

    def pause(self, done: int) -> None:
        """So many bytes were read."""
        ahead_s = done / self._bytes_per_s - (time.monotonic() - self._began)
        if self._ending.wait(max(0.0, ahead_s)):
            raise _Stopped
