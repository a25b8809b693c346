"""The clock inside the log, as its leader reads it."""

__all__ = ["LeaseClock"]


class LeaseClock:
    """The last committed reading, plus the leader's own monotonic time since it saw it.

    It runs only on a node that leads, and starts when that node has applied the first entry of its term: what a
    failover takes makes leases longer. A step is bounded, so a leader that was stopped for a while does the same.

    >>> clock = LeaseClock(step_max_s=1.0)
    >>> clock.start(committed_ms=5_000, now=10.0)
    >>> clock.reading_ms(now=10.25), clock.reading_ms(now=60.0)
    (5250, 6250)
    """

    def __init__(self, step_max_s: float) -> None:
        self._step_max_s = step_max_s
        self._ms = 0.0
        self._seen_at: float | None = None
        self.stamped_ms = 0

    def start(self, committed_ms: int, now: float) -> None:
        """This node leads, and everything before its term is applied."""
        self._ms = float(committed_ms)
        self._seen_at = now
        self.stamped_ms = committed_ms

    def saw(self, committed_ms: int) -> None:
        """An entry was applied; its reading is never above one's own unless the machine lifted it."""
        self._ms = max(self._ms, float(committed_ms))

    def stop(self) -> None:
        """It no longer leads."""
        self._seen_at = None

    @property
    def running(self) -> bool:
        """Whether this node may stamp."""
        return self._seen_at is not None

    def reading_ms(self, now: float) -> int:
        """The reading; whole milliseconds, never falling."""
        if self._seen_at is not None and now > self._seen_at:
            self._ms += min(now - self._seen_at, self._step_max_s) * 1000.0
            self._seen_at = now
        return int(self._ms)

    def stamp_ms(self, now: float) -> int:
        """The reading for an entry."""
        self.stamped_ms = max(self.stamped_ms, self.reading_ms(now))
        return self.stamped_ms
