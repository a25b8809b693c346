"""Heartbeat, complete, fail and give back: the same for calls of their own and for frames of a stream."""

from collections.abc import Sequence
from typing import NamedTuple

from resourcelease import v1
from resourcelease.frontdoor import answers
from resourcelease.frontdoor.intake import Handles, check_count, handle_columns, handles_of_packed
from resourcelease.frontdoor.refusals import refuse
from resourcelease.frontdoor.replica import Replica, expect
from resourcelease.model.errors import Refusal
from resourcelease.model.items import Failure
from resourcelease.model.limits import MAX_ATTRIBUTES, MAX_DELAY_MS, MAX_NAME, MAX_TEXT
from resourcelease.model.ops import Call, Complete, Fail, GiveBack, Heartbeat
from resourcelease.model.results import Acked

__all__ = ["Acks"]

# What an error without a code is called: the machine asks for one.
_NO_CODE = "FAILED"
_COMPLETED = v1.CompleteResult(completed=v1.Completed())
_FAILED = v1.FailResult(failed=v1.Failed())
_EXTENDED = v1.HeartbeatResult(extended=v1.Extended())


class Acks:
    """What holders say about their leases."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def complete(
        self, call: Call, entries: Sequence[v1.CompleteEntry], field: str, remaining_s: float | None
    ) -> v1.CompleteResponse:
        """``field`` is the path of a handle, with {} for its place."""
        check_count(entries, _list_of(field))
        columns = handle_columns([entry.handle for entry in entries], field)
        return _completed(expect(await self._replica.run(Complete(call, *columns), remaining_s), Acked), field)

    async def complete_packed(
        self, call: Call, packed: v1.PackedHandles, field: str, remaining_s: float | None
    ) -> v1.CompleteResponse:
        """The same for handles that came as columns; ``field`` is what names one in a refusal."""
        columns = handles_of_packed(packed, field)
        result = expect(await self._replica.run(Complete(call, *columns), remaining_s), Acked)
        return _completed(result, field) if result.refused else v1.CompleteResponse(completed=result.total)

    async def heartbeat(
        self, call: Call, handles: Sequence[v1.Handle], all_of_peer: bool, field: str, remaining_s: float | None
    ) -> v1.HeartbeatResponse:
        """Of the handles, or of everything the peer holds."""
        if all_of_peer:
            if handles:
                refuse("give either this or handles", "all_of_peer")
            op = Heartbeat(call)
        else:
            check_count(handles, _list_of(field))
            op = Heartbeat(call, *handle_columns(handles, field))
        result = expect(await self._replica.run(op, remaining_s), Acked)
        told = answers.acked(result, _EXTENDED, lambda error: v1.HeartbeatResult(error=error), field)
        alive = all_of_peer or len(result.refused) < result.total
        return v1.HeartbeatResponse(
            results=[] if all_of_peer else told,
            deadline_ms=result.deadline_ms if alive else 0,
            remaining_ms=result.left_ms if alive else 0,
        )

    async def fail(
        self, call: Call, entries: Sequence[v1.FailEntry], field: str, remaining_s: float | None
    ) -> v1.FailResponse:
        """``field`` is the path of an entry. Entries of three kinds make up to three ops, in one entry of the log."""
        count = check_count(entries, _list_of(field))
        handle_field = field + ".handle"
        columns = handle_columns([entry.handle for entry in entries], handle_field)
        wishes = [_wish(entry, field.format(place)) for place, entry in enumerate(entries)]
        parts = _parted(call, columns, wishes)
        if len(parts) == 1:
            results = [await self._replica.run(parts[0].op, remaining_s)]
        else:
            results = list(await self._replica.run_together([part.op for part in parts], remaining_s))
        refused: dict[int, Refusal] = {}
        for part, result in zip(parts, results, strict=True):
            acked = expect(result, Acked)
            # A repeat may be answered for a call that had other entries: its places are not this call's.
            known = len(part.places)
            refused |= {part.places[place]: refusal for place, refusal in acked.refused.items() if place < known}
        merged = Acked(count, refused)
        return v1.FailResponse(
            results=answers.acked(merged, _FAILED, lambda error: v1.FailResult(error=error), handle_field)
        )

    async def give_back(
        self, call: Call, handles: Sequence[v1.Handle], field: str, remaining_s: float | None
    ) -> v1.FailResponse:
        """Leases that go back unused."""
        check_count(handles, _list_of(field))
        columns = handle_columns(handles, field)
        result = expect(await self._replica.run(GiveBack(call, *columns), remaining_s), Acked)
        return v1.FailResponse(results=answers.acked(result, _FAILED, lambda error: v1.FailResult(error=error), field))


def _completed(result: Acked, field: str) -> v1.CompleteResponse:
    return v1.CompleteResponse(
        results=answers.acked(result, _COMPLETED, lambda error: v1.CompleteResult(error=error), field)
    )


class _Wish(NamedTuple):
    """What is to become of one lease."""

    give_back: bool
    requeue: bool
    delay_ms: int | None
    error: Failure | None


class _Part(NamedTuple):
    op: Fail | GiveBack
    # Where its handles stand in the call.
    places: Sequence[int]


def _wish(entry: v1.FailEntry, field: str) -> _Wish:
    requeue = entry.requeue if entry.HasField("requeue") else True
    delay_ms = entry.delay_ms if entry.HasField("delay_ms") else None
    error = _failure(entry.error, f"{field}.error") if entry.HasField("error") else None
    if delay_ms is not None and not 0 <= delay_ms <= MAX_DELAY_MS:
        refuse(f"must be from 0 to {MAX_DELAY_MS}, not {delay_ms}", f"{field}.delay_ms")
    if entry.give_back:
        for name in ("error", "requeue", "delay_ms"):
            if entry.HasField(name):
                refuse("is not allowed with give_back: the lease goes back as if nothing had been", f"{field}.{name}")
    return _Wish(entry.give_back, requeue, delay_ms, error)


def _failure(error: v1.Failure, field: str) -> Failure:
    if len(error.code) > MAX_NAME:
        refuse(f"has {len(error.code)} characters; {MAX_NAME} are allowed", f"{field}.code")
    if len(error.message) > MAX_TEXT:
        refuse(f"has {len(error.message)} characters; {MAX_TEXT} are allowed", f"{field}.message")
    metadata = dict(error.metadata)
    if len(metadata) > MAX_ATTRIBUTES:
        refuse(f"has {len(metadata)} entries; {MAX_ATTRIBUTES} are allowed", f"{field}.metadata")
    for key, value in metadata.items():
        if not key.strip() or len(key) > MAX_NAME or len(value) > MAX_TEXT:
            refuse(f"keys have 1 to {MAX_NAME} characters, values up to {MAX_TEXT}", f"{field}.metadata")
    code = error.code if error.code.strip() else _NO_CODE
    return Failure(code, error.message, metadata or None)


def _parted(call: Call, columns: Handles, wishes: Sequence[_Wish]) -> list[_Part]:
    """Ops by kind: failures with an error, failures without, leases given back."""
    kinds: dict[str, list[int]] = {}
    for place, wish in enumerate(wishes):
        kind = "/back" if wish.give_back else "" if wish.error is not None else "/bare"
        kinds.setdefault(kind, []).append(place)
    parts = []
    for kind, places in kinds.items():
        # Each op is remembered under an id of its own.
        named = call._replace(operation_id=call.operation_id + kind) if call.operation_id else call
        chosen = columns if len(places) == len(wishes) else tuple([column[i] for i in places] for column in columns)
        handles = (chosen[0], chosen[1], chosen[2])
        if kind == "/back":
            parts.append(_Part(GiveBack(named, *handles), places))
            continue
        op = Fail(
            named,
            *handles,
            requeue=[wishes[place].requeue for place in places],
            delays_ms=[wishes[place].delay_ms for place in places],
            failures=[error for place in places if (error := wishes[place].error)] or None,
        )
        parts.append(_Part(op, places))
    return parts


def _list_of(field: str) -> str:
    return field.partition("[")[0]
