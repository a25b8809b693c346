"""What a follower does first."""

from resourcelease.consensus.journal import Journal
from resourcelease.consensus.outbox import Outbox

__all__ = ["Precedence"]

# So much is applied as quickly as it could be put off.
_LITTLE_BYTES = 2 << 10
# How often the rest gives way: to new entries on their way to the disk, and to their acknowledgement.
_GIVES_WAY = 2


class Precedence:
    """Whether a follower's turn ends before it comes to what nobody waits for.

    Its leader waits until what it sent is on the disk here, and acknowledged. Where much is committed by then, that
    comes first, and the rest, above all to apply it, right after.
    """

    def __init__(self, journal: Journal, outbox: Outbox) -> None:
        self._journal = journal
        self._outbox = outbox
        self._gave_way = 0

    @property
    def unfinished(self) -> bool:
        """Whether something was put off, and is due at once."""
        return self._gave_way > 0

    def done(self) -> None:
        """All of a turn is done now."""
        self._gave_way = 0

    def puts_off(self, first: int, last: int) -> bool:
        """Whether to end the turn here. Entries ``first`` to ``last`` are committed and to be applied."""
        if not (self._journal.dirty or self._outbox.ready) or self._is_little(first, last):
            return False
        self._gave_way += 1
        return self._gave_way <= _GIVES_WAY

    def _is_little(self, first: int, last: int) -> bool:
        size = 0
        for index in range(first, last + 1):
            size += len(self._journal.entry(index)[0])
            if size > _LITTLE_BYTES:
                return False
        return True
