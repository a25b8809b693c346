"""What a node does first, and what can wait."""

from resourcelease.consensus.journal import Journal
from resourcelease.consensus.wire import Message

__all__ = ["Precedence", "is_late"]


class Precedence:
    """Whether a follower's turn ends before it comes to what nobody waits for.

    Its leader waits until what it sent is on the disk here, and acknowledged. So that comes first. The rest, above all
    to apply what is committed, comes right after, while the leader has its own work to do with the acknowledgement:
    were it left until there is more of it, the next entries would find this node in the middle of that.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        # Whether something was put off, and is due at once.
        self.unfinished = False

    def done(self) -> None:
        """All of a turn is done now."""
        self.unfinished = False

    def puts_off(self, first: int, last: int) -> bool:
        """Whether to end the turn here, where entries ``first`` to ``last`` are to be applied."""
        # Once: what comes meanwhile does not keep it from the rest again.
        if self.unfinished or not self._journal.dirty or first > last:
            return False
        self.unfinished = True
        return True


def is_late(message: Message, term: int, commit_index: int) -> bool:
    """Whether a message acknowledges nothing but what is committed: a leader takes it up with whatever comes next."""
    acknowledges = message["type"] == "next_node_idx" and message["success"] and message["term"] == term
    return bool(acknowledges and message["next_node_idx"] <= commit_index + 1)
