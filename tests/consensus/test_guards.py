"""Each guard alone, on the smallest case that shows what it stops."""

import pytest

from resourcelease.consensus.api import ConsensusBroken
from resourcelease.consensus.entries import Origin
from resourcelease.consensus.guards import Connections, Durability, HeldReplies, ResetThrottle, VoteBox, trim
from resourcelease.consensus.journal import Journal
from resourcelease.consensus.proposals import Queue
from resourcelease.consensus.snapshots import Incoming
from resourcelease.consensus.wire import Chunk, Message


def journal(*terms: int, first: int = 1) -> Journal:
    return Journal([(b"\x00%d" % index, index, term) for index, term in enumerate(terms, first)], 9, "")


def append(previous: int, term: int, *terms: int, commit: int = 0) -> Message:
    entries = [(b"\x00new", index, entry_term) for index, entry_term in enumerate(terms, previous + 1)]
    return {
        "type": "append_entries",
        "term": 9,
        "commit_index": commit,
        "entries": entries,
        "prevLogIdx": previous,
        "prevLogTerm": term,
    }


def test_trim_leaves_the_log_alone_when_all_is_here() -> None:
    message, answer = trim(append(1, 1, 1, 1, commit=9), journal(1, 1, 1, 1, 1), commit_index=2)
    assert (message["prevLogIdx"], message["entries"], message["commit_index"]) == (5, [], 3)
    assert answer == 4


def test_trim_skips_what_matches_and_keeps_what_is_new() -> None:
    message, answer = trim(append(1, 1, 1, 1, 2, 2), journal(1, 1, 1), commit_index=2)
    assert (message["prevLogIdx"], message["prevLogTerm"]) == (3, 1)
    assert [entry[1:] for entry in message["entries"]] == [(4, 2), (5, 2)]
    assert answer is None


def test_trim_lets_a_conflict_be_cut() -> None:
    message, _ = trim(append(1, 1, 1, 2), journal(1, 1, 1, 1), commit_index=2)
    assert message["prevLogIdx"] == 2
    assert [entry[1:] for entry in message["entries"]] == [(3, 2)]


def test_trim_refuses_to_cut_what_is_committed() -> None:
    with pytest.raises(ConsensusBroken, match="committed here"):
        trim(append(1, 1, 2), journal(1, 1, 1, 1), commit_index=3)


def test_trim_takes_what_lies_before_the_journal_for_the_same() -> None:
    message, answer = trim(append(3, 1, 1, 1, 1), journal(1, 1, first=10), commit_index=10)
    assert (message["prevLogIdx"], message["entries"], answer) == (11, [], 7)
    message, answer = trim(append(8, 1, 1, 1, 1, 2), journal(1, 1, first=10), commit_index=10)
    assert [entry[1:] for entry in message["entries"]] == [(12, 2)]


def test_a_gap_is_left_to_the_library() -> None:
    message = append(7, 1, 1)
    assert trim(message, journal(1, 1), commit_index=1) == (message, None)


def test_resets_repeat_only_when_lower_or_later() -> None:
    throttle = ResetThrottle(0.5)
    assert throttle.permits("a", 3, 10, now=0.0)
    assert not throttle.permits("a", 3, 12, now=0.1)
    assert throttle.permits("a", 3, 9, now=0.2)
    assert throttle.permits("a", 3, 9, now=0.8)
    assert throttle.permits("b", 4, 12, now=0.9)


def test_a_vote_counts_once() -> None:
    box = VoteBox()
    assert box.admits("a", 3)
    assert not box.admits("a", 3)
    assert box.admits("b", 3)
    assert box.admits("a", 4)


def test_only_the_newest_connection_counts() -> None:
    connections = Connections()
    connections.opened("a", 1)
    connections.opened("a", 2)
    assert not connections.current("a", 1)
    assert not connections.closed("a", 1)
    assert connections.current("a", 2)
    assert connections.closed("a", 2)


def test_durability_follows_the_log_back() -> None:
    durability = Durability(5)
    first = durability.written(10, now=0.0)
    durability.truncated(8)
    second = durability.written(9, now=1.0)
    durability.done(first)
    assert (durability.through, durability.covers(second), durability.waiting_since(5.0)) == (7, False, 1.0)
    durability.done(second)
    assert (durability.through, durability.settled) == (9, True)


def test_replies_are_shown_as_far_as_the_disk_has_come() -> None:
    held = HeldReplies()
    assert held.offer("a", 3, 10, durable=6) == 6
    assert held.offer("b", 3, 5, durable=6) == 5
    assert held.release(3, durable=8) == [("a", 8)]
    assert held.release(3, durable=12) == [("a", 10)]
    assert held.release(3, durable=12) == []
    held.offer("a", 3, 20, durable=12)
    assert held.release(4, durable=30) == []


def chunk(number: int, *, last: bool = False, snapshot: int = 1, digest: bytes = b"") -> Chunk:
    head = [(b"\x01", 6, 1), (b"\x01", 7, 1)] if number == 0 else []
    return Chunk(1, snapshot, last, number, 7, 1, head, [(b"k%d" % number, b"v")], digest)


def whole_digest(count: int) -> bytes:
    from hashlib import blake2b

    import msgpack

    digest = blake2b(digest_size=16)
    for number in range(count):
        digest.update(msgpack.packb([(b"k%d" % number, b"v")]))
    return digest.digest()


def test_a_snapshot_arrives_whole() -> None:
    incoming = Incoming()
    assert incoming.accept("a", chunk(0)) is None
    assert incoming.accept("a", chunk(1)) is None
    arrived = incoming.accept("a", chunk(2, last=True, digest=whole_digest(3)))
    assert arrived is not None
    assert (arrived.log_index, [key for key, _ in arrived.rows]) == (7, [b"k0", b"k1", b"k2"])


@pytest.mark.parametrize(
    "pieces",
    [
        [chunk(0), chunk(2, last=True, digest=whole_digest(3))],
        [chunk(0), chunk(1, last=True, snapshot=2, digest=whole_digest(2))],
        [chunk(1), chunk(2, last=True, digest=whole_digest(3))],
        [chunk(0), chunk(1, last=True, digest=b"another")],
    ],
)
def test_pieces_that_do_not_belong_together_are_dropped(pieces: list[Chunk]) -> None:
    incoming = Incoming()
    assert [incoming.accept("a", piece) for piece in pieces] == [None] * len(pieces)


def test_a_queue_counts_what_is_appended_and_not_yet_applied() -> None:
    queue = Queue()
    origins = [Origin("n1", 1, number, 3) for number in range(4)]
    for origin in origins:
        queue.offer(origin, bytes(10))
    assert [origin for origin, _ in queue.take(1000, 7)] == origins[:2]
    assert (queue.ops_under_way, queue.bytes_under_way) == (6, 20)
    # Of what is too large for any entry, one at a time.
    assert [origin for origin, _ in queue.take(5, 1)] == [origins[2]]
    for origin in [*origins[:3], *origins[:3]]:
        queue.applied(origin)
    assert (queue.ops_under_way, queue.bytes_under_way) == (0, 0)
    queue.take(1000, 100)
    queue.clear()
    assert (queue.ops_under_way, queue.bytes_under_way, bool(queue)) == (0, 0, False)
