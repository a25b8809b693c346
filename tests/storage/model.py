"""A store as plain Python values: what every test of the real one compares with."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from resourcelease.storage import JournalEntry, LmdbStore, StoreOptions, WriteBatch

CLUSTER = "c1"
NODE = "n1"

# Small enough that growth and chunks happen in every test.
SMALL = StoreOptions(
    map_size_bytes=128 << 10,
    compaction_chunk=2,
    compaction_chunk_idle=3,
    ballast_bytes=0,
    full_retry_s=0.02,
    # Most tests are of the store behind the log ahead; ``test_ahead`` is of both.
    ahead_bytes=0,
)


def open_store(directory: Path, node_id: str = NODE, **options: Any) -> LmdbStore:
    """A store with small sizes; keywords replace single options."""
    on_status: Callable[..., None] | None = options.pop("on_status", None)
    changed = StoreOptions(**{name: options.get(name, getattr(SMALL, name)) for name in StoreOptions.__slots__})
    return LmdbStore(directory, cluster_id=CLUSTER, node_id=node_id, options=changed, on_status=on_status)


@dataclass
class Model:
    """What a store holds. Batches are applied one after another, each field in its order."""

    term: int = 0
    voted_for: str = ""
    rows_index: int = 0
    rows_term: int = 0
    first_index: int = 1
    entries: list[JournalEntry] = field(default_factory=list)
    rows: dict[bytes, bytes] = field(default_factory=dict)

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.entries) - 1

    def apply(self, batch: WriteBatch) -> None:
        if batch.truncate_from:
            self.entries = [entry for entry in self.entries if entry.index < batch.truncate_from]
            if batch.appends and all(entry.index <= batch.compact_through for entry in self.entries):
                self.entries = []
                self.first_index = batch.appends[0].index
        self.entries += batch.appends
        if batch.vote is not None:
            self.term, self.voted_for = batch.vote
        for key, value in batch.row_puts:
            self.rows[key] = value
        for key in batch.row_deletes:
            self.rows.pop(key, None)
        if batch.rows_index:
            self.rows_index, self.rows_term = batch.rows_index, batch.rows_term
        if batch.compact_through:
            self.entries = [entry for entry in self.entries if entry.index > batch.compact_through]
            self.first_index = max(self.first_index, batch.compact_through + 1)

    def install(self, other: "Model") -> None:
        """The other's rows; an empty journal behind them; the own term and vote."""
        self.rows = dict(other.rows)
        self.rows_index, self.rows_term = other.rows_index, other.rows_term
        self.entries = []
        self.first_index = other.rows_index + 1

    def copy(self) -> "Model":
        return deepcopy(self)


def held(store: LmdbStore) -> Model:
    """What a store holds, read back through its interface."""
    loaded = store.load()
    return Model(
        term=loaded.term,
        voted_for=loaded.voted_for,
        rows_index=loaded.rows_index,
        rows_term=loaded.rows_term,
        first_index=loaded.first_index,
        entries=list(store.entries(loaded.first_index, loaded.last_index)),
        rows=dict(store.rows()),
    )


def entries(first: int, last: int, term: int = 1, size: int = 20) -> list[JournalEntry]:
    """Entries whose bytes tell their index and term."""
    return [
        JournalEntry(index, term, (b"%d/%d " % (index, term)).ljust(size, b".")) for index in range(first, last + 1)
    ]


def append(first: int, last: int, term: int = 1, size: int = 20) -> WriteBatch:
    """A batch that appends entries."""
    return WriteBatch(appends=entries(first, last, term, size))


def prefixes(batches: list[WriteBatch]) -> list[Model]:
    """The states before the first batch, after it, and so on."""
    states = [Model()]
    for batch in batches:
        state = states[-1].copy()
        state.apply(batch)
        states.append(state)
    return states
