"""AdminService, looking: namespaces, items, peers, and why an item waits."""

import time
from collections.abc import Iterator
from heapq import nsmallest
from itertools import chain

from resourcelease import v1
from resourcelease.frontdoor import answers
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.explaining import explain
from resourcelease.frontdoor.paging import page_size, place_of, token_of
from resourcelease.frontdoor.refusals import Refused, refuse
from resourcelease.frontdoor.replica import Replica
from resourcelease.machine import Machine
from resourcelease.machine.views import ItemView, PeerView, QueueView
from resourcelease.model.errors import Reason
from resourcelease.model.events import shard_of
from resourcelease.model.limits import DEFAULT_NAMESPACE, MAX_ITEMS_PER_OP
from resourcelease.model.options import DEFAULT_OPTIONS, QueueOptions

__all__ = ["Browse", "options_message", "summary_of"]

_STATES = {
    "pending": v1.ItemState.ITEM_STATE_PENDING,
    "delayed": v1.ItemState.ITEM_STATE_DELAYED,
    "active": v1.ItemState.ITEM_STATE_ACTIVE,
    "dead": v1.ItemState.ITEM_STATE_DEAD,
}
# Items looked at for one page of a browse; a page may be short and not be the last.
_LOOKS_MAX = 5_000
# The bodies of one page.
_BODY_BYTES_MAX = 3 * 1024 * 1024


class Browse:
    """Queues, Items, Explain and Peers."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def queues(self, caller: Caller, request: v1.QueuesRequest) -> v1.QueuesResponse:
        """The namespaces, as they stand."""
        await self._replica.linearize(request.linearizable, caller.remaining_s())
        machine = self._replica.machine
        wanted = frozenset(request.namespaces)
        names = [name for name in machine.namespaces() if not wanted or name in wanted]
        told = [_queue(machine, queue) for name in names if (queue := machine.queue(name)) is not None]
        return v1.QueuesResponse(position=self._replica.position(), queues=told)

    async def items(self, caller: Caller, request: v1.ItemsRequest) -> v1.ItemsResponse:
        """Browses, or looks up."""
        if len(request.sequence_ids) > MAX_ITEMS_PER_OP:
            refuse(f"has {len(request.sequence_ids)} entries; {MAX_ITEMS_PER_OP} are allowed", "sequence_ids")
        size, after = page_size(request.page_size), place_of(request.page_token)
        await self._replica.linearize(request.linearizable, caller.remaining_s())
        namespace = request.namespace or DEFAULT_NAMESPACE
        machine = self._replica.machine
        queue = _known(machine, namespace)
        found: list[v1.Item] = []
        last = more = bytes_told = 0
        for looks, sequence_id in enumerate(_candidates(machine, queue, request, after)):
            if len(found) >= size or looks >= _LOOKS_MAX or bytes_told >= _BODY_BYTES_MAX:
                more = last
                break
            last = sequence_id
            view = machine.item(namespace, sequence_id)
            if view is not None and _matches(view, request):
                found.append(_item(view, queue.options, with_body=request.include_bodies))
                bytes_told += len(view.item.body or b"") if request.include_bodies else 0
        return v1.ItemsResponse(
            position=self._replica.position(namespace), items=found, next_page_token=token_of(more) if more else ""
        )

    async def explain(self, caller: Caller, request: v1.ExplainRequest) -> v1.ExplainResponse:
        """Why an item waits, or what became of it."""
        if request.sequence_id < 1:
            refuse(f"must be from 1, not {request.sequence_id}", "sequence_id")
        await self._replica.linearize(request.linearizable, caller.remaining_s())
        namespace = request.namespace or DEFAULT_NAMESPACE
        machine = self._replica.machine
        queue = _known(machine, namespace)
        rule, words, fields = explain(machine, namespace, request.sequence_id)
        view = machine.item(namespace, request.sequence_id)
        return v1.ExplainResponse(
            position=self._replica.position(namespace),
            item=None if view is None else _item(view, queue.options, with_body=False),
            rule=rule,
            words=words,
            fields=fields,
        )

    async def peers(self, caller: Caller, request: v1.PeersRequest) -> v1.PeersResponse:
        """The peers, by name."""
        size = page_size(request.page_size)
        await self._replica.linearize(request.linearizable, caller.remaining_s())
        machine = self._replica.machine
        queue = machine.queue(request.namespace or DEFAULT_NAMESPACE)
        grace_ms = (queue.options if queue else DEFAULT_OPTIONS).peer_grace_ms
        wanted = frozenset(request.peer_ids)
        views = [view for view in machine.peers() if not wanted or view.name in wanted]
        # The token is the last name of the page before.
        page = sorted((view for view in views if view.name > request.page_token), key=lambda view: view.name)
        told = [_peer(view, machine.clock_ms, grace_ms) for view in page[:size]]
        return v1.PeersResponse(
            position=self._replica.position(request.namespace),
            peers=told,
            next_page_token=page[size - 1].name if len(page) > size else "",
        )


def summary_of(queue: QueueView) -> v1.NamespaceSummary:
    """A namespace in one line."""
    return v1.NamespaceSummary(
        namespace=queue.name,
        shard_id=shard_of(queue.name),
        depth=answers.depth_of(queue),
        dead_letters=queue.dead,
        backpressure=queue.backpressure,
        paused=queue.paused,
    )


def options_message(options: QueueOptions) -> v1.QueueOptions:
    """All options in force; the watermarks only while they are set."""
    return v1.QueueOptions(**{name: value for name, value in options.as_map().items() if value is not None})


def _known(machine: Machine, namespace: str) -> QueueView:
    queue = machine.queue(namespace)
    if queue is None:
        raise Refused(Reason.NOT_FOUND, f"there is no namespace {namespace}", "namespace")
    return queue


def _queue(machine: Machine, queue: QueueView) -> v1.Queue:
    oldest = next(machine.pending_ids(queue.name), None)
    view = None if oldest is None else machine.item(queue.name, oldest)
    age_ms = max(0, time.time_ns() // 1_000_000 - view.item.enqueued_at_ms) if view else 0
    delayed = next(machine.delayed_ids(queue.name), None) if queue.delayed else None
    due = None if delayed is None else machine.item(queue.name, delayed)
    return v1.Queue(
        summary=summary_of(queue),
        options=options_message(queue.options),
        next_sequence_id=queue.next_id,
        oldest_pending_age_ms=age_ms,
        next_ready_at_ms=due.due_ms if due else 0,
    )


def _candidates(machine: Machine, queue: QueueView, request: v1.ItemsRequest, after: int) -> Iterator[int]:
    """Ids above ``after`` that may match, ascending."""
    name = queue.name
    if request.sequence_ids:
        return iter(sorted({i for i in request.sequence_ids if i > after}))
    if request.request_id:
        known = machine.request(name, request.request_id)
        return iter([known] if known is not None and known > after else [])
    if request.peer_id:
        return iter(sorted(i for i, _, _ in machine.leases_of(name, request.peer_id) if i > after))
    here = queue.pending + queue.delayed + queue.active + queue.dead
    states = [place for place, state in _STATES.items() if state in request.states] or list(_STATES)
    counts: dict[str, int] = {"pending": queue.pending, "delayed": queue.delayed}
    counts |= {"active": queue.active, "dead": queue.dead}
    if sum(counts[place] for place in states) == here and queue.next_id - after < 4 * here:
        return iter(range(after + 1, queue.next_id))
    ids = {
        "pending": machine.pending_ids,
        "delayed": machine.delayed_ids,
        "active": machine.active_ids,
        "dead": machine.dead_ids,
    }
    every = chain.from_iterable(ids[place](name) for place in states)
    return iter(nsmallest(_LOOKS_MAX + 1, (i for i in every if i > after)))


def _matches(view: ItemView, request: v1.ItemsRequest) -> bool:
    if request.states and _STATES[view.place] not in request.states:
        return False
    item = view.item
    return (
        (not request.resource_type or item.resource_type == request.resource_type)
        and (not request.resource_id or item.resource_id == request.resource_id)
        and (not request.request_id or item.request_id == request.request_id)
        and (not request.peer_id or view.peer == request.peer_id)
    )


def _item(view: ItemView, options: QueueOptions, *, with_body: bool) -> v1.Item:
    told = v1.Item(
        sequence_id=view.sequence_id,
        payload=answers.payload(view.item, with_body=with_body),
        state=_STATES[view.place],
        attempt=view.attempt,
        attempts_used=view.attempts_used,
        enqueued_at_ms=view.item.enqueued_at_ms,
        ready_at_ms=view.due_ms,
    )
    if view.place == "active":
        told.handle.CopyFrom(v1.Handle(sequence_id=view.sequence_id, attempt=view.attempt, lease_id=view.fence))
        told.peer_id, told.deadline_ms = view.peer, view.deadline_ms
    if view.last_error is not None:
        told.last_error.CopyFrom(answers.failure(view.last_error))
    if view.last is not None:
        last = view.last
        handle = v1.Handle(sequence_id=view.sequence_id, attempt=last.attempt, lease_id=last.fence)
        told.last_handle.CopyFrom(handle)
        told.last_peer_id = last.peer
        told.last_outcome = answers.OUTCOMES.get(last.outcome, v1.LeaseOutcome.LEASE_OUTCOME_UNSPECIFIED)
    return told


def _peer(view: PeerView, clock_ms: int, grace_ms: int) -> v1.Peer:
    return v1.Peer(
        peer_id=view.name,
        healthy=view.healthy(clock_ms, grace_ms),
        disconnected=bool(view.disconnected),
        reason=view.disconnected,
        last_heard_ms=view.heard_ms,
        active_leases=view.active,
        pending_reassignments=view.reassignments,
    )
