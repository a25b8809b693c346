"""Events as subscribers get them, turned back into the records that the simulator's checkers judge."""

import json
from typing import Any

from resourcelease import v1
from resourcelease.model.eventdata import (
    BeatsData,
    DeathsData,
    EndsData,
    EventType,
    FailuresData,
    GrantsData,
    IdsData,
    ItemsData,
    RedrivesData,
    RequeuesData,
    SettingsData,
)
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call

__all__ = ["record_of"]


def record_of(event: v1.Event) -> Record | None:
    """The record of one event, as far as an item's life needs it; None for what tells nothing of items."""
    kind = EventType(event.type)
    data = _data(kind, event)
    if data is None:
        return None
    record = Record(kind, data, call=Call(event.namespace, event.peer_id, event.principal, "", 0, {}))
    record.sequence, record.index, record.term = event.sequence_number, event.raft_index, event.raft_term
    record.clock_ms = event.lease_clock
    return record


def _data(kind: EventType, event: v1.Event) -> Any:
    item, attempt, fence = event.handle.sequence_id, event.handle.attempt, event.handle.lease_id
    said = event.metadata
    ids, fences = [item], [fence]
    match kind:
        case EventType.ENQUEUE:
            sent = event.payload
            columns = ItemColumns(
                1, sent.resource_type, sent.resource_id, request_id=[sent.request_id], not_before_ms=sent.not_before_ms
            )
            return ItemsData(item, columns.packed())
        case EventType.LEASE_GRANTED:
            return GrantsData(ids, attempt, fence, _number(said, "deadline_ms"))
        case EventType.HEARTBEAT:
            deadline_ms = _number(said, "deadline_ms")
            return BeatsData(ids if item else [], attempt, fences if item else [], deadline_ms)
        case EventType.COMPLETED | EventType.LEASE_EXPIRED:
            return EndsData(ids, attempt, fences)
        case EventType.FAILED:
            return FailuresData(ids, attempt, fences, None)
        case EventType.REQUEUED:
            return RequeuesData(ids, attempt, fences, _number(said, "due_ms"), said["cause"])
        case EventType.DEAD_LETTERED:
            return DeathsData(ids, attempt, fences, said["cause"])
        case EventType.REDRIVEN:
            return RedrivesData(ids, attempt, _number(said, "due_ms"))
        case EventType.RELEASED | EventType.DISCARDED:
            return IdsData(ids, attempt)
        case EventType.CONFIGURED:
            return SettingsData(json.loads(said["options"]), said["paused"] == "true")
    return None


def _number(said: Any, key: str) -> int:
    return int(said[key]) if key in said else 0
