"""The lists of a request, in either of the two forms that they travel in: a message an entry, or columns.

Columns cost both sides much less, and go only to nodes that have said they read them.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from resourcelease import v1
from resourcelease.client.items import NewItem

__all__ = ["WORTH_PACKING", "Handles", "Items", "List"]

# Of fewer entries columns cost more than messages.
WORTH_PACKING = 4


class List(Protocol):
    """A list, each form of which is a part of the request, encoded: it is put behind the rest of it."""

    def __len__(self) -> int:
        """How many entries."""
        ...

    def spelled(self) -> bytes:
        """A message an entry."""
        ...

    def packed(self) -> bytes:
        """Columns; the other form for what cannot travel so."""
        ...


class Items:
    """The items of an enqueue."""

    def __init__(self, items: Sequence[NewItem]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def spelled(self) -> bytes:
        """As ``EnqueueRequest.items``."""
        return v1.EnqueueRequest(items=[item.message() for item in self._items]).SerializeToString()

    def packed(self) -> bytes:
        """As ``EnqueueRequest.packed``."""
        columns = list(zip(*self._items, strict=True))
        types, ids, bodies, priorities, delays, requests, keys, encodings, attributes = columns
        if any(attributes) or 0 < priorities.count(None) < len(priorities):
            return self.spelled()
        packed = v1.PackedItems(
            count=len(ids),
            resource_types=_one_or_all(types),
            resource_ids=ids,
            bodies=_some(bodies),
            priorities=[] if None in priorities else _one_or_all(priorities),
            not_before_ms=_some(delays),
            request_ids=_some(requests),
            partition_keys=_some(keys),
            payload_encodings=_some(encodings),
        )
        return v1.EnqueueRequest(packed=packed).SerializeToString()


class Handles:
    """The handles of leases that are done: sequence id, attempt and fence of each."""

    def __init__(self, handles: Sequence[tuple[int, int, int]]) -> None:
        self._handles = handles

    def __len__(self) -> int:
        return len(self._handles)

    def spelled(self) -> bytes:
        """As ``CompleteRequest.entries``."""
        entries = [
            v1.CompleteEntry(handle=v1.Handle(sequence_id=sequence_id, attempt=attempt, lease_id=fence))
            for sequence_id, attempt, fence in self._handles
        ]
        return v1.CompleteRequest(entries=entries).SerializeToString()

    def packed(self) -> bytes:
        """As ``CompleteRequest.packed``."""
        ids, attempts, fences = zip(*self._handles, strict=True)
        packed = v1.PackedHandles(sequence_ids=ids, attempts=_one_or_all(attempts), lease_ids=fences)
        return v1.CompleteRequest(packed=packed).SerializeToString()


def _one_or_all(column: Sequence[Any]) -> Sequence[Any]:
    return column[:1] if column.count(column[0]) == len(column) else column


def _some(column: Sequence[Any]) -> Sequence[Any]:
    """The column; nothing if all of it is empty."""
    return _one_or_all(column) if any(column) else []
