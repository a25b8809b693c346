"""The guards that stand between the wire and the library, one class or function each, with the hazard it stops.

They see messages as the library makes them, plus the term that replies are stamped with.
"""

from collections import deque
from typing import NamedTuple

from resourcelease.consensus.api import ConsensusBroken
from resourcelease.consensus.journal import Journal
from resourcelease.consensus.wire import Message

__all__ = [
    "Connections",
    "Durability",
    "HeldReplies",
    "ResetThrottle",
    "Trimmed",
    "VoteBox",
    "is_behind",
    "promises",
    "trim",
]


class Trimmed(NamedTuple):
    """An append without what is already here."""

    message: Message
    # What to answer in place of the library's "all of my log": the last verified index + 1.
    answer: int | None


def trim(message: Message, journal: Journal, commit_index: int) -> Trimmed:
    """Guard **trim**: the library cuts a follower's log at every append, also where the entries match.

    An append that is sent again, or arrives late, then cuts entries that were acknowledged; if the leader dies before
    it sends them again, they are gone. So entries that match by index and term are skipped, and where nothing is new
    the library is shown an empty append at the end of its own log, with a commit index that only reaches to what this
    message has verified.
    """
    previous = message["prevLogIdx"]
    if previous is None or previous > journal.last_index:
        return Trimmed(message, None)
    entries = message["entries"]
    first = journal.first_index
    if previous < first:
        # Everything up to the journal's first entry is applied here, so it is committed and the same.
        skip = first - previous
        if len(entries) < skip:
            return _nothing_new(message, journal, previous + len(entries))
        entries = entries[skip:]
        previous = first
    elif journal.term_at(previous) != message["prevLogTerm"]:
        return Trimmed(message, None)
    matching = 0
    for _, index, term in entries:
        if index > journal.last_index or journal.term_at(index) != term:
            break
        matching += 1
    verified = previous + matching
    fresh = entries[matching:]
    if not fresh:
        return _nothing_new(message, journal, verified)
    if verified < commit_index:
        raise ConsensusBroken(
            f"the leader's entry {verified + 1} of term {fresh[0][2]} is not the one that is committed here "
            f"(commit index {commit_index}); this node's history is another cluster's or is damaged"
        )
    trimmed = dict(message, prevLogIdx=verified, prevLogTerm=journal.term_at(verified), entries=fresh)
    return Trimmed(trimmed, None)


def _nothing_new(message: Message, journal: Journal, verified: int) -> Trimmed:
    trimmed = dict(
        message,
        prevLogIdx=journal.last_index,
        prevLogTerm=journal.last_term,
        entries=[],
        commit_index=min(message["commit_index"], verified),
    )
    return Trimmed(trimmed, verified + 1)


class ResetThrottle:
    """Guard **reset**: batches on their way to a follower that has diverged each make it ask for a reset.

    Each answer but the first moves the leader back to where it already was, overwriting the useful one, and the
    follower never catches up. So the same leader is asked again only for something lower, or after a while.
    """

    def __init__(self, repeat_s: float) -> None:
        self._repeat_s = repeat_s
        self._asked: tuple[str, int, int] = ("", 0, 0)
        self._asked_at = float("-inf")

    def permits(self, leader: str, term: int, index: int, now: float) -> bool:
        """Whether to send a reset to ``index``."""
        asked_leader, asked_term, asked_index = self._asked
        same = (asked_leader, asked_term) == (leader, term)
        if same and index >= asked_index and now - self._asked_at < self._repeat_s:
            return False
        self._asked = (leader, term, index)
        self._asked_at = now
        return True


class VoteBox:
    """Guard **vote**: the library counts votes, not voters; so one counts for each voter and term."""

    def __init__(self) -> None:
        self._term = 0
        self._voters: set[str] = set()

    def admits(self, voter: str, term: int) -> bool:
        """Whether this vote has not been counted."""
        if term != self._term:
            self._term, self._voters = term, set()
        if voter in self._voters:
            return False
        self._voters.add(voter)
        return True


class Connections:
    """Guard **epoch**: a connection that was replaced still delivers, and a late append cuts the log.

    So each connection has a number, and only the newest of a peer is listened to.
    """

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}

    def opened(self, peer: str, epoch: int) -> None:
        """A connection took the place of any earlier one."""
        self._epochs[peer] = epoch

    def closed(self, peer: str, epoch: int) -> bool:
        """One ended; True if it was the one in use."""
        if self._epochs.get(peer) != epoch:
            return False
        del self._epochs[peer]
        return True

    def is_open(self, peer: str) -> bool:
        """Whether there is one."""
        return peer in self._epochs

    def current(self, peer: str, epoch: int) -> bool:
        """Whether this one is in use."""
        return self._epochs.get(peer) == epoch

    def epoch(self, peer: str) -> int:
        """The one in use; 0 for none."""
        return self._epochs.get(peer, 0)


class Durability:
    """Guard **sync**, the disk's side: which log positions an fsync covers.

    Nothing that promises durability may leave before that, nor may the leader count itself.
    """

    def __init__(self, durable_through: int) -> None:
        self._through = durable_through
        # (batch, last index of the log when it was handed over, when), oldest first.
        self._in_flight: deque[tuple[int, int, float]] = deque()
        self._durable_batch = 0
        self.last_batch = 0

    @property
    def through(self) -> int:
        """The log up to here is on disk."""
        return self._through

    @property
    def settled(self) -> bool:
        """Whether nothing is being written."""
        return not self._in_flight

    def waiting_since(self, now: float) -> float:
        """When the oldest batch that is still being written was handed over; ``now`` if there is none."""
        return self._in_flight[0][2] if self._in_flight else now

    def written(self, last_index: int, now: float) -> int:
        """A batch goes to the disk; its number."""
        self.last_batch += 1
        self._in_flight.append((self.last_batch, last_index, now))
        return self.last_batch

    def done(self, batch: int) -> None:
        """The fsync of a batch, and so of all before it, has come back."""
        while self._in_flight and self._in_flight[0][0] <= batch:
            self._durable_batch, self._through, _ = self._in_flight.popleft()

    def truncated(self, index: int) -> None:
        """Entries from ``index`` on were cut; batches on their way no longer stand for them."""
        self._through = min(self._through, index - 1)
        self._in_flight = deque((batch, min(last, index - 1), at) for batch, last, at in self._in_flight)

    def covers(self, batch: int) -> bool:
        """Whether a batch is on disk."""
        return batch <= self._durable_batch


def is_behind(request: Message, journal: Journal) -> bool:
    """Whether a node that asks for votes has a log that reaches less far than the one here.

    It cannot win against this node, which therefore need not wait for its turn to stand.
    """
    theirs: tuple[int, int] = request["last_log_term"], request["last_log_index"]
    return theirs < (journal.last_term, journal.last_index)


def promises(message: Message) -> bool:
    """Guard **sync**: whether a message promises something that has to be on disk before it leaves."""
    kind = message["type"]
    return kind in {"request_vote", "response_vote"} or (kind == "next_node_idx" and message["success"])


class HeldReplies:
    """Guard **sync**, the leader's side: the library counts the leader as soon as it has appended.

    So a follower's acknowledgement is shown to it only as far as this node's own disk has come.
    """

    def __init__(self) -> None:
        # By follower: (term, index up to which it holds the log).
        self._held: dict[str, tuple[int, int]] = {}

    @property
    def waiting(self) -> bool:
        """Whether there are any."""
        return bool(self._held)

    def offer(self, peer: str, term: int, index: int, durable: int) -> int:
        """An acknowledgement up to ``index``; how much of it may be shown now."""
        if index <= durable:
            return index
        self._held[peer] = (term, index)
        return durable

    def release(self, term: int, durable: int) -> list[tuple[str, int]]:
        """What may be shown since the disk moved on."""
        ready = []
        for peer, (held_term, index) in list(self._held.items()):
            if held_term != term:
                del self._held[peer]
                continue
            ready.append((peer, min(index, durable)))
            if index <= durable:
                del self._held[peer]
        return ready
