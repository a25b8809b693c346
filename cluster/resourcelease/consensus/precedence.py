"""What a follower does first, and what a moment later."""

from resourcelease.consensus.journal import Journal
from resourcelease.consensus.outbox import Outbox

__all__ = ["Precedence"]

_NEVER = float("inf")
# What is left for later: more at once would keep the leader waiting when it comes to it.
_FEW_ENTRIES = 8
_FEW_BYTES = 8 << 10
# How often what is due gives way: to new entries on their way to the disk, and to their acknowledgement.
_GIVES_WAY = 2


class Precedence:
    """Whether a follower's turn ends before it comes to what nobody waits for.

    Its leader waits until what it sent is on the disk here, and acknowledged; so that comes first. A few entries that
    are committed by then are applied a moment later, together, which costs less than each by itself. Where somebody
    here waits for an answer, or there is more, it is done right after the acknowledgement.
    """

    def __init__(self, journal: Journal, outbox: Outbox, late_s: float) -> None:
        self._journal = journal
        self._outbox = outbox
        self._late_s = late_s
        # When the rest of what a turn does is due; never, while nothing was put off.
        self.rest_at = _NEVER
        # How often it has given way since it was due.
        self._overdue = 0

    @property
    def resting(self) -> bool:
        """Whether something was put off."""
        return self.rest_at < _NEVER

    def rested(self) -> None:
        """All of a turn is done now."""
        self.rest_at, self._overdue = _NEVER, 0

    def puts_off(self, now: float, first: int, last: int, *, waited_for: bool) -> bool:
        """Whether to end the turn here. Entries ``first`` to ``last`` are committed and to be applied."""
        leader_waits = self._journal.dirty or self._outbox.ready
        if not self.resting:
            if not leader_waits:
                return False
            self.rest_at = now + self._late_s
        if waited_for or not self._are_few(first, last):
            self.rest_at = min(self.rest_at, now)
        if now < self.rest_at:
            return True
        self._overdue += 1
        return leader_waits and self._overdue <= _GIVES_WAY

    def _are_few(self, first: int, last: int) -> bool:
        if last - first >= _FEW_ENTRIES:
            return False
        return sum(len(self._journal.entry(index)[0]) for index in range(first, last + 1)) <= _FEW_BYTES
