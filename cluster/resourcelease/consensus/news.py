"""Who is told, and when, that there are new entries or that entries are committed."""

from collections.abc import Sequence, Set

__all__ = ["News"]

_NEVER = float("inf")
_NOBODY: frozenset[str] = frozenset()
# So often all are sent new entries at once, to see who is quick now.
_RACE_S = 1.0


class News:
    """What a leader's followers have been told.

    New entries go at once to as many as make a majority with the leader: those that were quickest of late, and those
    whose callers wait for what is in them. The others would be interrupted for each entry and hasten nothing, so they
    get the entries of a moment together, or of a few where entries keep coming. If at the end of a moment the quick
    ones have not acknowledged what they were sent at its beginning, all are told everything at once until some have.

    That entries are committed is told at once to those whose proposals are among them, since their callers wait for it.
    For the others a message of its own, with its answer, would cost as much as an entry: they are told a moment later,
    unless the next entries come first.
    """

    def __init__(self, late_s: float, behind_s: float) -> None:
        self._late_s = late_s
        self._behind_s = behind_s
        self._last = self._commit = 0
        # When the first of the others was passed over, and how far the log was sent to those that are told at once when
        # this moment began.
        self._passed_at = 0.0
        self._sent = 0
        # Those that new entries go to at once; nobody: to all.
        self._quick = _NOBODY
        self._raced_at = 0.0
        # Entries up to here say nothing of who is quick now: they were not sent to all at once.
        self._race_from = 0
        # Those that were passed over since they were told.
        self.passed: Set[str] = _NOBODY
        # Whose proposals were appended, or applied, since they were told.
        self.owed: set[str] = set()
        # When all who were passed over are to be told.
        self.due_at = _NEVER

    def reset(self) -> None:
        """A new leader has told nothing."""
        self._quick, self._race_from = _NOBODY, 0
        self._told_all(0, 0)

    def _told_all(self, last: int, commit: int) -> None:
        self._last, self._commit = last, commit
        self.passed = _NOBODY
        self.owed.clear()
        self.due_at = _NEVER

    def lost(self, peer: str) -> None:
        """The connection to a follower is gone."""
        if peer in self._quick:
            self._quick, self._race_from = _NOBODY, self._commit

    def racing(self, now: float) -> bool:
        """Whether it is open who is quick."""
        if self._quick and now - self._raced_at > _RACE_S:
            # What goes to all from now on will show.
            self._quick, self._race_from = _NOBODY, self._last
        return not self._quick

    def race(self, ahead: Sequence[str], needed: int, commit: int, now: float) -> None:
        """``ahead`` have acknowledged what is committed; so many are needed for a majority with the leader."""
        if commit > self._race_from and len(ahead) >= needed:
            self._quick, self._raced_at = frozenset(ahead[:needed]), now

    def tell(self, last: int, commit: int, others: Set[str], now: float, *, more: bool) -> Set[str]:
        """Whom to tell now how far the log reaches and is committed; all if there is ``more`` to send."""
        if more:
            self._told_all(last, commit)
            return others
        if now >= self.due_at and not self._goes_on(commit, now):
            return self._tell_the_others(last, commit, others)
        new = last != self._last
        if not new and commit == self._commit:
            return _NOBODY
        told: Set[str] = self.owed & others
        if new:
            told = told | (self._quick & others) if self._quick else others
        self._last, self._commit = last, commit
        self.owed.clear()
        self.passed = (self.passed | others) - told
        if not self.passed:
            self.due_at = _NEVER
        elif self.due_at == _NEVER:
            self._passed_at, self._sent = now, last
            self.due_at = now + self._late_s
        return told

    def _goes_on(self, commit: int, now: float) -> bool:
        """Whether another moment begins: the quick ones keep up, and there was more for them in this one."""
        flows = self._quick and self._sent <= commit and self._sent < self._last
        if not flows or now >= self._passed_at + self._behind_s:
            return False
        self._sent = self._last
        self.due_at = now + self._late_s
        return True

    def _tell_the_others(self, last: int, commit: int, others: Set[str]) -> Set[str]:
        if commit < self._sent:
            # The quick ones are not.
            self._quick, self._race_from = _NOBODY, commit
        same = (last, commit) == (self._last, self._commit)
        told = self.passed & others if same and self._quick else others
        self._told_all(last, commit)
        return told
