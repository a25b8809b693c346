"""What callers send, as the columns that travel inside; checked here for what the machine would not say as well."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from resourcelease import v1
from resourcelease.frontdoor.refusals import refuse
from resourcelease.model.items import ItemColumns
from resourcelease.model.limits import DEFAULT_PRIORITY, MAX_ITEMS_PER_OP

__all__ = ["Handles", "Intake", "check_count", "handle_columns", "handles_of_packed", "item_columns", "items_of"]

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


class Intake(NamedTuple):
    """The items of an enqueue as its op carries them, how many they are, and whether the first is to wait."""

    packed: bytes
    size: int
    delayed: bool


def items_of(request: v1.EnqueueRequest) -> Intake:
    """The items of a request, in whichever form they came."""
    if request.HasField("packed"):
        if request.items:
            refuse("give either this or items", "packed")
        columns = columns_of_packed(request.packed)
    else:
        columns = item_columns(request.items, check_count(request.items, "items"))
    delays = columns.not_before_ms
    return Intake(columns.packed(), columns.size, bool(delays if isinstance(delays, int) else delays[0]))


def columns_of_packed(packed: v1.PackedItems) -> ItemColumns:
    """The same as ``item_columns`` of the items one by one."""
    count = packed.count
    if not 1 <= count <= MAX_ITEMS_PER_OP:
        refuse(f"must be from 1 to {MAX_ITEMS_PER_OP}, not {count}", "packed.count")

    def column(name: str, absent: Any) -> list[Any]:
        values = list(getattr(packed, name))
        if len(values) == count:
            return values
        if len(values) > 1:
            refuse(f"has {len(values)} values for {count} items", f"packed.{name}")
        return (values or [absent]) * count

    return ItemColumns(
        count,
        resource_type=_same(column("resource_types", "")),
        resource_id=column("resource_ids", ""),
        partition_key=_given(column("partition_keys", "")),
        payload_encoding=_given(column("payload_encodings", "")),
        body=_given(column("bodies", b"")),
        request_id=_given(column("request_ids", "")),
        priority=_same(column("priorities", DEFAULT_PRIORITY)),
        not_before_ms=_same(column("not_before_ms", 0)),
    )


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
    return _checked(columns, field)


def handles_of_packed(packed: v1.PackedHandles, field: str) -> Handles:
    """The same of handles that came as columns."""
    ids, attempts, fences = list(packed.sequence_ids), list(packed.attempts), list(packed.lease_ids)
    count = check_count(ids, "packed.sequence_ids")
    if len(attempts) == 1:
        attempts *= count
    for name, column in (("attempts", attempts), ("lease_ids", fences)):
        if len(column) != count:
            refuse(f"has {len(column)} values for {count} handles", f"packed.{name}")
    return _checked((ids, attempts, fences), field)


def _checked(columns: Handles, field: str) -> Handles:
    for name, column in zip(("sequence_id", "attempt", "lease_id"), columns, strict=True):
        if min(column) < 1 or max(column) > _MAX_ID:
            place = next(place for place, value in enumerate(column) if not 1 <= value <= _MAX_ID)
            refuse(f"must be as the grant gave it, not {column[place]}", f"{field.format(place)}.{name}")
    return columns
