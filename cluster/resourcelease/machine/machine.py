"""The machine: one committed entry in, results and events out."""

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import msgpack

from resourcelease.machine import acks, bundles, deadletters, effects, rows, settings, views
from resourcelease.machine.answers import Answer, key_of
from resourcelease.machine.checks import invalid, is_count, wrong_call
from resourcelease.machine.decision import Decision
from resourcelease.machine.due import due_namespaces, expired, released
from resourcelease.machine.enqueue import enqueue, replay_enqueue
from resourcelease.machine.explain import Explanation, explain
from resourcelease.machine.fold import fold_record
from resourcelease.machine.lease import lease, replay_lease
from resourcelease.machine.state import Namespace, Segment, State
from resourcelease.model import limits
from resourcelease.model.errors import CorruptLog, Reason, Refusal
from resourcelease.model.eventdata import EventType, RejectionData
from resourcelease.model.events import Record
from resourcelease.model.ops import ENTRY_VERSION, OPS, SINCE, Call, Complete, Fail, GiveBack, Heartbeat, Lease, Op
from resourcelease.model.results import Enqueued, Granted, Redriven, Result

__all__ = ["Applied", "Machine", "fold"]


class Handler(NamedTuple):
    """How an op is decided, and how its stored answer becomes a result again."""

    decide: Callable[[State, Any], Decision]
    replay: Callable[[State, Namespace | None, Any], Result]


HANDLERS: dict[int, Handler] = {
    1: Handler(enqueue, replay_enqueue),
    2: Handler(lease, replay_lease),
    3: Handler(acks.heartbeat, acks.replay_ack),
    4: Handler(acks.complete, acks.replay_ack),
    5: Handler(acks.fail, acks.replay_ack),
    6: Handler(acks.give_back, acks.replay_ack),
    7: Handler(settings.configure, settings.replay_settings),
    8: Handler(settings.pause, settings.replay_settings),
    9: Handler(settings.resume, settings.replay_settings),
    10: Handler(deadletters.redrive, deadletters.replay_redrive),
    11: Handler(bundles.drain, bundles.replay_drain),
    12: Handler(bundles.restore, bundles.replay_restore),
    13: Handler(effects.require_version, effects.replay_version),
    14: Handler(effects.begin_effect, effects.replay_effect),
    15: Handler(effects.finish_effect, effects.replay_effect),
}

# Refusals of these are not remembered: asked again they are the same, or, for a lease, no answer at all.
_FORGETFUL = (Lease, Heartbeat, Complete, Fail, GiveBack)
_REMEMBERED = (Reason.QUEUE_FULL, Reason.BACKPRESSURE, Reason.NOT_FOUND, Reason.CONFLICT)
_PASSING = (Reason.QUEUE_FULL, Reason.BACKPRESSURE)
# A whole op that was refused, among the stored answers.
_NO = "no"


class Applied(NamedTuple):
    """What came of an entry: a result for each op, in order, and the events. ``refused``: the entry was no good."""

    results: list[Result]
    records: list[Record]
    refused: Refusal | None = None
    # The digest over all events up to here.
    chain: bytes = b""
    # Whether the open segment of the log ends with these events.
    sealed: bool = False


class Machine:
    """The replicated state machine of one cluster.

    >>> from resourcelease.model.items import ItemColumns
    >>> from resourcelease.model.ops import Call, Enqueue, Lease, pack_entry, pack_op, pack_ops
    >>> machine = Machine("cluster-1")
    >>> items = ItemColumns(2, "table", ["orders", "users"]).packed()
    >>> ops = [Enqueue(Call("jobs"), items), Lease(Call("jobs", peer="worker-1"), limit=1)]
    >>> applied = machine.apply(1, 1, pack_entry(0, 0, pack_ops(map(pack_op, ops))))
    >>> applied.results[1].item(0).resource_id
    'orders'
    >>> [record.type.name for record in applied.records]
    ['CONFIGURED', 'ENQUEUE', 'PEER_CHANGED', 'LEASE_GRANTED']
    """

    def __init__(self, cluster_id: str) -> None:
        self._state = State(cluster_id)
        self._records: list[Record] = []

    @property
    def applied_index(self) -> int:
        """The index of the last entry that was applied."""
        return self._state.index

    @property
    def applied_term(self) -> int:
        """The term of that entry."""
        return self._state.term

    @property
    def clock_ms(self) -> int:
        """The lease clock."""
        return self._state.clock_ms

    @property
    def sequence_number(self) -> int:
        """The sequence number of the last event."""
        return self._state.sequence

    @property
    def fence(self) -> int:
        """The last fence that was drawn."""
        return self._state.fence

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """Applies one entry. Never raises for anything that an entry may hold."""
        state = self._state
        if index <= state.index:
            message = f"entry {index} was applied before; the machine is at {state.index}"
            return Applied([], [], Refusal(Reason.CONFLICT, message))
        state.index, state.term = index, term
        entry = _read(data)
        if entry is None:
            return Applied([], [], Refusal(Reason.INVALID_ARGUMENT, "not an entry of a version known here"))
        state.entry_version, clock_ms, state.wall_ms, ops = entry
        state.clock_ms = max(state.clock_ms, clock_ms)
        records: list[Record] = []
        self._records = records
        self._let_time_pass()
        results = [self._run(op) for op in ops]
        sealed = _write_down(state, records) if records else False
        return Applied(results, records, None, state.chain, sealed)

    def next_due_ms(self) -> int | None:
        """The reading of the lease clock at which something may fall due."""
        lease_ms, delay_ms = self._state.agenda.next_ms(), self._state.delays.next_ms()
        if lease_ms is None or delay_ms is None:
            return delay_ms if lease_ms is None else lease_ms
        return min(lease_ms, delay_ms)

    def chain(self) -> bytes:
        """The digest over all events so far: equal on two nodes at one index, or they differ."""
        return self._state.chain

    def remembers(self, call: Call) -> bool:
        """Whether a call with this operation id was answered, and the answer is kept."""
        return self._state.answers.get(key_of(call), self._state.clock_ms) is not None

    def segment(self) -> Segment:
        """The open segment of the log."""
        return self._state.segment

    def digest(self) -> bytes:
        """The digest over the whole state, computed now."""
        return rows.digest(self._state)

    def dump_rows(self) -> Iterator[tuple[bytes, bytes]]:
        """The whole state as rows, in the order of their keys."""
        return rows.dump(self._state)

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Rows to put and keys to delete so that rows stored at the last call stand for the present state."""
        return rows.take_changes(self._state)

    @classmethod
    def load_rows(cls, stored: Iterable[tuple[bytes, bytes]]) -> "Machine":
        """The machine that such rows stand for. Raises ``CorruptLog`` if they stand for none."""
        machine = cls("")
        machine._state = rows.load(stored)
        return machine

    def queue(self, namespace: str) -> views.QueueView | None:
        """Depths, totals and settings of a namespace."""
        ns = self._state.namespaces.get(namespace)
        return None if ns is None else views.queue(ns)

    def grantable(self, namespace: str) -> int:
        """How many items a lease could have now: those that are pending, unless the namespace is paused."""
        ns = self._state.namespaces.get(namespace)
        return 0 if ns is None or ns.paused else ns.ready.size

    def namespaces(self) -> list[str]:
        """All namespaces, in the order of their creation."""
        return list(self._state.namespaces)

    def item(self, namespace: str, sequence_id: int) -> views.ItemView | None:
        """One item, wherever it is."""
        ns = self._state.namespaces.get(namespace)
        return None if ns is None else views.item(self._state, ns, sequence_id)

    def fence_of(self, namespace: str, sequence_id: int) -> int:
        """The fence of the lease on an item here; 0 if it is not leased."""
        ns = self._state.namespaces.get(namespace)
        lease = None if ns is None else ns.leases.get(sequence_id)
        return 0 if lease is None else lease[0]

    def pending_ids(self, namespace: str) -> Iterator[int]:
        """Ids of pending items, next in line first."""
        return views.ids(self._state, namespace, "pending")

    def delayed_ids(self, namespace: str) -> Iterator[int]:
        """Ids of delayed items, first due first."""
        return views.ids(self._state, namespace, "delayed")

    def active_ids(self, namespace: str) -> Iterator[int]:
        """Ids of leased items, lowest fence first."""
        return views.ids(self._state, namespace, "active")

    def dead_ids(self, namespace: str) -> Iterator[int]:
        """Ids of dead letters, longest dead first."""
        return views.ids(self._state, namespace, "dead")

    def peers(self) -> list[views.PeerView]:
        """All known peers, longest unheard first."""
        return [views.peer(peer) for peer in self._state.peers.values()]

    def peer(self, name: str) -> views.PeerView | None:
        """One peer, if it is known."""
        peer = self._state.peers.get(name)
        return None if peer is None else views.peer(peer)

    def leases_of(self, namespace: str, peer: str) -> list[tuple[int, int, int]]:
        """The leases that a peer holds in a namespace: sequence id, attempt and fence of each."""
        ns = self._state.namespaces.get(namespace)
        return [] if ns is None else views.held(ns, peer)

    def request(self, namespace: str, request_id: str) -> int | None:
        """The id of the item here that came with a request id."""
        ns = self._state.namespaces.get(namespace)
        return None if ns is None else ns.requests.get(request_id)

    def explain(self, namespace: str, sequence_id: int) -> Explanation:
        """Why an item is where it is, and what it waits for."""
        return explain(self._state, namespace, sequence_id)

    def _let_time_pass(self) -> None:
        next_ms = self.next_due_ms()
        if next_ms is None or next_ms > self._state.clock_ms:
            return
        for due in due_namespaces(self._state):
            for records in expired(self._state, due):
                self._emit(records)
            self._emit(released(due))
            self._emit(settings.backpressure(due.namespace))

    def _run(self, raw: object) -> Result:
        """Decides one op, folds what follows from it, and answers."""
        read = _op(raw, self._state.entry_version)
        if isinstance(read, Refusal):
            return read
        code, op = read
        handler = HANDLERS[code]
        call: Call = op.call
        known = self._answered(code, call, handler) if call.operation_id else None
        if known is not None:
            return known
        try:
            result, records = handler.decide(self._state, op)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            return invalid(f"not an op: {error}", "op")
        if isinstance(result, Refusal) and call.operation_id and not isinstance(op, _FORGETFUL):
            records = [*records, *_remembered(code, call, result)]
        self._emit(records)
        ns = self._state.namespaces.get(call.namespace)
        if ns is not None and (ns.backpressure or ns.options.high_watermark is not None):
            self._emit(settings.backpressure(ns))
        return result

    def _answered(self, code: int, call: Call, handler: Handler) -> Result | None:
        """What a call with this operation id was answered before; None if it is to be decided."""
        answer = self._state.answers.get(key_of(call), self._state.clock_ms)
        if answer is None:
            return None
        if answer.code != code:
            message = f"operation id {call.operation_id} was used for another kind of operation"
            return Refusal(Reason.CONFLICT, message, "operation_id")
        result = self._replayed(answer, call, handler)
        if isinstance(result, Granted) and result.sequence_ids:
            return None if call.take > answer.take else result._replace(next_take=answer.take + 1)
        if call.take > answer.take and _is_passing(result):
            return None
        return result

    def _replayed(self, answer: Answer, call: Call, handler: Handler) -> Result:
        content = answer.content
        if type(content) is list and content and content[0] == _NO:
            _, reason, *rest = content
            return Refusal(Reason(reason), *rest)
        return handler.replay(self._state, self._state.namespaces.get(call.namespace), content)

    def _emit(self, records: list[Record]) -> None:
        state = self._state
        for record in records:
            record.sequence = state.sequence + 1
            record.index, record.term = state.index, state.term
            record.clock_ms, record.wall_ms = state.clock_ms, state.wall_ms
            fold_record(state, record)
            record.encoded = record.encode()
            # Whoever keeps the record need not keep every body twice.
            record.unpacked = None
        self._records += records


def fold(cluster_id: str, records: Iterable[Record]) -> Machine:
    """The machine that a log of events adds up to. Raises ``CorruptLog`` where the log cannot be one machine's."""
    machine = Machine(cluster_id)
    state = machine._state
    step: list[Record] = []
    for record in records:
        if record.sequence != state.sequence + 1:
            raise CorruptLog(f"event {record.sequence} follows event {state.sequence}")
        if step and record.index != state.index:
            _write_down(state, step)
            step = []
        state.index, state.term = record.index, record.term
        state.clock_ms, state.wall_ms = record.clock_ms, record.wall_ms
        depth = record.pending, record.active
        try:
            fold_record(state, record)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise CorruptLog(f"event {record.sequence}: {type(error).__name__} {error}") from error
        if depth != (record.pending, record.active):
            raise CorruptLog(f"event {record.sequence}: the queue is {record.pending, record.active} deep, not {depth}")
        step.append(record)
    if step:
        _write_down(state, step)
    return machine


def _write_down(state: State, records: list[Record]) -> bool:
    """Takes the events of an entry into the chain and the open segment; whether the segment ends with them."""
    first_sequence, size_bytes, clock_ms, chain = state.segment
    if not size_bytes:
        clock_ms = records[0].clock_ms
    digest = sha256(state.chain)
    for record in records:
        digest.update(record.encoded)
        size_bytes += len(record.encoded)
    state.chain = digest.digest()
    sealed = size_bytes >= limits.SEGMENT_BYTES or records[0].clock_ms - clock_ms >= limits.SEGMENT_AGE_MS
    if sealed:
        state.segment = Segment(state.sequence + 1, 0, 0, state.chain)
    else:
        state.segment = Segment(first_sequence, size_bytes, clock_ms, chain)
    return sealed


def _read(data: bytes) -> tuple[int, int, int, list[Any]] | None:
    """Version, clock, wall time and ops of an entry; None if it is not of our form."""
    try:
        version, clock_ms, wall_ms, ops = msgpack.unpackb(data)
    except (ValueError, TypeError):
        return None
    times = is_count(clock_ms, limits.MAX_TIME_MS) and is_count(wall_ms, limits.MAX_TIME_MS)
    known = is_count(version, ENTRY_VERSION, least=1)
    if not known or not times or type(ops) is not list:
        return None
    return version, clock_ms, wall_ms, ops


def _op(raw: object, version: int) -> tuple[int, Op] | Refusal:
    """The op of its packed form, its shape and its caller checked."""
    if type(raw) is not bytes:
        return invalid("an op is packed on its own", "op")
    if len(raw) > limits.MAX_OP_BYTES:
        return invalid(f"an op of {len(raw)} bytes; the most is {limits.MAX_OP_BYTES}", "op")
    try:
        code, call, *fields = msgpack.unpackb(raw)
        kind: Any = OPS[code] if type(code) is int else None
        op: Any = kind(Call(*call), *fields)
    except (ValueError, TypeError, LookupError) as error:
        return invalid(f"not an op known here: {type(error).__name__}", "op")
    if SINCE.get(code, 1) > version:
        message = (
            f"op {code} came with entries of version {SINCE[code]}; nodes write version {version} until all read it"
        )
        return Refusal(Reason.CONFLICT, message, "op")
    return wrong_call(op.call) or (code, op)


def _remembered(code: int, call: Call, no: Refusal) -> list[Record]:
    """The record that keeps a refusal, if another state of the machine could have made it a yes."""
    if no.reason not in _REMEMBERED:
        return []
    answer = [call.take, code, [_NO, *no]]
    return [Record(EventType.REJECTED, RejectionData(no.reason, no.message), answer=answer, call=call)]


def _is_passing(result: Result) -> bool:
    """Whether an answer is a no that time may have cured, and nothing of it was a yes."""
    if isinstance(result, Refusal):
        return result.reason in _PASSING
    if isinstance(result, (Enqueued, Redriven)):
        accepted = any(result.sequence_ids)
        if isinstance(result, Enqueued):
            accepted = len(result.duplicates) < sum(map(bool, result.sequence_ids))
        return not accepted and any(refusal.reason in _PASSING for refusal in result.refused.values())
    return False
