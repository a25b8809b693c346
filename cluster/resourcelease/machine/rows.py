"""The state as rows of a key-value store, whole or what changed, and back.

A key is a letter, the number of the namespace where the row belongs to one, and an order that is unique and rises: so
rows come out in the order in which the machine iterates. Everything else (lanes, agenda, counts of leases by peer) is
derived when rows are loaded.

| key | row |
|---|---|
| m | the position, the counters, the chain |
| n, number | a namespace: options, totals |
| i, number, id | an item with its history and its lease, delay or death |
| s, number, block | settled items of one block of ids |
| r, number, expiry | ended request ids that are forgotten together |
| b / c / v / e, number, order | a bundle being drained / a page restored / a version / an effect |
| p, order | a peer |
| a, expiry | answers by operation id, likewise |
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from struct import Struct
from struct import error as StructError
from typing import Any, TypeAlias

import msgpack

from resourcelease.machine.agenda import Delay, Hold
from resourcelease.machine.checks import is_count
from resourcelease.machine.moves import hold
from resourcelease.machine.state import PRIORITY, REQUEST_ID, Bundle, Effect, History, Namespace, Peer, State, Version
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
        yield _ORDER.pack(b"a", expires_ms), _pack(answers)
    for letter, kind in ((b"b", "bundles"), (b"c", "restored_pages"), (b"e", "effects")):
        for ns in spaces:
            yield from sorted(_keyed_row(ns, kind, letter, name) for name in getattr(ns, kind))
    for ns in spaces:
        for sequence_id in ns.items:
            yield _NUMBERED_ORDER.pack(b"i", ns.number, sequence_id), _item(ns, sequence_id)
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
        answers = state.answers.row(expires_ms)
        note(_ORDER.pack(b"a", expires_ms), _pack(answers) if answers else None)
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
    for sequence_id in ns.touched_items:
        if sequence_id < ns.stored_below:
            key = _NUMBERED_ORDER.pack(b"i", ns.number, sequence_id)
            note(key, _item(ns, sequence_id) if sequence_id in ns.items else None)
    for sequence_id in ns.items.above(ns.stored_below):
        note(_NUMBERED_ORDER.pack(b"i", ns.number, sequence_id), _item(ns, sequence_id))
    ns.touched_items.clear()
    ns.stored_below = ns.next_id
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
    holds: dict[tuple[int, str, str, int], tuple[list[int], list[int]]] = {}
    dead: list[tuple[int, int, int, str]] = []
    keyed: list[tuple[int, bytes, int, Any]] = []
    answers = sorted((_ORDER.unpack(key)[1], fields) for letter, key, fields in later if letter == b"a")
    for expires_ms, fields in answers:
        state.answers.load(expires_ms, fields)
    for letter, key, fields in later:
        if letter not in (b"a", b"p"):
            _, number, order = _NUMBERED_ORDER.unpack(key)
            ns = numbered[number]
            if letter == b"i":
                _load_item(state, ns, order, fields, holds, dead)
            elif letter == b"r":
                ns.ended_requests.add_many([k for k, _ in fields], [v for _, v in fields], order)
            elif letter == b"s":
                ns.settled.load(order, fields)
            else:
                keyed.append((number, letter, order, fields))
    for ns in numbered.values():
        _line_up_all(ns)
        ns.delayed = dict(sorted(ns.delayed.items(), key=_ticket))
        ns.stored_below = ns.next_id
        ns.touched_items.clear()
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


def _line_up_all(ns: Namespace) -> None:
    """The lanes, from the items that are in no other place, by ticket."""
    for priority, ids in ns.unlined.items():
        for _, sequence_id in sorted(ids):
            ns.ready.append(priority, sequence_id)
    ns.unlined.clear()


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
        )
    )
    return packed


def _load_meta(state: State, fields: Any) -> None:
    if not is_count(fields[0], VERSION, least=VERSION):
        raise CorruptLog(f"rows of another version than {VERSION}, which this release reads")
    _, state.cluster_id, state.index, state.term, state.clock_ms, state.wall_ms, *rest = fields
    state.sequence, state.fence, state.chain = rest


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


def _item(ns: Namespace, sequence_id: int) -> bytes:
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
    packed: bytes = _pack((ns.items[sequence_id], history and history.packed(), place))
    return packed


def _load_item(
    state: State,
    ns: Namespace,
    sequence_id: int,
    fields: Any,
    holds: dict[tuple[int, str, str, int], tuple[list[int], list[int]]],
    dead: list[tuple[int, int, int, str]],
) -> None:
    row, history, (place, *where) = fields
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
    elif place == "dead":
        order, cause = where
        dead.append((ns.number, order, sequence_id, cause))
    else:
        ns.unlined.setdefault(row[PRIORITY], []).append((ns.ticket_of(sequence_id), sequence_id))


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
