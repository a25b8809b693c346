"""Which version of entries a leader writes: one that every node reads. See docs/upgrades.md.

A node says which versions it reads when it is connected. Entries of a newer version are written only once all members,
and those that are learning, have said so to the leader; from then on for good. A node that meets an entry that it does
not read stops, since it would hold another state than the others from there on.
"""

from collections.abc import Callable, Iterable

from resourcelease.consensus.entries import KIND_OPS, OLDEST_VERSION, decode_ops, version_of
from resourcelease.consensus.journal import Entry
from resourcelease.storage.errors import NewerFormat

__all__ = ["EntryVersions"]


class EntryVersions:
    """What this node reads, what others say that they read, and what the cluster writes.

    >>> others = {"n2": 2, "n3": 1}
    >>> versions = EntryVersions(2, lambda node: others.get(node, 0))
    >>> versions.to_write(["n2", "n3"])
    1
    >>> others["n3"] = 2
    >>> versions.to_write(["n2", "n3"])
    2
    """

    def __init__(
        self, reads: int, read_by: Callable[[str], int], entries: Iterable[Entry] = (), applied_index: int = 0
    ) -> None:
        self.reads = reads
        # What a node has announced on the connection that is in use; 0 where there is none.
        self._read_by = read_by
        # The newest that has been committed, as far as this node has applied the log.
        self.written = OLDEST_VERSION
        self.take(entries, applied_index)

    def take(self, entries: Iterable[Entry], applied_index: int) -> None:
        """Entries that the state here stands for, or some of them: as far as they have been applied."""
        for command, index, _ in entries:
            if command[0] == KIND_OPS and index <= applied_index:
                self.met(index, decode_ops(command)[1])

    def met(self, index: int, entry: bytes) -> None:
        """An entry is about to be applied; ``NewerFormat`` if this release cannot read it."""
        version = version_of(entry)
        if version > self.reads:
            raise NewerFormat(
                f"entry {index} is of version {version}, and this release reads versions up to {self.reads}: the "
                f"cluster has been upgraded; install a release that reads version {version} and start this node again"
            )
        if version > self.written:
            self.written = version

    def to_write(self, others: Iterable[str]) -> int:
        """The version of the next entry; ``others`` are all nodes but this one that are sent the log."""
        if self.written == self.reads:
            return self.written
        return max(self.written, min([self.reads, *map(self._read_by, others)]))
