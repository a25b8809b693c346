"""enqueue: items come in."""

from typing import Any

import msgpack

from resourcelease.machine.checks import invalid, is_count, items_wrong
from resourcelease.machine.decision import Decision, created
from resourcelease.machine.outcomes import RUNS_SINCE, listed, outcomes_of, packed, runs_of
from resourcelease.machine.state import Namespace, State
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType, ItemsData, RejectionData
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Enqueue
from resourcelease.model.results import Enqueued

__all__ = ["enqueue", "replay_enqueue"]

CODE = 1


def enqueue(state: State, op: Enqueue) -> Decision:
    """Gives each acceptable item an id and a place in its queue."""
    columns = _columns(op.items)
    if isinstance(columns, Refusal):
        return Decision(columns, [])
    found = created(state, op.call)
    if isinstance(found, Refusal):
        return Decision(found, [])
    ns, records = found
    try:
        wrong = items_wrong(columns, ns.options.max_body_bytes)
    except TypeError as error:
        return Decision(invalid(str(error), "items"), [])
    if not wrong and columns.request_id is None and not ns.backpressure and _room(ns) >= columns.size:
        return _all_in(ns, op, columns, records)
    return _one_by_one(state, ns, op, columns, records, wrong)


def replay_enqueue(state: State, ns: Namespace | None, content: Any) -> Enqueued:
    """The first answer again."""
    if type(content) is bytes:
        return _unpacked(content)
    if len(content) == 3:
        first_id, size, pending = content
        return Enqueued(range(first_id, first_id + size), [], {}, pending)
    ids, duplicates, refused, pending = content
    return Enqueued(ids, duplicates, {place: Refusal(Reason(r), *rest) for place, r, *rest in refused}, pending)


def _columns(packed: object) -> ItemColumns | Refusal:
    if type(packed) is not bytes:
        return invalid("items are packed columns", "items")
    try:
        columns = ItemColumns.unpacked(packed)
    except (ValueError, TypeError) as error:
        return invalid(f"items are not packed columns: {error}", "items")
    if not is_count(columns.size, limits.MAX_ITEMS_PER_OP, least=1):
        return invalid(f"a call carries 1 to {limits.MAX_ITEMS_PER_OP} items", "items")
    return columns


def _room(ns: Namespace) -> int:
    return ns.options.capacity - ns.live


def _all_in(ns: Namespace, op: Enqueue, columns: ItemColumns, records: list[Record]) -> Decision:
    size, first_id = columns.size, ns.next_id
    record = Record(EventType.ENQUEUE, ItemsData(first_id, op.items), count=size, call=op.call)
    record.unpacked = columns
    if op.call.operation_id:
        record.answer = [op.call.take, CODE, True]
    result = Enqueued(range(first_id, first_id + size), [], {}, ns.ready.size + _undelayed(columns))
    return Decision(result, [*records, record])


def _one_by_one(
    state: State, ns: Namespace, op: Enqueue, columns: ItemColumns, records: list[Record], wrong: dict[int, Refusal]
) -> Decision:
    ids: list[int] = []
    duplicates: list[int] = []
    refused: dict[int, Refusal] = {}
    chosen: list[int] = []
    named: dict[str, int] = {}
    room = _room(ns)
    no_place: Refusal | None = None
    for place in range(columns.size):
        request_id = _at(columns.request_id, place)
        known = place not in wrong and request_id and (named.get(request_id) or _known(state, ns, request_id))
        if known:
            duplicates.append(place)
            ids.append(known)
            continue
        if no_place is None:
            no_place = _no_place(ns, room - len(chosen))
        refusal = wrong.get(place) or no_place
        if refusal:
            refused[place] = refusal
            ids.append(0)
            continue
        sequence_id = ns.next_id + len(chosen)
        ids.append(sequence_id)
        chosen.append(place)
        if request_id:
            named[request_id] = sequence_id

    kept = columns if len(chosen) == columns.size else _only(columns, chosen)
    pending = ns.ready.size + (_undelayed(kept) if chosen else 0)
    result = Enqueued(ids, duplicates, refused, pending)
    answer = [op.call.take, CODE, _kept(state, result, ns.next_id)] if op.call.operation_id else None
    if chosen:
        data = ItemsData(ns.next_id, op.items if kept is columns else kept.packed())
        record = Record(EventType.ENQUEUE, data, count=len(chosen), answer=answer, call=op.call)
        return Decision(result, [*records, record])
    # Nothing came in. A refusal that time may cure is remembered, so that a late copy of this op changes nothing.
    passing = next((no for no in refused.values() if no.reason is not Reason.INVALID_ARGUMENT), None)
    if passing is None or answer is None:
        return Decision(result, [])
    no = RejectionData(passing.reason, passing.message)
    return Decision(result, [Record(EventType.REJECTED, no, answer=answer, call=op.call)])


def _kept(state: State, result: Enqueued, first_id: int) -> Any:
    """An answer as it is kept: what did not just get the next id."""
    ids, duplicates, refused, pending = result
    if state.entry_version < RUNS_SINCE:
        return [ids, duplicates, listed(refused), pending]
    told = sorted([*refused, *duplicates]) if duplicates else refused
    outcomes = ((place, refused.get(place) or ids[place]) for place in told)
    return packed((len(ids), first_id, pending, *runs_of(outcomes)))


def _unpacked(content: bytes) -> Enqueued:
    size, next_id, pending, wordings, runs = msgpack.unpackb(content)
    ids: list[int] = []
    duplicates: list[int] = []
    refused: dict[int, Refusal] = {}

    def accept(below: int) -> None:
        nonlocal next_id
        fresh = range(next_id, next_id + below - len(ids))
        ids.extend(fresh)
        next_id = fresh.stop

    for place, outcome in outcomes_of(wordings, runs):
        accept(place)
        if isinstance(outcome, Refusal):
            refused[place] = outcome
            ids.append(0)
        else:
            duplicates.append(place)
            ids.append(outcome)
    accept(size)
    return Enqueued(ids, duplicates, refused, pending)


def _known(state: State, ns: Namespace, request_id: str) -> int:
    return ns.requests.get(request_id) or abs(ns.ended_requests.get(request_id, state.clock_ms) or 0)


def _no_place(ns: Namespace, room: int) -> Refusal | None:
    if ns.backpressure:
        message = f"{ns.ready.size} items are pending; enqueue again when that is {ns.options.low_watermark} or fewer"
        return Refusal(Reason.BACKPRESSURE, message)
    if room <= 0:
        message = f"the queue holds {ns.options.capacity} items, its capacity; enqueue again when some have ended"
        return Refusal(Reason.QUEUE_FULL, message)
    return None


def _at(column: Any, place: int) -> Any:
    return column[place] if type(column) is list else column


def _only(columns: ItemColumns, chosen: list[int]) -> ItemColumns:
    kept = [[column[place] for place in chosen] if type(column) is list else column for column in columns[1:]]
    return ItemColumns._make((len(chosen), *kept))


def _undelayed(columns: ItemColumns) -> int:
    delays: Any = columns.not_before_ms
    if type(delays) is list:
        return delays.count(0)
    return 0 if delays else columns.size
