"""Spark's filters as a query of the log: what can be left unread is left unread."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from resourcelease.model.eventdata import EventType
from resourcelease.storage.segments import Query

__all__ = ["NOTHING", "narrowed", "type_mask"]

# A query that no event meets: sequence numbers end long before.
_NEVER = 1 << 62
NOTHING = Query(first=_NEVER)

_NEVER_NULL = ("sequence_number", "type", "namespace", "occurred_at", "lease_clock", "peer_id", "principal")


def narrowed(query: Query, one: Any) -> Query | None:
    """The query with one of Spark's filters in it, met to the row; None if it is of a kind that is left to Spark.

    Filters are told by the names of their classes, which older releases of PySpark do not have.
    """
    kind = type(one).__name__
    path: tuple[str, ...] = getattr(one, "attribute", ())
    if kind == "IsNotNull":
        return query if path[0] in _NEVER_NULL else None
    if len(path) != 1 or kind not in _VALUES:
        return None
    values = one.value if kind == "In" else (one.value,)
    if any(value is None for value in values):
        return None
    name = path[0]
    if name in ("type", "namespace"):
        return _named(query, name, kind, values)
    if name == "sequence_number":
        return _between(query, kind, [int(value) for value in values])
    if name == "occurred_at" and all(isinstance(value, datetime) for value in values):
        return _timed(query, kind, [_milliseconds(value) for value in values])
    return None


_EQUAL = ("EqualTo", "EqualNullSafe", "In")
_VALUES = (*_EQUAL, "GreaterThan", "GreaterThanOrEqual", "LessThan", "LessThanOrEqual")


def type_mask(names: Sequence[str]) -> int:
    """Types as a mask, bit n for type n; a name that is none is not in it.

    >>> type_mask(["ENQUEUE", "COMPLETED", "LATER"])
    18
    """
    return sum(1 << EventType[name] for name in dict.fromkeys(names) if name in EventType.__members__)


def _named(query: Query, name: str, kind: str, values: Sequence[str]) -> Query | None:
    if kind not in _EQUAL:
        return None
    if name == "namespace":
        wanted = frozenset(values)
        return query._replace(namespaces=wanted if query.namespaces is None else wanted & query.namespaces)
    mask = type_mask(values) & (query.types or -1)
    return query._replace(types=mask) if mask else NOTHING


def _between(query: Query, kind: str, values: Sequence[int]) -> Query | None:
    least, most = _bounds(kind, values)
    if len(set(values)) > 1:
        return None
    first = max(query.first, least or 0)
    last = min(query.last or _NEVER - 1, _NEVER - 1 if most is None else most)
    if first > last or last < 1:
        return NOTHING
    return query._replace(first=first, last=0 if last == _NEVER - 1 else last)


def _timed(query: Query, kind: str, values: Sequence[tuple[int, int]]) -> Query | None:
    """Events have whole milliseconds, and Spark's times may lie between two: ``values`` has both sides."""
    if len(set(values)) > 1:
        return None
    below, above = values[0]
    exact = below == above
    if kind in _EQUAL and not exact:
        return NOTHING
    limit = above if kind == "GreaterThanOrEqual" or (kind == "LessThan" and not exact) else below
    least, most = _bounds(kind, [limit])
    from_ms = max(query.from_ms, least or 0)
    until_ms = query.until_ms
    if most is not None:
        until_ms = most if until_ms < 0 else min(until_ms, most)
        if until_ms < from_ms or most < 0:
            return NOTHING
    return query._replace(from_ms=from_ms, until_ms=until_ms)


def _bounds(kind: str, values: Sequence[int]) -> tuple[int | None, int | None]:
    """The least and the most, both included, that whole numbers may be."""
    value = values[0]
    match kind:
        case "GreaterThan":
            return value + 1, None
        case "GreaterThanOrEqual":
            return value, None
        case "LessThan":
            return None, value - 1
        case "LessThanOrEqual":
            return None, value
    return value, value


def _milliseconds(at: datetime) -> tuple[int, int]:
    """The last whole millisecond not after a time, and the first not before it."""
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    since = zoned - datetime(1970, 1, 1, tzinfo=UTC)
    microseconds = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return microseconds // 1000, -(-microseconds // 1000)
