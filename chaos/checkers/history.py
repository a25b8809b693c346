"""The history: the same events on every node, without a gap, and a state that is nothing but their fold."""

from collections.abc import Iterable

from chaos.checkers.verdict import Violation
from resourcelease.machine.machine import Machine, fold
from resourcelease.model.errors import CorruptLog
from resourcelease.model.events import Record

__all__ = ["OneHistory"]

# The row of the position: it moves also by entries that no event tells of.
_POSITION = b"m"


class OneHistory:
    """The one line of events, record by record, as written by whichever node was first."""

    def __init__(self) -> None:
        # By the number of a record's first event: the number of its last, the bytes, and who wrote it first.
        self._written: dict[int, tuple[int, bytes, str]] = {}
        self.records: list[Record] = []
        # The number of the last event.
        self.last = 0
        self._clock_ms = 0

    def applied(self, node: str, before: int, after: int, written: Iterable[tuple[int, bytes]]) -> list[Record]:
        """A node went from event ``before`` to event ``after`` and wrote these (first event, bytes); the new ones."""
        fresh: list[Record] = []
        position = before
        for sequence, encoded in written:
            if sequence != position + 1:
                raise Violation("no gaps", f"{node} writes event {sequence} after event {position}")
            if sequence not in self._written:
                fresh.append(self._append(node, encoded))
            position, known, first = self._written[sequence]
            if known != encoded:
                raise Violation("one history", f"event {sequence} is not the same at {node} and at {first}")
        if position != after:
            raise Violation("no gaps", f"{node} is at event {after}, and has written events up to {position}")
        return fresh

    def _append(self, node: str, encoded: bytes) -> Record:
        record = Record.decode(encoded)
        if record.sequence != self.last + 1:
            raise Violation(
                "one history", f"{node} writes a record from event {record.sequence} on; the history is at {self.last}"
            )
        if record.clock_ms < self._clock_ms:
            raise Violation(
                "the lease clock never falls",
                f"event {record.sequence} is at {record.clock_ms}, after {self._clock_ms}",
            )
        self._clock_ms = record.clock_ms
        self.last += record.count
        self._written[record.sequence] = (self.last, encoded, node)
        self.records.append(record)
        return record

    def folds_to(self, cluster_id: str, node: str, machine: Machine) -> None:
        """Folding the events alone gives the state of a node that has written all of them."""
        if machine.sequence_number != self.last:
            raise Violation("no gaps", f"{node} ends at event {machine.sequence_number}, others at {self.last}")
        try:
            folded = fold(cluster_id, [Record.decode(record.encoded) for record in self.records])
        except CorruptLog as error:
            raise Violation("the events are the state", f"they do not fold: {error}") from error
        if (folded.chain(), folded.fence) != (machine.chain(), machine.fence):
            raise Violation("the events are the state", f"folded, they give another chain or fence than {node} has")
        rows, expected = dict(folded.dump_rows()), dict(machine.dump_rows())
        wrong = sorted(key for key in rows | expected if rows.get(key) != expected.get(key) and key != _POSITION)
        if wrong:
            raise Violation("the events are the state", f"folded, they differ from {node} in row {wrong[0]!r}")
