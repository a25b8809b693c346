"""The library's ``createJournal``, with our journal and store behind it."""

from pathlib import Path

from resourcelease.consensus.journal import Journal
from resourcelease.storage import LmdbStore, StoreOptions


class StoredJournal(Journal):
    """Written when it is destroyed, and read again under the same name."""

    def __init__(self, name: str) -> None:
        options = StoreOptions(ballast_bytes=0, map_size_bytes=1 << 20)
        self._store = LmdbStore(Path(f"{name}-store"), cluster_id="upstream", node_id="journal", options=options)
        loaded = self._store.load()
        held = self._store.entries(loaded.first_index, loaded.last_index)
        super().__init__([(entry.data, entry.index, entry.term) for entry in held], loaded.term, loaded.voted_for)

    def deleteEntriesTo(self, entryTo: int) -> None:
        """A journal is cut only as far as the stored rows stand for it."""
        _, index, term = self[entryTo - 1]
        self.write_rows([], [], index, term)
        super().deleteEntriesTo(entryTo)

    def _destroy(self) -> None:
        batch = self.take_batch()
        if batch is not None:
            self._store.write(batch).result()
        self._store.close()
