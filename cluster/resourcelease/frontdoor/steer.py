"""AdminService, steering a namespace: options, pauses, dead letters; and watching its backpressure."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

from resourcelease import v1
from resourcelease.frontdoor.browse import options_message
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.refusals import Refused, item_error, refuse
from resourcelease.frontdoor.replica import Replica, expect
from resourcelease.frontdoor.tail import Tail
from resourcelease.model.eventdata import BackpressureData
from resourcelease.model.events import Record
from resourcelease.model.limits import MAX_DELAY_MS, MAX_ITEMS_PER_OP
from resourcelease.model.ops import Configure, Pause, Redrive, Resume
from resourcelease.model.results import Configured, Redriven

__all__ = ["Steer"]


class Steer:
    """Configure, Pause, Resume, Redrive and WatchBackpressure."""

    def __init__(self, replica: Replica, tail: Tail) -> None:
        self._replica = replica
        self._tail = tail
        self._stopping: Refused | None = None

    async def configure(self, caller: Caller, request: v1.ConfigureRequest) -> v1.ConfigureResponse:
        """Changes options, and creates a namespace that is not there."""
        call = caller.call(request)
        op = Configure(call, _changes(request.options))
        result = expect(await self._replica.run(op, caller.remaining_s()), Configured)
        return v1.ConfigureResponse(
            position=self._replica.position(call.namespace), options=options_message(result.options)
        )

    async def pause(self, caller: Caller, request: v1.PauseRequest) -> v1.PauseResponse:
        """Stops granting."""
        call = caller.call(request)
        expect(await self._replica.run(Pause(call), caller.remaining_s()), Configured)
        return v1.PauseResponse(position=self._replica.position(call.namespace))

    async def resume(self, caller: Caller, request: v1.ResumeRequest) -> v1.ResumeResponse:
        """Grants again."""
        call = caller.call(request)
        expect(await self._replica.run(Resume(call), caller.remaining_s()), Configured)
        return v1.ResumeResponse(position=self._replica.position(call.namespace))

    async def redrive(self, caller: Caller, request: v1.RedriveRequest) -> v1.RedriveResponse:
        """Puts dead letters back to work."""
        ids = list(request.sequence_ids)
        if bool(ids) == bool(request.limit):
            refuse("give exactly one of sequence_ids and limit", "sequence_ids")
        if len(ids) > MAX_ITEMS_PER_OP:
            refuse(f"has {len(ids)} entries; {MAX_ITEMS_PER_OP} are allowed", "sequence_ids")
        if any(i < 1 for i in ids):
            place = next(place for place, i in enumerate(ids) if i < 1)
            refuse(f"must be from 1, not {ids[place]}", f"sequence_ids[{place}]")
        if not 0 <= request.limit <= MAX_ITEMS_PER_OP:
            refuse(f"must be from 1 to {MAX_ITEMS_PER_OP}, not {request.limit}", "limit")
        if not 0 <= request.delay_ms <= MAX_DELAY_MS:
            refuse(f"must be from 0 to {MAX_DELAY_MS}, not {request.delay_ms}", "delay_ms")
        call = caller.call(request, memorable=True)
        op = Redrive(call, ids or None, request.limit, request.delay_ms)
        result = expect(await self._replica.run(op, caller.remaining_s()), Redriven)
        return v1.RedriveResponse(position=self._replica.position(call.namespace), results=_redriven(result, len(ids)))

    async def watch_backpressure(
        self, caller: Caller, request: v1.WatchBackpressureRequest
    ) -> AsyncIterator[v1.WatchBackpressureResponse]:
        """How it stands, then every change."""
        await self._replica.linearize(request.linearizable, caller.remaining_s())
        wanted = frozenset(request.namespaces)
        next_sequence, states = self._states(wanted)
        while self._stopping is None:
            for state in states:
                yield state
            if next_sequence < self._tail.first_sequence:
                # The reader was too slow for the changes; where things stand now makes up for them.
                next_sequence, states = self._states(wanted)
                continue
            states = []
            for record in self._tail.records(next_sequence):
                next_sequence = max(next_sequence, record.sequence + record.count)
                if isinstance(record.data, BackpressureData) and (not wanted or record.namespace in wanted):
                    states.append(self._change(record, record.data))
            if not states and next_sequence >= self._tail.next_sequence:
                await self._tail.news()
        raise self._stopping

    def stop(self, refused: Refused) -> None:
        """The node stops: watchers go on elsewhere."""
        self._stopping = refused

    def _states(self, wanted: frozenset[str]) -> tuple[int, list[v1.WatchBackpressureResponse]]:
        machine = self._replica.machine
        states = []
        for name in machine.namespaces():
            queue = machine.queue(name)
            if queue is None or (wanted and name not in wanted):
                continue
            options = queue.options
            states.append(
                v1.WatchBackpressureResponse(
                    position=self._replica.position(name),
                    namespace=name,
                    active=queue.backpressure,
                    initial=True,
                    depth=v1.Depth(pending=queue.pending, active=queue.active, delayed=queue.delayed),
                    high_watermark=options.high_watermark or 0,
                    low_watermark=options.low_watermark or 0,
                )
            )
        return machine.sequence_number + 1, states

    def _change(self, record: Record, data: BackpressureData) -> v1.WatchBackpressureResponse:
        position = self._replica.position(record.namespace)
        position.raft_index, position.raft_term, position.lease_clock_ms = record.index, record.term, record.clock_ms
        return v1.WatchBackpressureResponse(
            position=position,
            namespace=record.namespace,
            active=data.active,
            depth=v1.Depth(pending=record.pending, active=record.active),
            high_watermark=data.high,
            low_watermark=data.low,
            sequence_number=record.sequence,
        )


def _changes(options: v1.QueueOptions) -> Mapping[str, Any]:
    """The options that are set. A high watermark of 0 switches backpressure off, and so unsets both."""
    changes = {field.name: value for field, value in options.ListFields()}
    # Fields that are set to zero are listed as well, since all of them are optional.
    if changes.get("high_watermark") == 0:
        if changes.get("low_watermark"):
            refuse("is below high_watermark, and that is 0, which means off", "options.low_watermark")
        changes["high_watermark"] = changes["low_watermark"] = None
    return changes


def _redriven(result: Redriven, named: int) -> list[v1.RedriveResult]:
    if not named:
        return [v1.RedriveResult(redriven=v1.Redriven(sequence_id=i)) for i in result.sequence_ids]
    back = iter(result.sequence_ids)
    return [
        v1.RedriveResult(error=item_error(result.refused[place], f"sequence_ids[{place}]"))
        if place in result.refused
        else v1.RedriveResult(redriven=v1.Redriven(sequence_id=next(back, 0)))
        for place in range(named)
    ]
