"""The options of a load, from Spark's words."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from resourcelease.model.eventdata import EventType
from resourcelease.spark.filters import type_mask
from resourcelease.storage.segments import Query

__all__ = ["LoadOptions"]

_KNOWN = (
    "path", "paths", "columns", "fromSequence", "toSequence", "types", "namespaces", "fromTime", "toTime",
    "verify", "maxEventsPerTrigger",
)  # fmt: skip


class LoadOptions(NamedTuple):
    """What was asked for.

    >>> LoadOptions.of({"path": "/var/lib/n1", "fromSequence": "10", "types": "ENQUEUE"}).query.types
    2
    """

    paths: tuple[str, ...]
    # Names of columns; none: all.
    columns: tuple[str, ...]
    # Both included; 0: from what is kept, and to what is there.
    first: int
    last: int
    # Types, namespaces and times.
    query: Query
    verify: bool
    # How many events a micro-batch takes at most; 0: all that are there.
    per_trigger: int

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "LoadOptions":
        """Reads and checks them; ValueError says which is wrong."""
        known = {name.lower(): name for name in _KNOWN}
        words: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() not in known:
                raise ValueError(f"there is no option {name}; there are {', '.join(_KNOWN[2:])}")
            words[known[name.lower()]] = str(value)
        types = [name.upper() for name in _listed(words.get("types", ""))]
        for name in types:
            if name not in EventType.__members__:
                raise ValueError(f"types: there is no type {name}; there are {', '.join(EventType.__members__)}")
        namespaces = _listed(words.get("namespaces", ""))
        query = Query(
            types=type_mask(types),
            namespaces=frozenset(namespaces) if namespaces else None,
            from_ms=_time(words, "fromTime", 0),
            until_ms=_time(words, "toTime", -1),
        )
        first, last = _number(words, "fromSequence"), _number(words, "toSequence")
        if last and first > last:
            raise ValueError(f"fromSequence {first} lies behind toSequence {last}")
        columns = tuple(_listed(words.get("columns", "")))
        per_trigger = _number(words, "maxEventsPerTrigger")
        return cls(_paths(words), columns, first, last, query, _truth(words, "verify"), per_trigger)


def _paths(words: Mapping[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    if "paths" in words:
        text = words["paths"]
        found += json.loads(text) if text.lstrip().startswith("[") else _listed(text)
    if "path" in words:
        found.append(words["path"])
    if not found:
        raise ValueError("no path is given: load(path) takes the directory of a node, or several")
    return tuple(found)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(words: Mapping[str, str], name: str) -> int:
    text = words.get(name, "0").strip()
    if not text.isdecimal() or len(text) > 18:
        raise ValueError(f"{name} is {text!r}, and must be a whole number")
    return int(text)


def _truth(words: Mapping[str, str], name: str) -> bool:
    text = words.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} is {text!r}, and must be true or false")
    return text == "true"


def _time(words: Mapping[str, str], name: str, default: int) -> int:
    """Milliseconds since 1970 of an ISO time; without a zone it is UTC."""
    if name not in words:
        return default
    try:
        at = datetime.fromisoformat(words[name])
    except ValueError:
        raise ValueError(f"{name} is {words[name]!r}, and must look like 2026-01-31T12:00:00+00:00") from None
    zoned = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(0, int(zoned.timestamp() * 1000))
