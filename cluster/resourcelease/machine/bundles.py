"""drain and restore: items leave the cluster in pages, and come back."""

from heapq import nsmallest
from itertools import islice
from typing import Any

from resourcelease.machine.checks import invalid, is_count, is_name
from resourcelease.machine.decision import Decision, compressed, created, unknown
from resourcelease.machine.pages import Page, read_page, write_page
from resourcelease.machine.state import BODY, REQUEST_ID, Namespace, State
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import DrainData, EventType, RestoreData
from resourcelease.model.events import Record
from resourcelease.model.ops import Drain, Restore
from resourcelease.model.results import Drained, Restored, Result

__all__ = ["drain", "replay_drain", "replay_restore", "restore"]

# The first fields of an item: what a caller gave, and what tells an item from another.
_GIVEN = 8


def drain(state: State, op: Drain) -> Decision:
    """Takes the next items out of the queue, as a page of a bundle; or gives the last page again."""
    wrong = _wrong_drain(op)
    if wrong:
        return Decision(wrong, [])
    ns = state.namespaces.get(op.call.namespace)
    if ns is None:
        return unknown(op.call)
    bundle = ns.bundles.get(op.bundle_id)
    if bundle is not None and bundle.page and op.page == bundle.number:
        return Decision(Drained(bundle.page, bundle.size, bundle.more), [])
    expected = 0 if bundle is None else bundle.number + 1
    if op.page != expected:
        message = f"the next page of bundle {op.bundle_id} is {expected}, not {op.page}"
        return Decision(Refusal(Reason.CONFLICT, message, "page"), [])
    ids = _next_out(ns, op)
    one_more = bundle is None or (not bundle.page and ids)
    if one_more and _open_bundles(ns) >= limits.MAX_OPEN_BUNDLES:
        message = f"{limits.MAX_OPEN_BUNDLES} bundles are open; close one: ask for its next page with limit 0"
        return Decision(Refusal(Reason.QUEUE_FULL, message, "bundle_id"), [])
    page = write_page(state.cluster_id, ns, op.bundle_id, op.page, state.fence, ids, state.clock_ms)
    left = ns.ready.size + len(ns.delayed) + (len(ns.leases) if op.include_active else 0) - len(ids)
    result = Drained(page, len(ids), left > 0)
    if not ids and (bundle is None or not bundle.page):
        return Decision(result, [])
    attempts = compressed([ns.attempt_of(i) for i in ids]) if ids else 0
    data = DrainData(ids, attempts, op.bundle_id, op.page, page if ids else b"", left > 0)
    # One event says that the last page has arrived, where there is nothing more to take.
    return Decision(result, [Record(EventType.DRAIN_SNAPSHOT, data, count=len(ids) or 1, call=op.call)])


def restore(state: State, op: Restore) -> Decision:
    """Puts the items of a page back that are not here."""
    page = read_page(op.page)
    if isinstance(page, str):
        return Decision(invalid(page, "page"), [])
    found = created(state, op.call)
    if isinstance(found, Refusal):
        return Decision(found, [])
    ns, records = found
    size = len(page.sequence_ids)
    if page.key in ns.restored_pages:
        return Decision(Restored(0, size), [])
    absent = _absent(state, ns, page)
    if isinstance(absent, Refusal):
        return Decision(absent, [])
    refusal = _misfit(ns, page, absent)
    if refusal:
        return Decision(refusal, [])
    result = Restored(len(absent), size - len(absent))
    if not absent:
        return Decision(result, [])
    ids = [page.sequence_ids[place] for place in absent]
    attempts = [_attempt(page, place) for place in absent]
    data = RestoreData(ids, compressed(attempts), absent, op.page)
    record = Record(EventType.RESTORE_SNAPSHOT, data, count=len(ids), call=op.call)
    if op.call.operation_id:
        record.answer = [op.call.take, 12, list(result)]
    return Decision(result, [*records, record])


def replay_drain(state: State, ns: Namespace | None, content: Any) -> Result:
    """Only refusals are kept as answers: a page is kept by its bundle."""
    raise LookupError("no drained page is an answer")


def replay_restore(state: State, ns: Namespace | None, content: list[Any]) -> Restored:
    """The first answer again."""
    restored, present = content
    return Restored(restored, present)


def _open_bundles(ns: Namespace) -> int:
    return sum(1 for bundle in ns.bundles.values() if bundle.page)


def _wrong_drain(op: Drain) -> Refusal | None:
    if not op.call.peer:
        return invalid("say which peer this is", "peer_id")
    if not is_name(op.bundle_id):
        return invalid(f"a bundle id is a name of 1 to {limits.MAX_NAME} characters", "bundle_id")
    if not is_count(op.page, limits.MAX_TIME_MS):
        return invalid("pages are numbered from 0", "page")
    if not is_count(op.limit, limits.MAX_ITEMS_PER_OP):
        return invalid(f"a page has at most {limits.MAX_ITEMS_PER_OP} items", "limit")
    if not is_count(op.max_bytes, limits.MAX_OP_BYTES // 2, least=1):
        return invalid(f"a page has 1 to {limits.MAX_OP_BYTES // 2} bytes", "max_bytes")
    if type(op.include_active) is not bool:
        return invalid("true or false", "include_active")
    return None


def _next_out(ns: Namespace, op: Drain) -> list[int]:
    """Pending in the queue's order, then delayed by ticket, then, if asked, active by fence."""
    ids = ns.ready.first(op.limit)
    if len(ids) < op.limit:
        ids += islice(ns.delayed, op.limit - len(ids))
    if op.include_active and len(ids) < op.limit:
        active = nsmallest(op.limit - len(ids), ((lease[0], i) for i, lease in ns.leases.items()))
        ids += [i for _, i in active]
    return ns.within(ids, op.max_bytes) if ids else ids


def _absent(state: State, ns: Namespace, page: Page) -> list[int] | Refusal:
    """The places of the items that are not here; a refusal if an id is taken by something else."""
    absent = []
    named: dict[str, None] = {}
    # Whether ids of the page mean the same items as ids here.
    own = (page.cluster_id, page.namespace) == (state.cluster_id, ns.name)
    for place, (sequence_id, row) in enumerate(zip(page.sequence_ids, page.rows, strict=True)):
        here = ns.items.get(sequence_id)
        if here is not None:
            if here[:_GIVEN] != row[:_GIVEN]:
                message = f"item {sequence_id} of the page is another item here; restore into another namespace"
                return Refusal(Reason.CONFLICT, message, f"page.items[{place}]")
            continue
        if own and type(ns.settled.get(sequence_id, state.clock_ms)) is int:
            continue
        request_id = row[REQUEST_ID]
        if request_id:
            ended = ns.ended_requests.get(request_id, state.clock_ms)
            # Its own request id, ended because it was drained, does not stand in its way.
            if request_id in named or request_id in ns.requests or ended not in (None, -sequence_id if own else None):
                continue
            named[request_id] = None
        absent.append(place)
    return absent


def _misfit(ns: Namespace, page: Page, absent: list[int]) -> Refusal | None:
    room = ns.options.capacity - ns.live
    if absent and len(absent) > room:
        message = f"the page brings {len(absent)} items and there is room for {max(0, room)}"
        return Refusal(Reason.QUEUE_FULL, message, "page")
    for place in absent:
        size = len(page.rows[place][BODY] or b"")
        if size > ns.options.max_body_bytes:
            message = f"a body has {size} bytes; this namespace takes at most {ns.options.max_body_bytes}"
            return invalid(message, f"page.items[{place}].body")
    return None


def _attempt(page: Page, place: int) -> int:
    history = page.histories[place]
    return 1 if history is None else history.attempt
