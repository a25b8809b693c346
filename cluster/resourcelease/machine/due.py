"""What happens because time has passed: leases end, delays end."""

from collections.abc import Iterator

from resourcelease.machine.agenda import Hold
from resourcelease.machine.deadletters import requeue_or_bury
from resourcelease.machine.decision import compressed, disconnected
from resourcelease.machine.handles import EXPIRED, Handles
from resourcelease.machine.state import Namespace, State
from resourcelease.model.eventdata import EndsData, EventType, IdsData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call

__all__ = ["due_namespaces", "expired", "released"]


class Due:
    """What fell due in one namespace."""

    __slots__ = ("delayed", "ended", "namespace")

    def __init__(self, namespace: Namespace) -> None:
        self.namespace = namespace
        # (end, fence, id, peer) of each lease.
        self.ended: list[tuple[int, int, int, str]] = []
        # Ids in the order of (due, ticket).
        self.delayed: list[int] = []


def due_namespaces(state: State) -> list[Due]:
    """What has fallen due by now, namespaces in the order of their creation."""
    found: dict[str, Due] = {}
    for hold in state.agenda.due(state.clock_ms):
        end_ms = state.lease_end_ms(hold)
        if end_ms > state.clock_ms:
            state.agenda.postpone(hold, end_ms)
            continue
        ns = state.namespaces[hold.namespace]
        due = found.setdefault(ns.name, Due(ns))
        due.ended += [(end_ms, fence, i, hold.peer) for i, fence in _still_under(ns, hold)]
    for delay in state.delays.due(state.clock_ms):
        due = found.setdefault(delay.namespace, Due(state.namespaces[delay.namespace]))
        due.delayed.append(delay.sequence_id)
    return sorted(found.values(), key=lambda due: due.namespace.number)


def expired(state: State, due: Due) -> Iterator[list[Record]]:
    """The records of the leases that ended, a peer at a time; each list is folded before the next is asked for."""
    ns = due.namespace
    by_peer: dict[str, list[tuple[int, int, int, str]]] = {}
    for lease in sorted(due.ended):
        by_peer.setdefault(lease[3], []).append(lease)
    for peer, leases in by_peer.items():
        ids = [lease[2] for lease in leases]
        fences = [lease[1] for lease in leases]
        ended = Handles(ids, [ns.attempt_of(i) for i in ids], fences)
        call = Call(ns.name, peer)
        data = EndsData(ids, compressed(ended.attempts), fences)
        yield [
            Record(EventType.LEASE_EXPIRED, data, count=len(ids), call=call),
            *requeue_or_bury(state, ns, ended, EXPIRED, call),
            *disconnected(state, peer, "lease expired", call),
        ]


def released(due: Due) -> list[Record]:
    """The record of the delays that ended."""
    ids, ns = due.delayed, due.namespace
    if not ids:
        return []
    data = IdsData(ids, compressed([ns.attempt_of(i) for i in ids]))
    return [Record(EventType.RELEASED, data, count=len(ids), call=Call(ns.name))]


def _still_under(ns: Namespace, hold: Hold) -> Iterator[tuple[int, int]]:
    for sequence_id, fence in zip(hold.sequence_ids, hold.fences, strict=True):
        lease = ns.leases.get(sequence_id)
        if lease is not None and lease[1] is hold:
            yield sequence_id, fence
