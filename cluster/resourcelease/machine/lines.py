"""Items from their stored rows, and into line: which lane, and where in it."""

from typing import Any, TypeAlias

from resourcelease.machine.agenda import Delay
from resourcelease.machine.items import Batch
from resourcelease.machine.state import PRIORITY, REQUEST_ID, History, Namespace, State
from resourcelease.model.errors import CorruptLog
from resourcelease.model.items import ItemColumns

__all__ = ["Dead", "Holds", "Lines"]

# Leases that share namespace, peer, principal and deadline: their ids and fences.
Holds: TypeAlias = dict[tuple[int, str, str, int], tuple[list[int], list[int]]]
# Namespace, order of death, id, cause.
Dead: TypeAlias = list[tuple[int, int, int, str]]


class Lines:
    """The items of one namespace while its rows are loaded."""

    def __init__(self, ns: Namespace) -> None:
        self._ns = ns
        # Batches as stored, and what is left of them, by first id.
        self.batches: dict[int, Any] = {}
        self.held: dict[int, Any] = {}
        # Pending by priority: ticket and id of the first, and how many.
        self._pending: dict[int, list[tuple[int, int, int]]] = {}
        # Items that are in a batch but not in line.
        self._apart: dict[int, None] = {}

    def add_item(self, state: State, sequence_id: int, fields: Any, holds: Holds, dead: Dead) -> None:
        """An item that has a row of its own."""
        ns = self._ns
        row, history, (place, *where) = fields
        ns.items.stored_rows.add(sequence_id)
        if row is None:
            self._apart[sequence_id] = None
        else:
            ns.items[sequence_id] = tuple(row)
            if history is not None:
                ns.history[sequence_id] = History.unpacked(history)
            if row[REQUEST_ID]:
                ns.requests[row[REQUEST_ID]] = sequence_id
        if place == "active":
            fence, peer, principal, deadline_ms = where
            ids, fences = holds.setdefault((ns.number, peer, principal, deadline_ms), ([], []))
            ids.append(sequence_id)
            fences.append(fence)
        elif place == "delayed":
            due_ms, ticket = where
            ns.delayed[sequence_id] = (due_ms, ticket)
            state.delays.add(Delay(due_ms, ticket, sequence_id, ns.name))
        elif row is None:
            raise CorruptLog(f"item {sequence_id} has a row without content")
        elif place == "dead":
            order, cause = where
            dead.append((ns.number, order, sequence_id, cause))
        else:
            self._wait(row[PRIORITY], ns.ticket_of(sequence_id), sequence_id, 1)

    def form(self) -> None:
        """Makes the lanes, once all rows are here."""
        items = self._ns.items
        for first_id in sorted(self.batches):
            packed, wall_ms, lead = self.batches[first_id]
            columns = ItemColumns.unpacked(packed)
            if not columns.even():
                raise CorruptLog(f"the batch of item {first_id} has columns of different lengths")
            batch = Batch(first_id, columns, packed, wall_ms, lead)
            runs = self.held.pop(first_id, None) or (first_id, first_id + batch.size)
            items.load(batch, runs)
            for run_first, run_end in zip(runs[::2], runs[1::2], strict=True):
                self._queue(batch, columns, run_first, run_end)
        if self.held or not all(sequence_id in items for sequence_id in self._apart):
            raise CorruptLog("rows speak of items that are in no batch")
        for priority, pending in self._pending.items():
            for _, sequence_id, count in sorted(pending):
                self._ns.ready.append_run(priority, sequence_id, count)

    def _queue(self, batch: Batch, columns: ItemColumns, first: int, end: int) -> None:
        """Those of a run that are pending; all of it at once where it is all alike."""
        if batch.request_ids is not None:
            for sequence_id in range(first, end):
                if request_id := batch.request_id(sequence_id):
                    self._ns.requests[request_id] = sequence_id
        priority: Any = columns.priority
        if type(priority) is int and not self._apart:
            self._wait(priority, batch.lead + first, first, end - first)
            return
        for sequence_id in range(first, end):
            if sequence_id not in self._apart:
                own = priority[sequence_id - batch.first_id] if type(priority) is list else priority
                self._wait(own, batch.lead + sequence_id, sequence_id, 1)

    def _wait(self, priority: int, ticket: int, first_id: int, count: int) -> None:
        self._pending.setdefault(priority, []).append((ticket, first_id, count))
