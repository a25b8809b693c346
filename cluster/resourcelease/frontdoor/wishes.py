"""What a subscriber asked for, and the bytes of events that many ask for."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

from resourcelease import v1
from resourcelease.frontdoor.eventbytes import encoded
from resourcelease.model.eventdata import EventType, ItemsData
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns
from resourcelease.storage.segments import Query

__all__ = ["Filter", "Spelled", "Unshared"]

# Events, by the size of their bytes, that are kept for the next subscriber.
_SPELLED_BYTES_MAX = 16 << 20


class Filter:
    """The wishes of a subscriber; joined by "and", the entries of one by "or"."""

    def __init__(self, request: v1.SubscribeRequest) -> None:
        self._namespaces = frozenset(request.namespaces)
        self._types = frozenset(int(each) for each in request.types)
        self._resource_types = frozenset(request.resource_types)
        self._from = request.from_sequence
        self._to = request.to_sequence
        self._bodies = request.include_bodies

    def query(self, first: int, last: int) -> Query:
        """What of the files may hold something of a stretch."""
        types = [EventType(number) for number in self._types if number in _KNOWN]
        if self._types and not types:
            # Only types of later releases: nothing here is of them.
            return Query.of(first=first, last=last, namespaces=())
        return Query.of(first=first, last=last, types=types, namespaces=self._namespaces or None)

    def until(self, last: int) -> int:
        """The earlier of an event and the last that is wanted."""
        return min(last, self._to) if self._to else last

    def wants_of(self, record: Record) -> bool:
        """Whether any event of a record may be wanted; told from its head alone."""
        if self._namespaces and record.namespace not in self._namespaces:
            return False
        return not self._types or int(record.type) in self._types

    def selected(self, record: Record, position: int, spelled: "Spelled") -> Iterator[tuple[int, bytes | None]]:
        """Each event of the record from a position on: its number, and its bytes if it is wanted."""
        types = self._types_of(record)
        for place, told in enumerate(spelled.of(record, with_bodies=self._bodies)):
            number = record.sequence + place
            if number < position:
                continue
            if self._to and number > self._to:
                return
            yield number, told if types is None or types[place] in self._resource_types else None

    def _types_of(self, record: Record) -> Sequence[str] | None:
        """The resource type of each event, if the subscriber asked for some and the events carry items."""
        if not self._resource_types or not isinstance(record.data, ItemsData):
            return None
        column: Any = ItemColumns.unpacked(record.data.columns).resource_type
        return column if type(column) is list else [column] * record.count


_KNOWN = frozenset(map(int, EventType))


class Spelled:
    """The bytes of the newest records' events: made once for all who follow."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[int, bool], tuple[int, Sequence[bytes]]] = OrderedDict()
        self._bytes = 0

    def of(self, record: Record, *, with_bodies: bool) -> Sequence[bytes]:
        """Every event of a record."""
        key = (record.sequence, with_bodies)
        found = self._known.get(key)
        if found is None:
            told = encoded(record, with_bodies=with_bodies)
            found = self._known[key] = (sum(map(len, told)), told)
            self._bytes += found[0]
            while self._bytes > _SPELLED_BYTES_MAX:
                self._bytes -= self._known.popitem(last=False)[1][0]
        return found[1]


class Unshared(Spelled):
    """The same for who reads old history, which nobody else reads at the same time."""

    def of(self, record: Record, *, with_bodies: bool) -> Sequence[bytes]:
        """Every event of a record."""
        return encoded(record, with_bodies=with_bodies)
