"""The life of every item, as the events tell it: one live lease, rising fences, one verdict, no lease cut short."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from chaos.checkers.verdict import Violation
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns

__all__ = ["Items"]

# An item and a lease of it: namespace, sequence id, fence.
Leased = tuple[str, int, int]


@dataclass(slots=True)
class _Item:
    # waiting, active, ended (its lease is over, and what comes of it not told yet), dead, drained, completed, discarded
    place: str = "waiting"
    attempt: int = 1
    fence: int = 0
    peer: str = ""
    end_ms: int = 0
    # A delay that has not ended.
    due_ms: int = 0
    request: str = ""
    # Once it is gone: until when its request id makes no other item.
    known_until_ms: int = 0


class Items:
    """Follows every item through the events, each of which is told once and in order."""

    def __init__(self) -> None:
        self._items: dict[tuple[str, int], _Item] = {}
        self._next_id: dict[str, int] = {}
        self._fence = 0
        # Until when the leases of a peer in a namespace run at least, by its own heartbeats.
        self._held_until: dict[tuple[str, str], int] = {}
        # By namespace and request id: the items that it made; the last of them is the one that it stands for.
        self._requests: dict[tuple[str, str], list[int]] = {}
        self._dedup_ms: dict[str, int] = {}
        # How leases ended that had an end of their own.
        self.completed: dict[Leased, int] = {}
        self.failed: dict[Leased, int] = {}
        self.given_back: dict[Leased, int] = {}
        # By fence: namespace, id, attempt, holder.
        self.granted: dict[int, tuple[str, int, int, str]] = {}
        self._told: dict[EventType, Callable[[Record, Any], None]] = {
            EventType.CONFIGURED: self._configured,
            EventType.ENQUEUE: self._enqueued,
            EventType.LEASE_GRANTED: self._granted,
            EventType.HEARTBEAT: self._extended,
            EventType.COMPLETED: self._completed,
            EventType.FAILED: self._failed,
            EventType.LEASE_EXPIRED: self._expired,
            EventType.REQUEUED: self._requeued,
            EventType.RELEASED: self._released,
            EventType.DEAD_LETTERED: self._buried,
            EventType.REDRIVEN: self._redriven,
            EventType.DISCARDED: self._discarded,
            EventType.DRAIN_SNAPSHOT: self._drained,
            EventType.RESTORE_SNAPSHOT: self._restored,
        }

    def event(self, record: Record) -> None:
        """The next record of the history."""
        told = self._told.get(record.type)
        if told is not None:
            told(record, record.data)

    def made_by(self, namespace: str, request_id: str) -> list[int]:
        """The items that a request id made."""
        return self._requests.get((namespace, request_id), [])

    def places(self, namespace: str) -> dict[str, int]:
        """How many items of a namespace are where."""
        found: dict[str, int] = {}
        for (name, _), item in self._items.items():
            if name == namespace:
                found[item.place] = found.get(item.place, 0) + 1
        return found

    # What is told.

    def _enqueued(self, record: Record, data: Any) -> None:
        ns = record.namespace
        if data.first_id != self._next_id.get(ns, 1):
            raise Violation("ids are given once", f"{ns} gives id {data.first_id} after {self._next_id.get(ns, 1) - 1}")
        self._next_id[ns] = data.first_id + record.count
        columns = ItemColumns.unpacked(data.columns)
        for place, (delay, request) in enumerate(
            zip(_column(columns.not_before_ms, record), _column(columns.request_id, record), strict=True)
        ):
            sequence_id = data.first_id + place
            due_ms = record.clock_ms + delay if delay else 0
            self._items[ns, sequence_id] = _Item(due_ms=due_ms, request=request or "")
            if request:
                self._requested(record, request, sequence_id)

    def _requested(self, record: Record, request: str, sequence_id: int) -> None:
        made = self._requests.setdefault((record.namespace, request), [])
        for other in made:
            item = self._items[record.namespace, other]
            here = item.place in ("waiting", "active", "ended", "dead")
            if other != sequence_id and (here or record.clock_ms < item.known_until_ms):
                raise Violation(
                    "one item a request",
                    f"request {request} made item {other} of {record.namespace}, and now {sequence_id}",
                )
        made.append(sequence_id)

    def _configured(self, record: Record, data: Any) -> None:
        self._dedup_ms[record.namespace] = data.options["dedup_window_ms"]

    def _gone(self, record: Record, item: _Item, place: str) -> None:
        item.place = place
        item.known_until_ms = record.clock_ms + self._dedup_ms[record.namespace]

    def _granted(self, record: Record, data: Any) -> None:
        if data.first_fence <= self._fence:
            raise Violation(
                "fences rise", f"event {record.sequence} grants fence {data.first_fence} after {self._fence}"
            )
        for place, (sequence_id, attempt) in enumerate(_pairs(record, data)):
            item = self._item(record, sequence_id)
            fence = data.first_fence + place
            if item.place == "active":
                raise Violation(
                    "one live lease",
                    f"item {sequence_id} goes to {record.peer} under fence {fence} while {item.peer} holds it "
                    f"under fence {item.fence}",
                )
            self._expect(record, sequence_id, item, "waiting", attempt)
            if item.due_ms:
                raise Violation("a delay is kept", f"item {sequence_id} is granted before its delay has ended")
            item.place, item.fence, item.peer, item.end_ms = "active", fence, record.peer, data.deadline_ms
            self._fence = fence
            self.granted[fence] = (record.namespace, sequence_id, attempt, record.peer)

    def _extended(self, record: Record, data: Any) -> None:
        if not data.sequence_ids:
            key = (record.namespace, record.peer)
            self._held_until[key] = max(self._held_until.get(key, 0), data.deadline_ms)
            return
        for sequence_id, attempt, fence in _handles(record, data):
            item = self._live(record, sequence_id, attempt, fence)
            item.end_ms = max(self._end_ms(record, item), data.deadline_ms)

    def _completed(self, record: Record, data: Any) -> None:
        self._end(record, data, "completed", self.completed)

    def _failed(self, record: Record, data: Any) -> None:
        self._end(record, data, "ended", self.failed)

    def _expired(self, record: Record, data: Any) -> None:
        for sequence_id, attempt, fence in _handles(record, data):
            item = self._item(record, sequence_id)
            self._expect(record, sequence_id, item, "active", attempt)
            end_ms = self._end_ms(record, item)
            if item.fence != fence or record.clock_ms < end_ms:
                raise Violation(
                    "no lease is cut short",
                    f"fence {fence} of item {sequence_id} expires at {record.clock_ms}; it runs until {end_ms}",
                )
            item.place = "ended"

    def _requeued(self, record: Record, data: Any) -> None:
        if data.cause == "given_back":
            self._end(record, data, "waiting", self.given_back)
            return
        dues = _column(data.due_ms, record)
        for (sequence_id, attempt), due_ms in zip(_pairs(record, data), dues, strict=True):
            item = self._item(record, sequence_id)
            self._expect(record, sequence_id, item, "ended", attempt - 1)
            item.place, item.attempt, item.due_ms = "waiting", attempt, due_ms

    def _released(self, record: Record, data: Any) -> None:
        for sequence_id, attempt in _pairs(record, data):
            item = self._item(record, sequence_id)
            self._expect(record, sequence_id, item, "waiting", attempt)
            if record.clock_ms < item.due_ms:
                raise Violation("a delay is kept", f"item {sequence_id} waits until {item.due_ms}")
            item.due_ms = 0

    def _buried(self, record: Record, data: Any) -> None:
        for sequence_id, attempt in _pairs(record, data):
            item = self._item(record, sequence_id)
            self._expect(record, sequence_id, item, "ended", attempt)
            item.place = "dead"

    def _redriven(self, record: Record, data: Any) -> None:
        for sequence_id, attempt in _pairs(record, data):
            item = self._item(record, sequence_id)
            self._expect(record, sequence_id, item, "dead", attempt - 1)
            item.place, item.attempt, item.due_ms = "waiting", attempt, data.due_ms

    def _discarded(self, record: Record, data: Any) -> None:
        for sequence_id, attempt in _pairs(record, data):
            item = self._item(record, sequence_id)
            # A dead letter that falls out as it dies is told of after its death.
            self._expect(record, sequence_id, item, "dead", attempt)
            self._gone(record, item, "discarded")

    def _drained(self, record: Record, data: Any) -> None:
        for sequence_id, _ in _pairs(record, data):
            item = self._item(record, sequence_id)
            if item.place not in ("waiting", "active"):
                raise Violation("an item's life", f"item {sequence_id} is drained, and was {item.place}")
            self._gone(record, item, "drained")

    def _restored(self, record: Record, data: Any) -> None:
        for sequence_id, attempt in _pairs(record, data):
            item = self._item(record, sequence_id)
            self._expect(record, sequence_id, item, "drained", attempt)
            # What is left of a delay is in the page.
            item.place, item.due_ms = "waiting", 0
            if item.request:
                self._requested(record, item.request, sequence_id)

    # What must hold.

    def _item(self, record: Record, sequence_id: int) -> _Item:
        item = self._items.get((record.namespace, sequence_id))
        if item is None:
            raise Violation("an item's life", f"event {record.sequence} is about item {sequence_id}, which never came")
        return item

    def _expect(self, record: Record, sequence_id: int, item: _Item, place: str, attempt: int) -> None:
        if (item.place, item.attempt) != (place, attempt):
            promise = "one verdict" if item.place in ("completed", "dead") else "an item's life"
            raise Violation(
                promise,
                f"{record.type.name} (event {record.sequence}) of attempt {attempt} of item {sequence_id}, which is "
                f"{item.place} in attempt {item.attempt}",
            )

    def _end_ms(self, record: Record, item: _Item) -> int:
        return max(item.end_ms, self._held_until.get((record.namespace, item.peer), 0))

    def _live(self, record: Record, sequence_id: int, attempt: int, fence: int) -> _Item:
        item = self._item(record, sequence_id)
        self._expect(record, sequence_id, item, "active", attempt)
        if item.fence != fence:
            raise Violation(
                "an old fence is refused", f"fence {fence} of item {sequence_id} is accepted; {item.fence} is live"
            )
        if record.clock_ms >= self._end_ms(record, item):
            raise Violation(
                "a late ack is refused",
                f"{record.type.name} of item {sequence_id} at {record.clock_ms}; its lease ended at "
                f"{self._end_ms(record, item)}",
            )
        return item

    def _end(self, record: Record, data: Any, place: str, ends: dict[Leased, int]) -> None:
        for sequence_id, attempt, fence in _handles(record, data):
            item = self._live(record, sequence_id, attempt, fence)
            item.place = place
            if place == "completed":
                self._gone(record, item, place)
            ends[record.namespace, sequence_id, fence] = record.sequence


def _column(column: Any, record: Record) -> list[Any]:
    return column if type(column) is list else [column] * record.count


def _pairs(record: Record, data: Any) -> Iterator[tuple[int, int]]:
    return zip(data.sequence_ids, _column(data.attempts, record), strict=False)


def _handles(record: Record, data: Any) -> Iterator[tuple[int, int, int]]:
    return zip(data.sequence_ids, _column(data.attempts, record), data.fences, strict=True)
