"""Who is told, and when, that there are new entries or that entries are committed."""

from collections.abc import Set

__all__ = ["News"]

_NEVER = float("inf")


class News:
    """What a leader's followers have been told.

    New entries go to all at once. That entries are committed is told at once to those whose proposals are among them,
    since their callers wait for it. For the others a message of its own, with its answer, would cost as much as an
    entry: they are told a moment later, unless the next entries come first.
    """

    def __init__(self, late_s: float) -> None:
        self._late_s = late_s
        self._last = self._commit = 0
        # Whose proposals were applied since they were told.
        self.owed: set[str] = set()
        # When all who were passed over are to be told.
        self.due_at = _NEVER

    def reset(self) -> None:
        """A new leader has told nothing."""
        self._told_all(0, 0)

    def _told_all(self, last: int, commit: int) -> None:
        self._last, self._commit = last, commit
        self.owed.clear()
        self.due_at = _NEVER

    def tell(self, last: int, commit: int, others: Set[str], now: float, *, more: bool) -> Set[str]:
        """Whom to tell now how far the log reaches and is committed; all if there is ``more`` to send."""
        if more or last != self._last or now >= self.due_at:
            self._told_all(last, commit)
            return others
        if commit == self._commit:
            return set()
        self._commit = commit
        owed = self.owed & others
        self.owed.clear()
        if owed != others:
            self.due_at = min(self.due_at, now + self._late_s)
        elif owed:
            self.due_at = _NEVER
        return owed
