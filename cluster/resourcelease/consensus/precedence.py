"""What a follower does first."""

from resourcelease.consensus.journal import Journal

__all__ = ["Precedence"]

# So much is applied as quickly as it could be put off.
_LITTLE_BYTES = 2 << 10


class Precedence:
    """Whether a follower's turn ends before it comes to what nobody waits for.

    Its leader waits until what it sent is on the disk here, and acknowledged. Where much is committed by then, that
    comes first, and the rest, above all to apply it, right after.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # Whether something was put off, and is due at once.
        self.unfinished = False

    def done(self) -> None:
        """All of a turn is done now."""
        self.unfinished = False

    def puts_off(self, first: int, last: int) -> bool:
        """Whether to end the turn here. Entries ``first`` to ``last`` are committed and to be applied."""
        # Once: what comes meanwhile does not keep it from the rest again.
        if self.unfinished or not self._journal.dirty or self._is_little(first, last):
            return False
        self.unfinished = True
        return True

    def _is_little(self, first: int, last: int) -> bool:
        size = 0
        for index in range(first, last + 1):
            size += len(self._journal.entry(index)[0])
            if size > _LITTLE_BYTES:
                return False
        return True
