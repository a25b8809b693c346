"""Snapshots that leave a leader."""

from chaos.simulation.disk import Disk, DiskFaults
from chaos.simulation.world import World
from resourcelease.consensus.journal import Journal
from resourcelease.consensus.snapshots import Outgoing
from resourcelease.storage.api import JournalEntry, WriteBatch

NEVER_S = 1e9


class Leader:
    """Its disk, on which rows settle when the test says so, and its journal from an index on."""

    def __init__(self, first: int, last: int) -> None:
        self.world = World(0)
        self.disk = Disk(self.world, "n1", DiskFaults(settle_max_s=NEVER_S))
        self.disk.write(WriteBatch(appends=[JournalEntry(index, index // 10, b"") for index in range(1, last + 1)]))
        self.outgoing = Outgoing(
            store=self.disk,
            journal=Journal([(b"", index, index // 10) for index in range(first, last + 1)], 2, "n1"),
            incarnation=1,
            chunk_bytes=1 << 20,
            answer_s=10.0,
        )

    def rows(self, value: bytes, index: int) -> None:
        self.disk.write(WriteBatch(row_puts=[(b"k", value)], rows_index=index, rows_term=index // 10))
        self.world.run_until(self.world.now + 1.0)


def test_a_snapshot_is_of_what_has_settled_and_waits_for_no_pause_in_the_load() -> None:
    leader = Leader(8, 30)
    leader.rows(b"old", 9)
    leader.disk.settle()
    leader.rows(b"new", 25)
    assert leader.disk.load().rows_index == 25
    assert leader.outgoing.floor() is None
    chunk = leader.outgoing.next_chunk("n2", 0.0)
    assert chunk is not None
    assert (chunk.log_index, chunk.log_term, chunk.rows, chunk.last) == (9, 0, [(b"k", b"old")], True)
    assert [entry[1] for entry in chunk.head] == [8, 9]
    # While it is under way, what follows it stays.
    leader.disk.settle()
    assert leader.outgoing.floor() == 9
    leader.outgoing.answered("n2", 9)
    assert leader.outgoing.floor() is None
    assert leader.outgoing.floor([17, 12]) == 12
    chunk = leader.outgoing.next_chunk("n2", 1.0)
    assert chunk is not None
    assert (chunk.log_index, chunk.log_term, chunk.rows) == (25, 2, [(b"k", b"new")])


def test_rows_of_before_the_journal_are_no_snapshot_and_what_follows_newer_ones_stays() -> None:
    leader = Leader(20, 30)
    leader.rows(b"old", 9)
    leader.disk.settle()
    leader.rows(b"new", 25)
    assert leader.outgoing.next_chunk("n2", 0.0) is None
    # They settle soon, now that somebody waits.
    assert leader.outgoing.floor() == 25
    leader.rows(b"newest", 28)
    assert leader.outgoing.floor() == 25
    chunk = leader.outgoing.next_chunk("n2", 0.0)
    assert chunk is not None
    assert (chunk.log_index, chunk.rows) == (25, [(b"k", b"new")])


def test_the_journal_is_kept_for_nobody_whose_connection_is_gone() -> None:
    leader = Leader(20, 30)
    leader.rows(b"old", 9)
    assert leader.outgoing.next_chunk("n2", 0.0) is None
    leader.outgoing.cancel("n2")
    assert leader.outgoing.floor() is None
