"""The state as rows of a key-value store, whole or what changed, and back.

A key is a letter, the number of the namespace where the row belongs to one, and an order that is unique and rises: so
rows come out in the order in which the machine iterates. Everything else (lanes, agenda, counts of leases by peer) is
derived when rows are loaded.

| key | row |
|---|---|
| m | the position, the counters, the chain |
| n, number | a namespace: options, totals |
| g, number, first id | the items of one enqueue, as they came |
| h, number, first id | which of them are left, where that is not all |
| i, number, id | an item that is not simply pending in its batch: its history and its lease, delay or death |
| s, number, block | settled items of one block of ids |
| r, number, expiry | ended request ids that are forgotten together |
| b / c / v / e, number, order | a bundle being drained / a page restored / a version / an effect |
| p, order | a peer |
| a, expiry | answers by operation id, likewise |
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import repeat
from struct import Struct
from struct import error as StructError
from typing import Any, TypeAlias

import msgpack

from resourcelease.machine.agenda import Hold
from resourcelease.machine.checks import is_count
from resourcelease.machine.items import Batch
from resourcelease.machine.items import Row as ItemRow
from resourcelease.machine.lines import Dead, Holds, Lines
from resourcelease.machine.moves import hold
from resourcelease.machine.state import Bundle, Effect, Namespace, Peer, Segment, State, Version
from resourcelease.model.errors import CorruptLog
from resourcelease.model.options import QueueOptions

__all__ = ["digest", "dump", "load", "take_changes"]

Row: TypeAlias = tuple[bytes, bytes]

VERSION = 1

_pack = msgpack.Packer(autoreset=True).pack
_unpack = msgpack.unpackb
_ORDER = Struct(">cQ")
_NUMBERED = Struct(">cI")
_NUMBERED_ORDER = Struct(">cIQ")
_KEYED = {"bundles": b"b", "restored_pages": b"c", "versions": b"v", "effects": b"e"}
_TOTALS = ("enqueued", "restored", "completed", "drained", "discarded", "redriven")


def dump(state: State) -> Iterator[Row]:
    """Every row, in the order of the keys."""
    spaces = list(state.namespaces.values())
    for expires_ms, answers in state.answers.rows():
        yield _ORDER.pack(b"a", expires_ms), answers
    for letter, kind in ((b"b", "bundles"), (b"c", "restored_pages"), (b"e", "effects")):
        for ns in spaces:
            yield from sorted(_keyed_row(ns, kind, letter, name) for name in getattr(ns, kind))
    batches = [(ns, list(ns.items.batches())) for ns in spaces]
    for ns, present in batches:
        for batch in present:
            yield _NUMBERED_ORDER.pack(b"g", ns.number, batch.first_id), _batch(batch)
    for ns, present in batches:
        for batch in present:
            if batch.left < batch.size:
                yield _NUMBERED_ORDER.pack(b"h", ns.number, batch.first_id), _pack(ns.items.held(batch))
    for ns in spaces:
        for sequence_id, value in _with_own_row(ns, 0, ns.next_id):
            yield _NUMBERED_ORDER.pack(b"i", ns.number, sequence_id), _item(ns, sequence_id, value)
    yield b"m", _meta(state)
    for ns in spaces:
        yield _NUMBERED.pack(b"n", ns.number), _namespace(ns)
    for peer in sorted(state.peers.values(), key=_joined):
        yield _ORDER.pack(b"p", peer.joined_order), _peer(peer)
    for ns in spaces:
        for expires_ms, requests in ns.ended_requests.chunks():
            yield _NUMBERED_ORDER.pack(b"r", ns.number, expires_ms), _pack(list(requests.items()))
    for ns in spaces:
        for number, row in ns.settled.rows():
            yield _NUMBERED_ORDER.pack(b"s", ns.number, number), _pack(row)
    for ns in spaces:
        yield from sorted(_keyed_row(ns, "versions", b"v", name) for name in ns.versions)


def digest(state: State) -> bytes:
    """One digest over all rows."""
    whole = sha256()
    for key, value in dump(state):
        whole.update(len(key).to_bytes(1, "big"))
        whole.update(key)
        whole.update(len(value).to_bytes(8, "big"))
        whole.update(value)
    return whole.digest()


def take_changes(state: State) -> tuple[list[Row], list[bytes]]:
    """What to put and what to delete since the last call."""
    puts: list[Row] = [(b"m", _meta(state))]
    deletes: list[bytes] = []

    def note(key: bytes, value: bytes | None) -> None:
        if value is None:
            deletes.append(key)
        else:
            puts.append((key, value))

    for expires_ms in state.answers.take_touched():
        note(_ORDER.pack(b"a", expires_ms), state.answers.row(expires_ms) or None)
    by_order = {peer.joined_order: peer for peer in state.peers.values()} if state.touched_peers else {}
    for order in state.touched_peers:
        note(_ORDER.pack(b"p", order), _peer(by_order[order]) if order in by_order else None)
    for name in state.touched_namespaces:
        ns = state.namespaces[name]
        note(_NUMBERED.pack(b"n", ns.number), _namespace(ns))
        _take_namespace(ns, note)
    state.touched_peers.clear()
    state.touched_namespaces.clear()
    return puts, deletes


def _take_namespace(ns: Namespace, note: Any) -> None:
    _take_items(ns, note)
    for expires_ms in ns.ended_requests.take_touched():
        chunk = ns.ended_requests.chunk(expires_ms)
        note(_NUMBERED_ORDER.pack(b"r", ns.number, expires_ms), _pack(list(chunk.items())) if chunk else None)
    for number in ns.settled.take_touched():
        settled = ns.settled.row(number)
        note(_NUMBERED_ORDER.pack(b"s", ns.number, number), _pack(settled) if settled else None)
    for (kind, order), name in ns.touched_keyed.items():
        key = _NUMBERED_ORDER.pack(_KEYED[kind], ns.number, order)
        row = _keyed_row(ns, kind, _KEYED[kind], name) if name in getattr(ns, kind) else None
        note(key, row[1] if row and row[0] == key else None)
    ns.touched_keyed.clear()


def _take_items(ns: Namespace, note: Any) -> None:
    items = ns.items
    for first_id, batch in items.touched_batches.items():
        held = None
        end_id = first_id + (batch.size if isinstance(batch, Batch) else batch)
        # Of those that are gone with it only such matter as had a row; whatever stands alone since was touched.
        ids = items.stored_rows.within(first_id, end_id)
        if isinstance(batch, Batch):
            ids += [sequence_id for sequence_id, _ in _with_own_row(ns, first_id, end_id)]
            if batch.left < batch.size:
                held = _pack(items.held(batch))
        else:
            note(_NUMBERED_ORDER.pack(b"g", ns.number, first_id), None)
        note(_NUMBERED_ORDER.pack(b"h", ns.number, first_id), held)
        for sequence_id in dict.fromkeys(ids):
            if sequence_id not in items.touched:
                _take_item(ns, sequence_id, note)
    for batch in items.batches(items.stored_below, ns.next_id):
        batch.stored = True
        note(_NUMBERED_ORDER.pack(b"g", ns.number, batch.first_id), _batch(batch))
        if batch.left < batch.size:
            note(_NUMBERED_ORDER.pack(b"h", ns.number, batch.first_id), _pack(items.held(batch)))
    for sequence_id in items.touched:
        _take_item(ns, sequence_id, note)
    for sequence_id, value in _with_own_row(ns, items.stored_below, ns.next_id):
        items.stored_rows.add(sequence_id)
        note(_NUMBERED_ORDER.pack(b"i", ns.number, sequence_id), _item(ns, sequence_id, value))
    items.touched.clear()
    items.touched_batches.clear()
    items.stored_below = ns.next_id


def _take_item(ns: Namespace, sequence_id: int, note: Any) -> None:
    row = _own_row(ns, sequence_id)
    if row is not None:
        ns.items.stored_rows.add(sequence_id)
    elif sequence_id in ns.items.stored_rows:
        ns.items.stored_rows.discard(sequence_id)
    else:
        return
    note(_NUMBERED_ORDER.pack(b"i", ns.number, sequence_id), row)


def load(rows: Iterable[Row]) -> State:
    """The state that rows stand for, in whatever order they come."""
    state = State("")
    numbered: dict[int, Namespace] = {}
    later: list[tuple[bytes, bytes, Any]] = []
    try:
        for key, value in rows:
            letter, fields = key[:1], _unpack(value, strict_map_key=False)
            if letter == b"m":
                _load_meta(state, fields)
            elif letter == b"n":
                ns = _load_namespace(fields)
                numbered[ns.number] = ns
            else:
                later.append((letter, key, fields))
        if not state.cluster_id:
            raise CorruptLog("the rows have no position; they are not a whole state")
        for number in sorted(numbered):
            state.namespaces[numbered[number].name] = numbered[number]
        _load_peers(state, [fields for letter, _, fields in later if letter == b"p"])
        _load_rest(state, numbered, later)
    except (LookupError, TypeError, ValueError, AttributeError, StructError) as error:
        raise CorruptLog(f"the rows are not a state of this release: {type(error).__name__} {error}") from error
    return state


def _load_rest(state: State, numbered: dict[int, Namespace], later: list[tuple[bytes, bytes, Any]]) -> None:
    holds: Holds = {}
    dead: Dead = []
    keyed: list[tuple[int, bytes, int, Any]] = []
    lines = {number: Lines(ns) for number, ns in numbered.items()}
    answers = sorted((_ORDER.unpack(key)[1], fields) for letter, key, fields in later if letter == b"a")
    for expires_ms, fields in answers:
        state.answers.load(expires_ms, fields)
    for letter, key, fields in later:
        if letter not in (b"a", b"p"):
            _, number, order = _NUMBERED_ORDER.unpack(key)
            ns = numbered[number]
            if letter == b"i":
                lines[number].add_item(state, order, fields, holds, dead)
            elif letter == b"g":
                lines[number].batches[order] = fields
            elif letter == b"h":
                lines[number].held[order] = fields
            elif letter == b"r":
                ns.ended_requests.add_many([k for k, _ in fields], [v for _, v in fields], order)
            elif letter == b"s":
                ns.settled.load(order, fields)
            else:
                keyed.append((number, letter, order, fields))
    for number, ns in numbered.items():
        lines[number].form()
        ns.delayed = dict(sorted(ns.delayed.items(), key=_ticket))
        ns.items.stored_below = ns.next_id
        ns.ended_requests.take_touched()
        ns.settled.take_touched()
    for (number, peer, principal, deadline_ms), (ids, fences) in sorted(holds.items()):
        hold(state, Hold(numbered[number].name, peer, principal, deadline_ms, ids, fences))
        state.peers[peer].at[numbered[number].name].active += len(ids)
    for number, order, sequence_id, cause in sorted(dead):
        numbered[number].dead[sequence_id] = (order, cause)
    for number, letter, order, fields in sorted(keyed, key=lambda row: row[:3]):
        _load_keyed(numbered[number], letter, order, fields)
    state.answers.take_touched()


def _meta(state: State) -> bytes:
    packed: bytes = _pack(
        (
            VERSION,
            state.cluster_id,
            state.index,
            state.term,
            state.clock_ms,
            state.wall_ms,
            state.sequence,
            state.fence,
            state.chain,
            state.segment,
        )
    )
    return packed


def _load_meta(state: State, fields: Any) -> None:
    if not is_count(fields[0], VERSION, least=VERSION):
        raise CorruptLog(f"rows of another version than {VERSION}, which this release reads")
    _, state.cluster_id, state.index, state.term, state.clock_ms, state.wall_ms, *rest = fields
    state.sequence, state.fence, state.chain, segment = rest
    state.segment = Segment._make(segment)


def _namespace(ns: Namespace) -> bytes:
    totals = [getattr(ns, name) for name in _TOTALS]
    packed: bytes = _pack(
        (ns.number, ns.name, ns.options.as_map(), ns.paused, ns.backpressure, ns.next_id, totals),
    )
    return packed


def _load_namespace(fields: Any) -> Namespace:
    number, name, options, paused, backpressure, next_id, totals = fields
    ns = Namespace(name, number, QueueOptions(**options))
    ns.paused, ns.backpressure, ns.next_id = paused, backpressure, next_id
    for total, value in zip(_TOTALS, totals, strict=True):
        setattr(ns, total, value)
    return ns


def _batch(batch: Batch) -> bytes:
    packed: bytes = _pack((batch.packed, batch.wall_ms, batch.lead))
    return packed


def _with_own_row(ns: Namespace, first_id: int, end_id: int) -> Iterator[tuple[int, Batch | ItemRow]]:
    """The ids from one on, up to another, whose items have rows of their own, each with what it is."""
    for first, end, value in ns.items.runs(first_id, end_id):
        ids: Iterable[int] = range(first, end)
        if type(value) is Batch:
            ids = (i for i in ids if _has_own_row(ns, i, value)) if ns.delayed else ns.leases.within(first, end)
        yield from zip(ids, repeat(value))


def _own_row(ns: Namespace, sequence_id: int) -> bytes | None:
    """An item's own row; None if it has none."""
    value = ns.items.entry(sequence_id)
    return _item(ns, sequence_id, value) if value is not None and _has_own_row(ns, sequence_id, value) else None


def _has_own_row(ns: Namespace, sequence_id: int, value: Batch | ItemRow) -> bool:
    return type(value) is not Batch or sequence_id in ns.leases or sequence_id in ns.delayed


def _item(ns: Namespace, sequence_id: int, value: Batch | ItemRow) -> bytes:
    history = ns.history.get(sequence_id)
    lease = ns.leases.get(sequence_id)
    place: tuple[Any, ...]
    if lease is not None:
        fence, held = lease
        place = ("active", fence, held.peer, held.principal, held.deadline_ms)
    elif sequence_id in ns.delayed:
        place = ("delayed", *ns.delayed[sequence_id])
    elif sequence_id in ns.dead:
        place = ("dead", *ns.dead[sequence_id])
    else:
        place = ("pending",)
    packed: bytes = _pack((None if type(value) is Batch else value, history and history.packed(), place))
    return packed


def _peer(peer: Peer) -> bytes:
    at = [(name, presence.held_until_ms, presence.heard_ms) for name, presence in peer.at.items()]
    packed: bytes = _pack(
        (peer.joined_order, peer.name, peer.heard_ms, peer.heard_order, peer.disconnected, peer.reassignments, at)
    )
    return packed


def _load_peers(state: State, rows: list[Any]) -> None:
    for fields in sorted(rows, key=lambda fields: fields[3]):
        joined_order, name, heard_ms, heard_order, disconnected, reassignments, at = fields
        peer = state.peers[name] = Peer(name, joined_order)
        peer.heard_ms, peer.heard_order = heard_ms, heard_order
        peer.disconnected, peer.reassignments = disconnected, reassignments
        for namespace, held_until_ms, heard_there_ms in at:
            presence = peer.present(namespace)
            presence.held_until_ms, presence.heard_ms = held_until_ms, heard_there_ms


def _ticket(delayed: tuple[int, tuple[int, int]]) -> int:
    return delayed[1][1]


def _joined(peer: Peer) -> int:
    return peer.joined_order


def _keyed_row(ns: Namespace, kind: str, letter: bytes, name: str) -> Row:
    value = getattr(ns, kind)[name]
    order = value if kind == "restored_pages" else value.order
    return _NUMBERED_ORDER.pack(letter, ns.number, order), _pack((name, value))


def _load_keyed(ns: Namespace, letter: bytes, order: int, fields: Any) -> None:
    name, value = fields
    if letter == b"b":
        ns.bundles[name] = Bundle._make(value)
    elif letter == b"c":
        ns.restored_pages[name] = order
    elif letter == b"v":
        ns.versions[name] = Version._make(value)
    elif letter == b"e":
        ns.effects[name] = Effect._make(value)
    else:
        raise CorruptLog(f"a row of unknown kind {letter!r}")
