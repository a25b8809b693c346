"""What a node does first, and what can wait."""

from resourcelease.consensus.journal import Journal
from resourcelease.consensus.wire import Message

__all__ = ["Precedence", "is_late"]

# More than that is applied as soon as it can be: later it would hold up what comes then.
_LITTLE_BYTES = 2 << 10
_NEVER = float("inf")


class Precedence:
    """Whether a follower's turn ends before it comes to what nobody waits for.

    Its leader waits until what it sent is on the disk here, and acknowledged. So that comes first. The rest, above all
    to apply what is committed, comes right after; or a moment later, together for several entries, where it is little
    and none of it was proposed here.
    """

    def __init__(self, journal: Journal, late_s: float) -> None:
        self._journal = journal
        self._late_s = late_s
        # Whether something was put off that is due at once; when whatever was put off is due.
        self.unfinished = False
        self.due_at = _NEVER

    def done(self) -> None:
        """All of a turn is done now."""
        self.unfinished = False
        self.due_at = _NEVER

    def puts_off(self, now: float, first: int, last: int, *, awaited: bool) -> bool:
        """Whether to end the turn here. Entries ``first`` to ``last`` are to be applied; ``awaited``: by callers."""
        # Once: what comes meanwhile does not keep it from the rest again.
        if self.unfinished or not self._journal.dirty or first > last:
            return False
        if self.due_at == _NEVER:
            self.due_at = now + self._late_s
        self.unfinished = awaited or now >= self.due_at or not self._is_little(first, last)
        return True

    def _is_little(self, first: int, last: int) -> bool:
        size = 0
        for index in range(first, last + 1):
            size += len(self._journal.entry(index)[0])
            if size > _LITTLE_BYTES:
                return False
        return True


def is_late(message: Message, term: int, commit_index: int) -> bool:
    """Whether a message acknowledges nothing but what is committed: a leader takes it up with whatever comes next."""
    acknowledges = message["type"] == "next_node_idx" and message["success"] and message["term"] == term
    return bool(acknowledges and message["next_node_idx"] <= commit_index + 1)
