"""What a handler hands back, and the pieces that all handlers use."""

from typing import NamedTuple

from resourcelease.machine.state import Namespace, State
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType, PeerData, SettingsData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call
from resourcelease.model.results import Result

__all__ = [
    "Decision",
    "Ints",
    "compressed",
    "created",
    "disconnected",
    "heard",
    "seen_idle",
    "unknown",
]

Ints = int | list[int]


class Decision(NamedTuple):
    """The answer, and the records that make it true. The first record with an answer is what a retry finds."""

    result: Result
    records: list[Record]


def compressed(column: list[int]) -> Ints:
    """One number if all are the same, else the column."""
    first = column[0]
    return first if column.count(first) == len(column) else column


def unknown(call: Call) -> Decision:
    """The answer to a call on a namespace that does not exist."""
    message = f"there is no namespace {call.namespace}; its first enqueue or configure makes it"
    return Decision(Refusal(Reason.NOT_FOUND, message, "namespace"), [])


def created(state: State, call: Call) -> tuple[Namespace, list[Record]] | Refusal:
    """The namespace of a call; if it is new, as it will be once the record that comes with it is folded."""
    ns = state.namespaces.get(call.namespace)
    if ns is not None:
        return ns, []
    if len(state.namespaces) >= limits.MAX_NAMESPACES:
        message = f"this cluster has {limits.MAX_NAMESPACES} namespaces already, as many as it can have"
        return Refusal(Reason.QUEUE_FULL, message, "namespace")
    ns = Namespace(call.namespace)
    return ns, [
        Record(EventType.CONFIGURED, SettingsData(ns.options.as_map(), False), call=call),
    ]


def heard(state: State, call: Call, *, connects: bool = False) -> tuple[list[Record], list[Record]] | Refusal:
    """Records to put before and after those of a call by a peer, so that the peer is known, and connected if it is."""
    peer = state.peers.get(call.peer)
    if peer is not None:
        after = [_changed(call, "connected")] if connects and peer.disconnected else []
        return [], after
    before: list[Record] = []
    if len(state.peers) >= limits.MAX_PEERS:
        idle = next((peer for peer in state.peers.values() if not peer.active and not peer.reassignments), None)
        if idle is None:
            message = f"{limits.MAX_PEERS} peers hold work already, as many as this cluster can know"
            return Refusal(Reason.QUEUE_FULL, message, "peer_id")
        before.append(_changed(call, "removed", peer=idle.name))
    return [*before, _changed(call, "joined")], []


def seen_idle(state: State, ns: Namespace, call: Call) -> list[Record]:
    """The record of a lease call that is granted nothing, by a known peer that was not heard for a while."""
    peer = state.peers.get(call.peer)
    if peer is None:
        return []
    here = peer.at.get(ns.name)
    if here is not None and state.clock_ms - here.heard_ms < ns.options.peer_grace_ms // 10:
        return []
    return [_changed(call, "heard")]


def disconnected(state: State, name: str, reason: str, call: Call) -> list[Record]:
    """The record that marks a peer disconnected, if it is not already."""
    peer = state.peers.get(name)
    if peer is None or peer.disconnected:
        return []
    return [Record(EventType.PEER_CHANGED, PeerData(name, "disconnected", reason), call=call)]


def _changed(call: Call, change: str, peer: str = "") -> Record:
    return Record(EventType.PEER_CHANGED, PeerData(peer or call.peer, change, ""), call=call)
