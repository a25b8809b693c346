"""A page of a bundle: items on their way out of one cluster, and into another or back."""

from hashlib import sha256
from typing import Any, NamedTuple

import msgpack

from resourcelease.machine.checks import is_count, is_name, is_text_map, items_wrong
from resourcelease.machine.state import History, Namespace
from resourcelease.model import limits
from resourcelease.model.items import ItemColumns
from resourcelease.model.limits import MAX_DELAY_MS, MAX_LIFT, MAX_TEXT, MAX_TIME_MS

__all__ = ["Page", "read_page", "write_page"]

VERSION = 1

# How many columns of a page are the fields of ``Item`` that stay what they were: all but the lead.
_FIELDS = 9


class Page(NamedTuple):
    """The content of a page; ``rows`` are items in the order of ``model.items.Item``, without the lead."""

    cluster_id: str
    namespace: str
    bundle_id: str
    number: int
    # The highest fence ever drawn in the cluster the items come from.
    fence: int
    sequence_ids: list[int]
    rows: list[tuple[Any, ...]]
    histories: list[History | None]
    delays_ms: list[int]

    @property
    def key(self) -> str:
        """What tells this page from every other."""
        names = (self.cluster_id, self.namespace, self.bundle_id)
        return "/".join([str(self.number), *(f"{len(name)}:{name}" for name in names)])


def write_page(
    cluster_id: str, ns: Namespace, bundle_id: str, number: int, fence: int, ids: list[int], clock_ms: int
) -> bytes:
    """Packs items as they are now, with a digest over everything."""
    rows = ns.items.many(ids) if ids else ()
    columns = [list(column) for column in zip(*(row[:_FIELDS] for row in rows), strict=True)]
    columns = columns or [[] for _ in range(_FIELDS)]
    histories = [_history(ns.history.get(i)) for i in ids]
    delays = [max(0, ns.delayed[i][0] - clock_ms) if i in ns.delayed else 0 for i in ids]
    body = msgpack.packb((VERSION, cluster_id, ns.name, bundle_id, number, fence, ids, columns, histories, delays))
    page: bytes = msgpack.packb((body, sha256(body).digest()))
    return page


def read_page(page: object) -> Page | str:
    """The content of a page, checked in every part; or what is wrong with it."""
    if type(page) is not bytes or len(page) > 2 * limits.MAX_OP_BYTES:
        return "not a page"
    try:
        body, digest = msgpack.unpackb(page)
        if sha256(body).digest() != digest:
            return "the page is damaged: its digest does not match"
        version, *head = msgpack.unpackb(body)
        if not is_count(version, VERSION, least=VERSION):
            return f"a page of another version than {VERSION}, which this release reads"
        cluster_id, namespace, bundle_id, number, fence, ids, columns, histories, delays = head
        if not (is_name(cluster_id) and is_name(namespace) and is_name(bundle_id) and is_count(number, MAX_TIME_MS)):
            return "the page names no bundle"
        if not is_count(fence, MAX_LIFT) or not _ids_fit(ids):
            return "ids or fences are not in order"
        if len(columns) != _FIELDS or not all(type(column) is list for column in (*columns, histories, delays)):
            return "columns are not in order"
        items = ItemColumns._make((len(ids), *columns[:8], delays))
        wrong = items_wrong(items, limits.MAX_OP_BYTES) if ids else {}
        if wrong:
            return next(iter(wrong.values())).message
        enqueued = columns[8]
        if len(enqueued) != len(ids) or not all(is_count(at, MAX_TIME_MS) for at in enqueued):
            return "times of enqueue are not in order"
        lived = [None if history is None else _lived(history, fence) for history in histories]
        if not (len(lived) == len(delays) == len(ids)) or not all(is_count(delay, MAX_DELAY_MS) for delay in delays):
            return "histories or delays are not in order"
        rows = list(zip(*columns, strict=True))
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        return f"not a page: {error}"
    return Page(cluster_id, namespace, bundle_id, number, fence, ids, rows, lived, delays)


def _ids_fit(ids: Any) -> bool:
    if type(ids) is not list or len(ids) > limits.MAX_ITEMS_PER_OP:
        return False
    return all(is_count(i, MAX_LIFT, least=1) for i in ids) and len(dict.fromkeys(ids)) == len(ids)


def _history(history: History | None) -> list[Any] | None:
    """A history as it leaves: the place in line and the waiting for a peer stay behind."""
    return None if history is None else history.packed()[:5]


def _lived(packed: Any, highest_fence: int) -> History:
    """The history again; ValueError if it is none."""
    attempt, budget_from, last, error, redrives = packed
    fits = is_count(attempt, MAX_TIME_MS, least=1) and is_count(budget_from, attempt, least=1)
    if last is not None:
        tried, fence, peer, outcome = last
        fits = fits and is_count(tried, attempt, least=1) and is_count(fence, highest_fence)
        fits = fits and type(peer) is str and len(peer) <= limits.MAX_NAME and is_name(outcome)
    if error is not None:
        code, message, metadata = error
        fits = fits and is_name(code) and type(message) is str and len(message) <= MAX_TEXT and is_text_map(metadata)
    if not fits or not is_count(redrives, MAX_TIME_MS):
        raise ValueError("a history is not in order")
    return History.unpacked([*packed, 0, ""])
