"""Guard **newborn**: a member whose disk was lost has forgotten its votes, and what it acknowledged."""

from collections.abc import Iterable, Sequence

from resourcelease.consensus.journal import Journal
from resourcelease.consensus.proposals import Proposals
from resourcelease.consensus.wire import Message

__all__ = ["Newborn", "Promises"]

_FOR_EVER = float("inf")


class Newborn:
    """The side of the node that began with an empty disk.

    It could help to elect a node that lacks what it had acknowledged, or to commit for a leader that was deposed with
    its help. So it votes for nobody, does not stand, and says of what it acknowledges that it does not count, until an
    entry that it proposed itself comes back committed. That entry was appended after the loss, and a majority, all of
    them others, acknowledged it then. So none of them had followed a later leader, and without one of them no later
    leader was elected; whatever this node ever acknowledged is before that entry in the log, and so is here again. The
    journal keeps the mark until then. A vote that it gave to somebody who has not been elected may still be on its way,
    so it is silent until ``silent_until`` in any case: from its start on for longer than anybody stands in one term.

    Where the candidate's log is as empty as one's own, the cluster is new, if all others' are empty too: so a candidate
    without a log needs everybody's vote, and whoever has a log does not give it. Who voted for such a one and is led by
    it has promised nothing else.
    """

    def __init__(self, journal: Journal, proposals: Proposals, silent_until: float, *, guarded: bool) -> None:
        self._journal = journal
        self._proposals = proposals
        self._silent_until = silent_until if journal.newborn else 0.0
        self._guarded = guarded
        # Votes that wait for those of all others, by voter.
        self._waiting: dict[str, Message] = {}
        # The proposal that will come back; 0 before there is one.
        self._proof = 0
        # The term in which it caught up; its vote there may have been given before the loss.
        self._caught_up_in = 0

    @property
    def catching_up(self) -> bool:
        """Whether it has a part of a log, and may have promised more."""
        return self._journal.newborn and self._journal.last_term > 0

    def stands(self, now: float) -> bool:
        """Whether it may stand for election."""
        return not self.catching_up if self._journal.newborn else now >= self._silent_until

    def counts(self, leader: str, term: int) -> bool:
        """Whether what it acknowledges to the leader of a term counts."""
        self.heard(leader, term)
        return not (self._guarded and self.catching_up)

    def seek_proof(self) -> None:
        """Proposes the entry that shows that nothing is missing."""
        if not self._proof and self._guarded and self.catching_up:
            self._proof = self._proposals.add(0, b"", _FOR_EVER)

    def is_proof(self, number: int) -> bool:
        """Whether a proposal is that one, and nobody has seen it come back."""
        return number == self._proof and self._proposals.answered(number)

    def proved(self, leader: str, term: int) -> None:
        """It came back."""
        if self._journal.newborn:
            self._grow_up(leader, term)

    def heard(self, leader: str, term: int) -> None:
        """Entries of the leader of a term may have come."""
        if self.catching_up and self._journal.last_term == term:
            founded = (self._journal.getVotedForNodeId(), self._journal.getCurrentTerm()) == (leader, term)
            if founded:
                self._silent_until = 0.0
            if founded or not self._guarded:
                self._grow_up(leader, term)

    def _grow_up(self, leader: str, term: int) -> None:
        self._journal.grown_up(leader)
        self._caught_up_in = term

    def counted(self, voter: str, vote: Message, others: Sequence[str]) -> list[tuple[str, Message]]:
        """The votes that count now, with their voters."""
        if self._journal.last_term:
            return [(voter, vote)]
        waiting = {other: held for other, held in self._waiting.items() if held["term"] == vote["term"]}
        self._waiting = {**waiting, voter: vote}
        return list(self._waiting.items()) if self._waiting.keys() >= set(others) else []

    def may_vote(self, request: Message, now: float) -> bool:
        """Whether a request for votes is to be looked at."""
        if self._journal.newborn:
            return not (self._journal.last_term or request["last_log_term"])
        return bool(request["term"] != self._caught_up_in) and now >= self._silent_until


class Promises:
    """The leader's side: who has said, in the present term, that it keeps all it ever promised."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self._kept: set[str] = set()

    def reset(self) -> None:
        """Another term."""
        self._kept.clear()

    def told(self, peer: str, *, kept: bool) -> bool:
        """Whether it has, as it says with what it acknowledges."""
        (self._kept.add if kept else self._kept.discard)(peer)
        return kept

    def kept_by(self, peer: str) -> bool:
        """Whether it does."""
        return peer == self.node_id or peer in self._kept

    def kept_by_most(self, members: Iterable[str]) -> bool:
        """Whether these could commit."""
        kept = [self.kept_by(member) for member in members]
        return sum(kept) * 2 > len(kept)
