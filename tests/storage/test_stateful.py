"""Two stores against a dict: any sequence of batches, restarts and snapshots sent from one to the other."""

import os
import shutil
import tempfile
from concurrent.futures import Future
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from resourcelease.storage import InvalidBatch, JournalEntry, LmdbStore, WriteBatch

from .model import Model, append, held, open_store

KEYS = st.sampled_from([b"a", b"b", b"bb", b"c", b"k" * 511])
DATA = st.one_of(st.binary(max_size=30), st.integers(3000, 20_000).map(bytes))
# No power cut is tried here, so no disk is needed, which leaves time for many more histories.
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
NODES = st.integers(0, 1)


class StoreMachine(RuleBasedStateMachine):
    """Each node has a store and a model of it; writes may still be under way until something looks."""

    ahead_bytes = 0

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="stateful-", dir=MEMORY))
        self.models = [Model(), Model()]
        self.stores = [self.open(0), self.open(1)]
        self.pending: list[Future[None]] = []
        # Nodes with rows that may come later and are not known to have.
        self.later: set[int] = set()

    def open(self, node: int) -> LmdbStore:
        return open_store(self.root / str(node), node_id=f"n{node}", ahead_bytes=self.ahead_bytes, settle_s=0.002)

    def settle(self) -> None:
        for future in self.pending:
            future.result(10)
        self.pending.clear()

    @rule(node=NODES, data=st.data())
    def write(self, node: int, data: st.DataObject) -> None:
        batch = data.draw(_batches(self.models[node]))
        if not self.stores[node].write_at_once(batch):
            self.pending.append(self.stores[node].write(batch))
        self.models[node].apply(batch)

    @precondition(lambda self: any(model.last_index > model.rows_index for model in self.models))
    @rule(data=st.data())
    def write_later(self, data: st.DataObject) -> None:
        node = data.draw(
            st.sampled_from([at for at in (0, 1) if self.models[at].last_index > self.models[at].rows_index])
        )
        model = self.models[node]
        batch = data.draw(_rows(model))
        self.stores[node].write_later(batch)
        model.apply(batch)
        self.later.add(node)

    @rule(node=NODES)
    def look_at_positions(self, node: int) -> None:
        """What is durable in the log ahead counts, settled or not."""
        self.settle()
        loaded, model = self.stores[node].load(), self.models[node]
        assert (loaded.term, loaded.voted_for, loaded.last_index) == (model.term, model.voted_for, model.last_index)
        if node in self.later:
            assert loaded.rows_index <= model.rows_index
            assert loaded.first_index <= model.first_index
        else:
            assert (loaded.rows_index, loaded.rows_term) == (model.rows_index, model.rows_term)
            assert loaded.first_index == model.first_index

    @rule(node=NODES, ahead=st.integers(1, 50), head=st.integers(0, 3), value=DATA)
    def replace_everything(self, node: int, ahead: int, head: int, value: bytes) -> None:
        """Rows from elsewhere, and the journal empty behind them or with the last entries they stand for."""
        model = self.models[node]
        index = model.last_index + ahead
        first = max(index - head + 1, model.last_index + 1)
        batch = WriteBatch(
            truncate_from=model.first_index,
            appends=[JournalEntry(number, 7, value) for number in range(first, index + 1)],
            row_puts=[(b"whole", value)],
            row_deletes=list(model.rows.keys() - {b"whole"}),
            rows_index=index,
            rows_term=max(1, model.term),
            compact_through=0 if first <= index else index,
        )
        self.pending.append(self.stores[node].write(batch))
        model.apply(batch)

    @rule(node=NODES, wrong=st.sampled_from(["gap", "compaction", "rows", "entry", "vote"]), later=st.booleans())
    def refuse(self, node: int, wrong: str, later: bool) -> None:
        last = self.models[node].last_index
        batch = {
            "gap": WriteBatch(appends=[JournalEntry(last + 2, 1, b"")]),
            "compaction": WriteBatch(compact_through=last + 1),
            "rows": WriteBatch(rows_index=last + 1, rows_term=1),
            "entry": append(last + 1, last + 1),
            "vote": WriteBatch(vote=(99, "n0")),
        }[wrong]
        try:
            if later or wrong in ("entry", "vote"):
                self.stores[node].write_later(batch)
            else:
                self.stores[node].write(batch)
        except InvalidBatch:
            return
        raise AssertionError(f"{wrong} was taken")

    @rule(node=NODES)
    def restart(self, node: int) -> None:
        self.stores[node].close()
        self.settle()
        self.stores[node] = self.open(node)
        self.later.discard(node)

    @precondition(lambda self: self.models[0].rows_index != self.models[1].rows_index)
    @rule(extra=DATA)
    def send_snapshot(self, extra: bytes) -> None:
        sender = 0 if self.models[0].rows_index > self.models[1].rows_index else 1
        source, target = self.stores[sender], self.stores[1 - sender]
        sent = source.snapshot("digest").result(10)
        receiver = target.snapshots.receive(sent.manifest)
        with sent.data.open("rb") as file:
            while piece := file.read(10_000):
                receiver.write(piece)
        staged = target.stage(receiver.finish()).result(10)
        future = target.install(staged)
        self.models[1 - sender].install(self.models[sender])
        following = WriteBatch(appends=[JournalEntry(self.models[1 - sender].last_index + 1, 9, extra)])
        self.pending.append(target.write(following))
        self.models[1 - sender].apply(following)
        assert future.result(10).first_index == staged.manifest.index + 1

    @invariant()
    def lengths_agree(self) -> None:
        # A batch that is under way may or may not be seen; when none is, everything is.
        if len(self.pending) > 3:
            self.compare()

    @rule()
    def compare(self) -> None:
        self.settle()
        for store, model in zip(self.stores, self.models, strict=True):
            # Reading rows has everything settle.
            dict(store.rows())
            assert held(store) == model
        self.later.clear()

    def teardown(self) -> None:
        self.compare()
        for store in self.stores:
            store.close()
        shutil.rmtree(self.root)


@st.composite
def _batches(draw: st.DrawFn, model: Model) -> WriteBatch:
    """A batch that follows from ``model``."""
    batch = WriteBatch()
    last = model.last_index
    lowest_cut = max(model.rows_index, model.first_index - 1) + 1
    if lowest_cut <= last and draw(st.integers(0, 3)) == 0:
        batch.truncate_from = draw(st.integers(lowest_cut, last + 1))
        last = batch.truncate_from - 1
    for _ in range(draw(st.integers(0, 4))):
        last += 1
        batch.appends.append(JournalEntry(last, draw(st.integers(1, 5)), draw(DATA)))
    if draw(st.booleans()):
        batch.vote = (model.term + draw(st.integers(0, 2)), draw(st.sampled_from(["", "n0", "n1", "ñ"])))
    batch.row_puts = draw(st.lists(st.tuples(KEYS, DATA), max_size=3))
    batch.row_deletes = draw(st.lists(KEYS, max_size=2))
    rows_index = model.rows_index
    if last > rows_index and draw(st.booleans()):
        batch.rows_index = rows_index = draw(st.integers(max(1, rows_index), last))
        batch.rows_term = draw(st.integers(1, 5))
    if rows_index and draw(st.booleans()):
        batch.compact_through = draw(st.integers(1, rows_index))
    return batch


@st.composite
def _rows(draw: st.DrawFn, model: Model) -> WriteBatch:
    """Rows that the journal leads to, sometimes more than the log ahead has room for."""
    batch = WriteBatch(rows_index=draw(st.integers(model.rows_index + 1, model.last_index)), rows_term=1)
    batch.row_puts = draw(st.lists(st.tuples(KEYS, DATA), max_size=3))
    batch.row_deletes = draw(st.lists(KEYS, max_size=2))
    if draw(st.booleans()):
        batch.compact_through = draw(st.integers(1, batch.rows_index))
    return batch


class AheadMachine(StoreMachine):
    """The same with a log ahead, too small for some batches, whose files take turns all the time."""

    ahead_bytes = 24 << 10


TestStore = StoreMachine.TestCase
TestAhead = AheadMachine.TestCase
TestStore.settings = TestAhead.settings = settings(
    max_examples=120,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
)
