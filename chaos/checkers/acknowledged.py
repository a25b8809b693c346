"""What callers were told is what the history says: once, and the same each time they ask."""

from collections.abc import Callable
from typing import Any

from chaos.checkers.items import Items
from chaos.checkers.verdict import Violation
from resourcelease.model.errors import Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import (
    BeginEffect,
    Complete,
    Drain,
    Enqueue,
    Fail,
    FinishEffect,
    GiveBack,
    Heartbeat,
    Lease,
    Op,
    Redrive,
    Restore,
)
from resourcelease.model.results import Acked, Drained, EffectState, Enqueued, Granted, Redriven, Restored

__all__ = ["Acknowledged"]

# The events that are an operation's own, beside what follows from it. REQUEUED only where a lease was given back.
_OWN = (
    EventType.ENQUEUE,
    EventType.LEASE_GRANTED,
    EventType.HEARTBEAT,
    EventType.COMPLETED,
    EventType.FAILED,
    EventType.REQUEUED,
    EventType.CONFIGURED,
    EventType.REDRIVEN,
    EventType.RESTORE_SNAPSHOT,
)


class Acknowledged:
    """Every acknowledged operation is in the history, exactly once, with the answer that was given.

    The history is told record by record, answers as they reach their callers: a node that answers has applied the
    operation, so its events are known by then. Under one operation id a caller asks the same, and is told the same.
    """

    def __init__(self, items: Items) -> None:
        self._items = items
        # By operation: its own record.
        self._records: dict[tuple[str, str, str], Record] = {}
        # First answers, by operation.
        self._answers: dict[tuple[str, str, str], Any] = {}
        # Leases whose completion was refused to a caller.
        self._refused: dict[tuple[str, int, int], str] = {}
        self.count = 0
        self._judges: dict[type[Any], Callable[[Any, Any], None]] = {
            Enqueue: self._enqueued,
            Lease: self._granted,
            Heartbeat: self._extended,
            Complete: self._completed,
            Fail: lambda op, result: self._ended(op, result, self._items.failed),
            GiveBack: lambda op, result: self._ended(op, result, self._items.given_back),
            Redrive: self._redriven,
            Drain: self._drained,
            Restore: self._restored,
            BeginEffect: self._effect,
            FinishEffect: self._effect,
        }
        # Pages by namespace, bundle and number, as the history has them.
        self._pages: dict[tuple[str, str, int], bytes] = {}
        # By namespace and effect: the stored result.
        self._effects: dict[tuple[str, str], bytes] = {}

    def event(self, record: Record) -> None:
        """The next record of the history, after ``Items`` has been told of it."""
        call = record.call
        follows = record.type is EventType.REQUEUED and record.data.cause != "given_back"  # type: ignore[union-attr]
        if call.operation_id and record.type in _OWN and not follows and record.answer is not None:
            key = (call.namespace, call.peer, call.operation_id)
            before = self._records.setdefault(key, record)
            if before is not record:
                raise Violation(
                    "exactly once",
                    f"operation {call.operation_id} took effect in event {before.sequence} and again in "
                    f"{record.sequence}",
                )
        data: Any = record.data
        if record.type is EventType.DRAIN_SNAPSHOT and data.sequence_ids:
            self._pages[record.namespace, data.bundle_id, data.number] = data.page
        if record.type is EventType.COMPLETED:
            for sequence_id, fence in zip(data.sequence_ids, data.fences, strict=True):
                reason = self._refused.get((record.namespace, sequence_id, fence))
                if reason:
                    raise Violation(
                        "one verdict", f"item {sequence_id} completes under fence {fence}, which was refused: {reason}"
                    )

    def answered(self, op: Op, result: Any) -> None:
        """A caller was told so."""
        self.count += 1
        judge = self._judges.get(type(op))
        if judge is None or isinstance(result, Refusal):
            return
        judge(op, result)

    def _record(self, op: Op, type_: EventType) -> Record:
        call = op.call
        record = self._records.get((call.namespace, call.peer, call.operation_id))
        if record is None or record.type is not type_:
            raise Violation(
                "acknowledged operations stay",
                f"operation {call.operation_id} was accepted, and the history has no {type_.name} of it",
            )
        return record

    def _same(self, op: Op, told: Any) -> Any:
        """What was told of the operation first; the two are to be compared."""
        return self._answers.setdefault((op.call.namespace, op.call.peer, op.call.operation_id), told)

    def _differs(self, op: Op, first: object, told: object) -> Violation:
        return Violation("one answer", f"operation {op.call.operation_id} was answered {first}, and then {told}")

    def _expect(self, op: Op, result: Any, kind: type[Any]) -> None:
        if not isinstance(result, kind):
            raise Violation(
                "answers belong to their calls",
                f"{type(op).__name__} {op.call.operation_id} is answered with {type(result).__name__}",
            )

    def _enqueued(self, op: Enqueue, result: Enqueued) -> None:
        self._expect(op, result, Enqueued)
        ids = list(result.sequence_ids)
        new = [i for place, i in enumerate(ids) if i and place not in result.duplicates]
        if new:
            record = self._record(op, EventType.ENQUEUE)
            first_id: int = record.data.first_id  # type: ignore[union-attr]
            if new != list(range(first_id, first_id + record.count)):
                raise self._differs(op, f"ids {first_id} to {first_id + record.count - 1} in the history", new)
        requests = ItemColumns.unpacked(op.items).request_id
        for place in result.duplicates:
            request: Any = requests[place] if requests else None
            if ids[place] not in self._items.made_by(op.call.namespace, request):
                raise Violation("one item a request", f"request {request} is said to be item {ids[place]}")
        if new and self._same(op, ids) != ids:
            raise self._differs(op, self._same(op, ids), ids)

    def _granted(self, op: Lease, result: Granted) -> None:
        self._expect(op, result, Granted)
        handles = list(zip(result.sequence_ids, result.attempts, result.fences, strict=True))
        for sequence_id, attempt, fence in handles:
            lease = (op.call.namespace, sequence_id, attempt, op.call.peer)
            if self._items.granted.get(fence) != lease:
                raise Violation(
                    "acknowledged operations stay",
                    f"{op.call.peer} was given item {sequence_id} under fence {fence}; the history gives that fence "
                    f"to {self._items.granted.get(fence)}",
                )
        first = self._same(op, handles) if handles else handles
        if not set(handles) <= set(first):
            raise self._differs(op, first, handles)

    def _acked(self, op: Any, result: Acked) -> list[tuple[tuple[str, int, int], str]]:
        """Each lease of a call, with the reason for which it was refused, or nothing."""
        self._expect(op, result, Acked)
        refused = {place: str(refusal.reason) for place, refusal in result.refused.items()}
        if len(refused) < result.total and self._same(op, refused) != refused:
            raise self._differs(op, self._same(op, refused), refused)
        leases = zip(op.sequence_ids, op.fences, strict=True)
        return [
            ((op.call.namespace, sequence_id, fence), refused.get(place, ""))
            for place, (sequence_id, fence) in enumerate(leases)
        ]

    def _redriven(self, op: Redrive, result: Redriven) -> None:
        self._expect(op, result, Redriven)
        ids = list(result.sequence_ids)
        if ids:
            data: Any = self._record(op, EventType.REDRIVEN).data
            if data.sequence_ids != ids:
                raise self._differs(op, f"{data.sequence_ids} in the history", ids)

    def _drained(self, op: Drain, result: Drained) -> None:
        self._expect(op, result, Drained)
        if result.size and self._pages.get((op.call.namespace, op.bundle_id, op.page)) != result.page:
            raise Violation(
                "acknowledged operations stay",
                f"page {op.page} of bundle {op.bundle_id} was handed out, and the history has no such page",
            )

    def _restored(self, op: Restore, result: Restored) -> None:
        self._expect(op, result, Restored)
        if result.restored and self._record(op, EventType.RESTORE_SNAPSHOT).count != result.restored:
            raise self._differs(op, "another number of items in the history", f"{result.restored} restored")

    def _effect(self, op: BeginEffect | FinishEffect, result: EffectState) -> None:
        self._expect(op, result, EffectState)
        if not result.finished:
            return
        first = self._effects.setdefault((op.call.namespace, op.effect_id), result.result)
        if first != result.result:
            raise Violation("one result an effect", f"effect {op.effect_id} gave {first!r}, and then {result.result!r}")

    def _extended(self, op: Heartbeat, result: Acked) -> None:
        if op.sequence_ids is None:
            self._expect(op, result, Acked)
            self._record(op, EventType.HEARTBEAT)
        elif not all(reason for _, reason in self._acked(op, result)):
            self._record(op, EventType.HEARTBEAT)

    def _ended(self, op: Fail | GiveBack, result: Acked, ends: dict[tuple[str, int, int], int]) -> None:
        for lease, reason in self._acked(op, result):
            if not reason and lease not in ends:
                raise Violation(
                    "acknowledged operations stay",
                    f"{type(op).__name__} of item {lease[1]} under fence {lease[2]} was accepted and is not in the "
                    "history",
                )

    def _completed(self, op: Complete, result: Acked) -> None:
        for lease, reason in self._acked(op, result):
            if not reason and lease not in self._items.completed:
                raise Violation(
                    "acknowledged operations stay",
                    f"item {lease[1]} was completed under fence {lease[2]}, and the history does not have it",
                )
            if reason and lease in self._items.completed:
                raise Violation(
                    "one verdict", f"item {lease[1]} was completed under fence {lease[2]}, and is refused: {reason}"
                )
            if reason:
                self._refused[lease] = reason
