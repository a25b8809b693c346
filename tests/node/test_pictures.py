"""Rows at one entry: those on disk, and over them what has changed since, are what the machine would dump."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from resourcelease.machine import Machine
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Complete, Enqueue, Lease, pack_entry, pack_op, pack_ops
from resourcelease.model.results import Granted
from resourcelease.node.pictures import Missed, RowsDigest, digest_of, take_picture
from resourcelease.node.takes import HeldLog, Take, Takes, laid_over
from resourcelease.storage import JournalEntry, LmdbStore, StoreOptions, WriteBatch

SMALL = StoreOptions(ballast_bytes=0, map_size_bytes=1 << 20)


class Written:
    """A machine, its store, and the takes between the two, as a node has them."""

    def __init__(self, store: LmdbStore, seed: int) -> None:
        self.machine = Machine("c")
        self.store = store
        self.takes = Takes(lambda: store.settled_rows_index)
        self.chance = random.Random(seed)
        self.leases: list[tuple[int, int, int]] = []

    def apply(self) -> None:
        """One entry of some kind."""
        index = self.machine.applied_index + 1
        kind = self.chance.randrange(3)
        call = Call("jobs", peer="w")
        if kind == 0:
            op = pack_op(Enqueue(call, ItemColumns(3, "table", ["a", "b", "c"]).packed()))
        elif kind == 1 or not self.leases:
            op = pack_op(Lease(call, limit=self.chance.randrange(1, 6)))
        else:
            taken = [self.leases.pop(self.chance.randrange(len(self.leases))) for _ in range(1)]
            op = pack_op(Complete(call, *map(list, zip(*taken, strict=True))))
        applied = self.machine.apply(index, 1, pack_entry(index, index, pack_ops([op])))
        (result,) = applied.results
        if isinstance(result, Granted):
            self.leases += zip(result.sequence_ids, result.attempts, result.fences, strict=True)
        self.store.write(WriteBatch(appends=[JournalEntry(index, 1, b"entry %d" % index)])).result()

    def taken(self) -> Take:
        return Take(self.machine.applied_index, *self.machine.take_changes())

    def store_rows(self) -> None:
        """As write-behind does."""
        take = self.takes.stored(self.taken())
        batch = WriteBatch(row_puts=list(take.puts), row_deletes=list(take.deletes), rows_index=take.index, rows_term=1)
        self.store.write(batch).result()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LmdbStore]:
    store = LmdbStore(tmp_path, cluster_id="c", node_id="n1", options=SMALL)
    yield store
    store.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_picture_has_the_digest_of_the_machine_wherever_it_is_taken(store: LmdbStore, seed: int) -> None:
    written = Written(store, seed)
    for _ in range(150):
        written.apply()
        roll = written.chance.random()
        if roll < 0.2:
            written.store_rows()
        elif roll < 0.5:
            machine, index = written.machine, written.machine.applied_index
            expected = machine.digest().hex()
            takes = written.takes.look(written.taken())
            picture = take_picture(store, takes, 0, index, 1, keep=index > 1)
            written.takes.let_go(index)
            # Whatever is applied and stored meanwhile is no part of it.
            for _ in range(written.chance.randrange(4)):
                written.apply()
                if written.chance.random() < 0.3:
                    written.store_rows()
            assert picture.digest(threading.Event()) == expected
            if index > 1:
                whole, number, last = RowsDigest(), 0, False
                while not last:
                    rows, last = picture.piece(number)
                    assert picture.piece(number) == (rows, last)
                    whole.add(rows)
                    number += 1
                assert whole.hex() == expected
                assert [entry.index for entry in picture.head] == [index - 1, index]
                with pytest.raises(Missed, match="is not to be had"):
                    picture.piece(number + 1)
            picture.close()
    # What was taken early has not been lost on its way to the disk.
    written.store_rows()
    store.write(WriteBatch()).result()
    assert dict(store.rows()) == dict(written.machine.dump_rows())


def test_rows_of_another_entry_are_no_picture(store: LmdbStore) -> None:
    written = Written(store, 1)
    for _ in range(5):
        written.apply()
    takes = written.takes.look(written.taken())
    picture = take_picture(store, takes, 0, 4, 1, keep=False)
    with pytest.raises(Missed, match="stand for entry 5, not for 4"):
        picture.digest(threading.Event())


def test_rows_of_before_a_snapshot_are_none(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resourcelease.node.pictures._PATIENCE_S", 0.0)
    written = Written(store, 1)
    for _ in range(5):
        written.apply()
    written.store_rows()
    written.takes.restart(9)
    with pytest.raises(Missed, match="those of entry 9 are not there yet"):
        take_picture(store, (), written.takes.floor, 9, 1, keep=False)


def test_a_digest_ends_when_the_node_stops() -> None:
    closing = threading.Event()
    closing.set()
    rows = ((b"i%09d" % number, b"x" * 100) for number in range(1_000_000))
    with pytest.raises(Missed, match="the node stops"):
        digest_of(rows, 1, closing)


def test_later_rows_stay_away_while_somebody_looks() -> None:
    class Log:
        durable_index = 90

        def hurry(self) -> None:
            self.hurried = True

    takes, log = Takes(lambda: 0), Log()
    held = HeldLog(log, takes)
    assert held.durable_index == 90
    takes.look(Take(40, [], []))
    takes.look(Take(60, [], []))
    assert held.durable_index == 40
    takes.let_go(40)
    assert held.durable_index == 60
    takes.let_go(60)
    assert held.durable_index == 90
    held.hurry()
    assert log.hurried


def test_changes_over_rows_keep_the_order_of_keys() -> None:
    rows = [(b"b", b"1"), (b"d", b"1")]
    takes = [Take(1, [(b"a", b"2"), (b"c", b"2"), (b"e", b"2")], [b"b"]), Take(2, [(b"b", b"3")], [b"e"])]
    assert list(laid_over(rows, takes)) == [(b"a", b"2"), (b"b", b"3"), (b"c", b"2"), (b"d", b"1")]
