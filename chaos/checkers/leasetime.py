"""The clock in the log is never ahead of real time, so no lease is shorter than it was promised."""

from collections.abc import Iterable

from chaos.checkers.verdict import Violation

__all__ = ["LeaseTime"]

# Readings are whole milliseconds, and so is a stamp against the moment it was made.
_ROUNDING_MS = 2.0


class LeaseTime:
    """Between any two entries the lease clock moves by no more than the time between their making.

    ``rate`` is that of the fastest clock in the cluster, as told to the checker by whoever set the clocks.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._made_at: dict[tuple[int, int], float] = {}
        # By how much the clock is ahead of real time, at the entry where that was least: milliseconds.
        self._ahead_ms = float("inf")
        self._highest = 0

    def made(self, entries: Iterable[tuple[int, int]], now: float) -> None:
        """Entries (index, term) are in a log; whoever has them first made them just now."""
        for key in entries:
            self._made_at.setdefault(key, now)

    def applied(self, index: int, term: int, clock_ms: int) -> None:
        """The reading after an entry."""
        made_at = self._made_at.get((index, term))
        if index <= self._highest or made_at is None:
            return
        self._highest = index
        ahead_ms = clock_ms - self._rate * 1000.0 * made_at
        if ahead_ms > self._ahead_ms + _ROUNDING_MS:
            raise Violation(
                "no lease is cut short",
                f"at index {index} the lease clock is {ahead_ms - self._ahead_ms:.0f} ms ahead of real time",
            )
        self._ahead_ms = min(self._ahead_ms, ahead_ms)
