"""What callers send, as the columns that travel inside; checked here for what the machine would not say as well."""

from collections.abc import Sequence
from typing import Any, TypeVar

from resourcelease import v1
from resourcelease.frontdoor.refusals import refuse
from resourcelease.model.items import ItemColumns
from resourcelease.model.limits import DEFAULT_PRIORITY, MAX_ITEMS_PER_OP

__all__ = ["Handles", "check_count", "handle_columns", "item_columns", "packed_items"]

Handles = tuple[list[int], list[int], list[int]]
_T = TypeVar("_T")
# No id or fence was ever drawn as high as that.
_MAX_ID = 1 << 62


def check_count(entries: Sequence[Any], field: str) -> int:
    """A list has 1 to MAX_ITEMS_PER_OP entries; how many."""
    count = len(entries)
    if not 1 <= count <= MAX_ITEMS_PER_OP:
        refuse(f"has {count} entries; from 1 to {MAX_ITEMS_PER_OP} are allowed", field)
    return count


def packed_items(items: Sequence[v1.ItemPayload]) -> bytes:
    """The items of an enqueue, as its op carries them."""
    count = check_count(items, "items")
    return item_columns(items, count).packed()


def item_columns(items: Sequence[v1.ItemPayload], count: int) -> ItemColumns:
    """One column a field; a column that nobody filled in, or that is one value throughout, is not spelled out."""
    attributes = [item.attributes for item in items]
    return ItemColumns(
        count,
        resource_type=_same([item.resource_type for item in items]),
        resource_id=[item.resource_id for item in items],
        partition_key=_given([item.partition_key for item in items]),
        payload_encoding=_given([item.payload_encoding for item in items]),
        attributes=[dict(each) or None for each in attributes] if any(attributes) else None,
        body=_given([item.body for item in items]),
        request_id=_given([item.request_id for item in items]),
        priority=_same([item.priority or _priority(item) for item in items]),
        not_before_ms=_same([item.not_before_ms for item in items]),
    )


def _priority(item: v1.ItemPayload) -> int:
    return 0 if item.HasField("priority") else DEFAULT_PRIORITY


def _same(column: list[_T]) -> _T | list[_T]:
    return column[0] if column.count(column[0]) == len(column) else column


def _given(column: list[_T]) -> list[_T | None] | None:
    """The column with None for what is empty; None if all of it is."""
    if all(column):
        return column  # type: ignore[return-value]
    return [value or None for value in column] if any(column) else None


def handle_columns(handles: Sequence[v1.Handle], field: str) -> Handles:
    """The handles of a call in three columns; ``field`` is their path, with {} for the place."""
    columns = (
        [handle.sequence_id for handle in handles],
        [handle.attempt for handle in handles],
        [handle.lease_id for handle in handles],
    )
    for name, column in zip(("sequence_id", "attempt", "lease_id"), columns, strict=True):
        if min(column) < 1 or max(column) > _MAX_ID:
            place = next(place for place, value in enumerate(column) if not 1 <= value <= _MAX_ID)
            refuse(f"must be as the grant gave it, not {column[place]}", f"{field.format(place)}.{name}")
    return columns
