"""Stories: calls on one or two machines, and a transcript of them that a person can follow line by line."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from resourcelease.machine import Machine
from resourcelease.model.errors import Refusal
from resourcelease.model.eventdata import BackpressureData, EventType, SettingsData
from resourcelease.model.events import Event, Record
from resourcelease.model.items import Failure, ItemColumns
from resourcelease.model.ops import (
    BeginEffect,
    Call,
    Complete,
    Configure,
    Drain,
    Enqueue,
    Fail,
    FinishEffect,
    GiveBack,
    Heartbeat,
    Lease,
    Op,
    Pause,
    Redrive,
    RequireVersion,
    Restore,
    Resume,
    pack_entry,
    pack_op,
    pack_ops,
)
from resourcelease.model.options import DEFAULT_OPTIONS
from resourcelease.model.results import (
    Acked,
    Configured,
    Drained,
    EffectState,
    Enqueued,
    Granted,
    Redriven,
    Restored,
    Result,
    VersionFixed,
)

__all__ = ["Cluster", "Handle", "Story", "item", "milliseconds"]

# Monday, 5 January 2026, nine o'clock: the wall time at which every story begins.
WALL_MS = 1_767_603_600_000
NAMESPACE = "jobs"
TERM = 3

_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class Handle(NamedTuple):
    """What a worker holds while it holds an item."""

    sequence_id: int
    attempt: int
    fence: int


class Thing(NamedTuple):
    """One item that a story enqueues."""

    resource_id: str
    resource_type: str = "table"
    body: bytes | None = None
    request_id: str | None = None
    attributes: dict[str, str] | None = None
    priority: int = 4
    delay: str = "0s"


def item(resource_id: str, **fields: Any) -> Thing:
    """An item with more to it than its name."""
    return Thing(resource_id, **fields)


def milliseconds(text: str) -> int:
    """``30s``, ``500ms``, ``2m`` or ``1h``."""
    number = text.rstrip("mshour")
    return int(number) * _UNITS_MS[text[len(number) :]]


class Story:
    """The transcript so far, and the clusters it speaks of. A silent story happens, and is not told."""

    def __init__(self, title: str, *, silent: bool = False) -> None:
        self.silent = silent
        self.lines = [title, "=" * len(title)]
        self.clusters: list[Cluster] = []

    def cluster(self, name: str) -> "Cluster":
        """A new cluster, with an empty log."""
        cluster = Cluster(name, self)
        self.clusters.append(cluster)
        return cluster

    def say(self, text: str) -> None:
        """A line for the reader."""
        self.lines += ["", f"-- {text}"]

    def transcript(self) -> str:
        """Everything that happened, and how it stands at the end."""
        ends = [line for cluster in self.clusters for line in cluster.ending()]
        return "\n".join([*self.lines, *ends]) + "\n"


class Cluster:
    """One machine, and the calls that are made on it. Every call is an entry of its own.

    ``op`` is the operation id, ``take`` the proposal's number, ``at`` the namespace, ``principal`` who the caller was
    found to be.
    """

    def __init__(self, name: str, story: Story) -> None:
        self.name = name
        self.machine = Machine(name)
        self.clock_ms = 0
        # What was applied and what came of it, for whoever wants to go through the same story in another way.
        self.entries: list[bytes] = []
        self.records: list[Record] = []
        self._story = story

    def wait(self, text: str) -> None:
        """Time passes; then the leader proposes an empty entry."""
        self.clock_ms += milliseconds(text)
        self._write(f"{text} later")
        self._apply([])

    def configure(self, *, at: str = NAMESPACE, **options: Any) -> Result:
        told = ", ".join(f"{name} = {value}" for name, value in options.items())
        return self.call(f"configures {at}: {told}", Configure(Call(at, principal="operator"), options))

    def pause(self, *, at: str = NAMESPACE) -> Result:
        return self.call(f"pauses {at}", Pause(Call(at, principal="operator")))

    def resume(self, *, at: str = NAMESPACE) -> Result:
        return self.call(f"resumes {at}", Resume(Call(at, principal="operator")))

    def enqueue(self, *things: str | Thing, op: str = "", take: int = 0, at: str = NAMESPACE) -> Result:
        rows = [thing if isinstance(thing, Thing) else Thing(thing) for thing in things]
        columns = ItemColumns(
            len(rows),
            [row.resource_type for row in rows],
            [row.resource_id for row in rows],
            attributes=[row.attributes for row in rows],
            body=[row.body for row in rows],
            request_id=[row.request_id for row in rows],
            priority=[row.priority for row in rows],
            not_before_ms=[milliseconds(row.delay) for row in rows],
        )
        call = Call(at, peer="app", operation_id=op, take=take)
        return self.call(f"enqueues {', '.join(map(_thing, rows))}", Enqueue(call, columns.packed()))

    def lease(
        self, peer: str, limit: int = 1, *, op: str = "", take: int = 0, principal: str = "", at: str = NAMESPACE
    ) -> list[Handle]:
        call = Call(at, peer, principal, op, take)
        result = self.call(f"leases up to {limit}", Lease(call, limit))
        if not isinstance(result, Granted):
            return []
        return [Handle(*row) for row in zip(result.sequence_ids, result.attempts, result.fences, strict=True)]

    def heartbeat(self, peer: str, *handles: Handle, op: str = "", at: str = NAMESPACE) -> Result:
        call = Call(at, peer, operation_id=op)
        if not handles:
            return self.call(f"heartbeats for all that it holds in {at}", Heartbeat(call))
        return self.call(f"heartbeats {_handles(handles)}", Heartbeat(call, *_columns(handles)))

    def complete(self, peer: str, *handles: Handle, op: str = "", principal: str = "", at: str = NAMESPACE) -> Result:
        call = Call(at, peer, principal, op)
        return self.call(f"completes {_handles(handles)}", Complete(call, *_columns(handles)))

    def fail(
        self,
        peer: str,
        *handles: Handle,
        error: str = "",
        requeue: bool = True,
        delay: str = "",
        op: str = "",
        at: str = NAMESPACE,
    ) -> Result:
        code, _, message = error.partition(": ")
        failures = [Failure(code, message)] if error else None
        told = f" with {error}" if error else ""
        told += "" if requeue else ", not to be requeued"
        told += f", to be tried again after {delay}" if delay else ""
        op_ = Fail(
            Call(at, peer, operation_id=op),
            *_columns(handles),
            requeue,
            milliseconds(delay) if delay else None,
            failures,
        )
        return self.call(f"fails {_handles(handles)}{told}", op_)

    def give_back(self, peer: str, *handles: Handle, op: str = "", at: str = NAMESPACE) -> Result:
        call = Call(at, peer, operation_id=op)
        return self.call(f"gives back {_handles(handles)}", GiveBack(call, *_columns(handles)))

    def redrive(self, *sequence_ids: int, limit: int = 0, op: str = "", at: str = NAMESPACE) -> Result:
        what = _ids(sequence_ids) if sequence_ids else f"up to {limit} dead letters"
        call = Call(at, principal="operator", operation_id=op)
        return self.call(f"redrives {what}", Redrive(call, list(sequence_ids) or None, limit))

    def drain(
        self,
        bundle_id: str,
        page: int,
        *,
        limit: int = 1000,
        include_active: bool = False,
        op: str = "",
        at: str = NAMESPACE,
    ) -> bytes:
        told = f"drains page {page} of bundle {bundle_id}, up to {limit}" + (" and active ones" * include_active)
        call = Call(at, peer="mover", operation_id=op)
        result = self.call(told, Drain(call, bundle_id, page, limit, include_active=include_active))
        return result.page if isinstance(result, Drained) else b""

    def restore(self, page: bytes, told: str = "a page", *, op: str = "", at: str = NAMESPACE) -> Result:
        return self.call(f"restores {told} into {at}", Restore(Call(at, peer="mover", operation_id=op), page))

    def require_version(self, change_id: str, minimum: int, maximum: int, *, at: str = NAMESPACE) -> Result:
        told = f"requires {change_id} at version {minimum} to {maximum}"
        return self.call(told, RequireVersion(Call(at, peer="app"), change_id, minimum, maximum))

    def begin(self, peer: str, effect_id: str, handle: Handle, *, op: str = "", at: str = NAMESPACE) -> Result:
        call = Call(at, peer, operation_id=op)
        return self.call(f"begins effect {effect_id} under {_handles([handle])}", BeginEffect(call, effect_id, *handle))

    def finish(
        self, peer: str, effect_id: str, handle: Handle, result: bytes, *, op: str = "", at: str = NAMESPACE
    ) -> Result:
        call = Call(at, peer, operation_id=op)
        told = f"finishes effect {effect_id} under {_handles([handle])} with {result.decode()!r}"
        return self.call(told, FinishEffect(call, effect_id, *handle, result))

    def explain(self, sequence_id: int, *, at: str = NAMESPACE) -> None:
        """Asks the machine why an item waits. No entry."""
        explanation = self.machine.explain(at, sequence_id)
        self._write(f"why item {sequence_id} of {at}? {explanation.words} [{explanation.rule}]")

    def call(self, told: str, op: Op) -> Result:
        """One op in an entry of its own; the transcript says it in the given words."""
        call = op.call
        who = call.peer or call.principal
        if call.peer and call.principal:
            who += f" (as {call.principal})"
        told += f", in {call.namespace}" * (call.namespace not in (NAMESPACE, *told.split()))
        if call.operation_id:
            told += f"   [operation {call.operation_id}" + f", take {call.take}" * bool(call.take) + "]"
        self._write(f"{who} {told}")
        return self._apply([op])[0]

    def ending(self) -> Iterator[str]:
        """How the cluster stands now."""
        machine = self.machine
        yield ""
        position = f"{machine.sequence_number} events, fence {machine.fence}"
        yield f"At the end, {self.name} at {_time(machine.clock_ms)}: {position}"
        for name in machine.namespaces():
            view = machine.queue(name)
            assert view is not None
            states = [word for word, on in (("paused", view.paused), ("backpressure", view.backpressure)) if on]
            yield f"  {name}" + (f" ({', '.join(states)})" if states else "")
            totals = ("enqueued", "restored", "completed", "drained", "discarded", "redriven")
            passed = [f"{getattr(view, total)} {total}" for total in totals if getattr(view, total)]
            yield f"    so far: {', '.join(passed) or 'nothing'}"
            for place, ids in (
                ("pending", machine.pending_ids(name)),
                ("delayed", machine.delayed_ids(name)),
                ("active", machine.active_ids(name)),
                ("dead", machine.dead_ids(name)),
            ):
                for sequence_id in ids:
                    yield f"    {place:<8} {self._item(name, sequence_id)}"
        for peer in machine.peers():
            state = f"disconnected ({peer.disconnected})" if peer.disconnected else "connected"
            waiting = f", {peer.reassignments} to be reassigned" if peer.reassignments else ""
            yield f"  peer {peer.name}: {state}, heard at {_time(peer.heard_ms)}, {peer.active} leases{waiting}"
        yield f"  chain  {machine.chain().hex()}"
        yield f"  digest {machine.digest().hex()}"

    def _item(self, namespace: str, sequence_id: int) -> str:
        view = self.machine.item(namespace, sequence_id)
        assert view is not None
        told = [f"item {sequence_id} {view.item.resource_type} {view.item.resource_id}", f"attempt {view.attempt}"]
        if view.place == "active":
            told.append(f"fence {view.fence}, {view.peer}, until {_time(view.deadline_ms)}")
        if view.place == "delayed":
            told.append(f"due {_time(view.due_ms)}")
        if view.place == "dead":
            told.append(f"died: {view.cause}")
        if view.last is not None:
            told.append(f"last lease fence {view.last.fence} of {view.last.peer} {view.last.outcome}")
        if view.last_error is not None:
            told.append(f"last error {view.last_error.code}: {view.last_error.message}")
        return ", ".join(told)

    def _apply(self, ops: Sequence[Op]) -> list[Result]:
        entry = pack_entry(self.clock_ms, WALL_MS + self.clock_ms, pack_ops(map(pack_op, ops)))
        self.entries.append(entry)
        applied = self.machine.apply(len(self.entries), TERM, entry)
        self.records += applied.records
        if self._story.silent:
            return applied.results
        lines = [f"answer: {part}" for result in applied.results for part in _answer(result)]
        lines += [_event(record, event) for record in applied.records for event in record.events()]
        self._story.lines += [" " * 10 + line for line in lines]
        return applied.results

    def _write(self, text: str) -> None:
        where = f"{self.name}: " if len(self._story.clusters) > 1 else ""
        self._story.lines += ["", f"{_time(self.clock_ms):>9} {where}{text}"]


def _answer(result: Result) -> list[str]:
    """A result in words, a line for the whole and one for each refusal."""
    match result:
        case Refusal():
            return [_refusal(result)]
        case Enqueued():
            ids = [i for place, i in enumerate(result.sequence_ids) if i and place not in result.duplicates]
            known = [f"item {place + 1} is known as {result.sequence_ids[place]}" for place in result.duplicates]
            whole = [f"enqueued as {_ids(ids)}"] * bool(ids) + known + [f"{result.pending} pending"]
            return ["; ".join(whole), *_refused(result.refused)]
        case Granted():
            if not result.sequence_ids:
                return ["nothing to lease"]
            rows = zip(result.sequence_ids, result.attempts, result.fences, result.rows, strict=True)
            leases = [
                f"item {i} {row[0]} {row[1]}, attempt {attempt}, fence {fence}" for i, attempt, fence, row in rows
            ]
            for place, (last, error) in result.before.items():
                leases[place] += f" (before: attempt {last.attempt} of {last.peer} {last.outcome}"
                leases[place] += f", {error.code}: {error.message})" if error else ")"
            return [*leases, f"until {_time(result.deadline_ms)}, {_time(result.left_ms)} left"]
        case Acked():
            accepted = result.total - len(result.refused)
            until = f", until {_time(result.deadline_ms)}, {_time(result.left_ms)} left" if result.deadline_ms else ""
            return [f"{accepted} of {result.total} accepted{until}", *_refused(result.refused)]
        case Configured():
            return [f"in force: {_options(result.options.as_map())}" + "; paused" * result.paused]
        case Redriven():
            return [f"redriven: {_ids(result.sequence_ids)}", *_refused(result.refused)]
        case Drained():
            return [f"a page of {result.size}" + (", and there is more" if result.more else ", and that is all")]
        case Restored():
            return [f"{result.restored} restored, {result.present} here already"]
        case VersionFixed():
            return [f"version {result.version}"]
        case EffectState():
            return [f"finished: {result.result.decode()!r}" if result.finished else "run it"]
    raise AssertionError(result)


def _refusal(refusal: Refusal) -> str:
    return f"no, {refusal.reason}: {refusal.message}" + (f" ({refusal.field})" if refusal.field else "")


def _refused(refused: Mapping[int, Refusal]) -> list[str]:
    return [f"  {place + 1}: {_refusal(refused[place])}" for place in sorted(refused)]


def _event(record: Record, event: Event) -> str:
    """One event in a line: number, type, what it is about, and the depth of the queue after it."""
    told = []
    if event.handle is not None:
        told.append(f"item {event.handle.sequence_id}, attempt {event.handle.attempt}")
        if event.handle.lease_id:
            told.append(f"fence {event.handle.lease_id}")
    if event.payload is not None:
        told.append(f"{event.payload.resource_type} {event.payload.resource_id}, priority {event.payload.priority}")
    if event.peer_id:
        told.append(f"peer {event.peer_id}")
    if event.error is not None:
        told.append(f"{event.error[0]}: {event.error[1]}")
    if isinstance(record.data, SettingsData):
        told.append(_options(record.data.options) + ", paused" * record.data.paused)
    elif isinstance(record.data, BackpressureData):
        told.append("on" if record.data.active else "off")
    else:
        hidden = ("operation_id", "reason", "more")
        told += [f"{_label(name)} {_word(name, word)}" for name, word in event.metadata.items() if name not in hidden]
        if record.type is EventType.PEER_CHANGED and "reason" in event.metadata:
            told.append(event.metadata["reason"])
    depth = f"{event.pending} pending, {event.active} active"
    where = f" in {event.namespace}" * (event.namespace != NAMESPACE)
    return f"event {event.sequence_number:>3} {event.type.name:<16} {', '.join(told)} | {depth}{where}"


def _label(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _word(name: str, word: str) -> str:
    return _time(int(word)) if name.endswith("_ms") and word.isdigit() else word


def _options(options: Mapping[str, Any]) -> str:
    """The options that are not as they are by default."""
    usual = DEFAULT_OPTIONS.as_map()
    changed = [f"{name} = {value}" for name, value in options.items() if value != usual[name]]
    return ", ".join(changed) or "the default options"


def _thing(thing: Thing) -> str:
    told = [f"{thing.resource_type} {thing.resource_id}".strip() or "an item without a name"]
    if thing.priority != Thing._field_defaults["priority"]:
        told.append(f"priority {thing.priority}")
    if thing.delay != Thing._field_defaults["delay"]:
        told.append(f"not before {thing.delay}")
    if thing.request_id:
        told.append(f"request {thing.request_id}")
    for name, value in (thing.attributes or {}).items():
        told.append(f"{name}: {value}")
    if thing.body is not None:
        told.append(f"{len(thing.body)} bytes")
    return " ".join(told[:1]) + (f" ({', '.join(told[1:])})" if told[1:] else "")


def _handles(handles: Sequence[Handle]) -> str:
    return ", ".join(f"item {h.sequence_id} (attempt {h.attempt}, fence {h.fence})" for h in handles)


def _columns(handles: Sequence[Handle]) -> tuple[list[int], list[int], list[int]]:
    ids, attempts, fences = (list(column) for column in zip(*handles, strict=True))
    return ids, attempts, fences


def _ids(sequence_ids: Sequence[int]) -> str:
    """``items 3 to 7`` where they are in a row, else one by one."""
    ids = list(sequence_ids)
    if len(ids) > 2 and ids == list(range(ids[0], ids[-1] + 1)):
        return f"items {ids[0]} to {ids[-1]}"
    return f"item{'s' * (len(ids) > 1)} {', '.join(map(str, ids))}" if ids else "nothing"


def _time(clock_ms: int) -> str:
    seconds, rest_ms = divmod(clock_ms, 1000)
    return f"{seconds}.{rest_ms:03}s".replace(".000s", "s")
