"""Reads the journal and the rows in short turns, so that no reader holds up the map for long."""

from collections.abc import Iterator
from itertools import islice

from resourcelease.storage.api import JournalEntry
from resourcelease.storage.durable import COMPACTED, ROWS, meta_record
from resourcelease.storage.environment import Environment, View, ViewEnded
from resourcelease.storage.errors import CorruptStore, EntryNotHeld, RowsChanged
from resourcelease.storage.records import (
    RowsPosition,
    index_key,
    is_sound,
    unpack_entry,
    unpack_number,
    unpack_rows_position,
    unseal,
)

__all__ = ["read_entries", "read_row", "read_rows", "read_rows_at"]

# One turn takes about a millisecond.
_ROWS_A_TURN = 2048
_ENTRIES_A_TURN = 512
_BYTES_A_TURN = 1 << 20


def read_entries(env: Environment, first: int, last: int) -> Iterator[JournalEntry]:
    """The entries from ``first`` to ``last``; they may be compacted meanwhile, and then ``EntryNotHeld`` is raised."""
    while first <= last:
        turn = _entries_turn(env, first, last)
        yield from turn
        first += len(turn)


def _entries_turn(env: Environment, first: int, last: int) -> list[JournalEntry]:
    entries: list[JournalEntry] = []
    size = 0
    with env.reading() as txn:
        record = meta_record(env, txn, COMPACTED)
        if record is not None and first <= unpack_number(record):
            raise EntryNotHeld(f"entry {first} is compacted; the journal starts at {unpack_number(record) + 1}")
        cursor = txn.cursor(db=env.journal)
        found = cursor.set_range(index_key(first))
        wanted = min(_ENTRIES_A_TURN, last - first + 1) if found else 0
        expected = first
        for key, value in islice(cursor.iternext(), wanted):
            entry = unpack_entry(key, value)
            if entry is None:
                raise CorruptStore(env.data, f"journal entry {expected} does not match its checksum")
            if entry.index != expected:
                raise CorruptStore(env.data, f"journal entry {expected} is missing; the next one is {entry.index}")
            entries.append(entry)
            expected += 1
            size += len(value)
            if size >= _BYTES_A_TURN:
                break
    if not entries:
        raise EntryNotHeld(f"entry {first} is not in the journal: it ends before it")
    return entries


def read_row(env: Environment, key: bytes) -> bytes | None:
    """One row; None if it is not there, or does not match its checksum."""
    with env.reading() as txn:
        value = txn.get(key, db=env.rows)
    return unseal(value) if value is not None and is_sound(key, value) else None


def read_rows(env: Environment) -> Iterator[tuple[bytes, bytes]]:
    """All rows in key order as they are now, whatever is written while they are read.

    Should the map have to move meanwhile, the reader goes on where it was, unless rows were written since; then
    ``RowsChanged`` is raised.
    """
    return read_rows_at(env)[1]


def read_rows_at(env: Environment) -> tuple[int, Iterator[tuple[bytes, bytes]]]:
    """The same, and before it the entry that these rows stand for."""
    view, position = _fresh_view(env)
    rows = _rows_of_a_view(env, view, position.changes)
    # Up to the first yield, so that the view is closed with the iterator even if nobody ever reads from it.
    next(rows)
    return position.entry, rows


def _rows_of_a_view(env: Environment, view: View, changes: int) -> Iterator[tuple[bytes, bytes]]:
    try:
        yield b"", b""
        start: bytes | None = None
        seen = 0
        while True:
            try:
                stored, total = _rows_turn(env, view, start)
            except ViewEnded:
                view, position = _fresh_view(env)
                if position.changes != changes:
                    raise RowsChanged("the map moved while all rows were being read, and rows were written") from None
                continue
            rows = [(key, unseal(value)) for key, value in stored if is_sound(key, value)]
            if len(rows) != len(stored):
                damaged = next(key for key, value in stored if not is_sound(key, value))
                raise CorruptStore(env.data, f"the row {damaged!r} does not match its checksum")
            yield from rows
            seen += len(rows)
            if len(stored) < _ROWS_A_TURN:
                break
            # The smallest key behind the last one.
            start = stored[-1][0] + b"\0"
        if seen != total:
            raise CorruptStore(env.data, f"{seen} rows can be reached of the {total} that were stored")
    finally:
        view.close()


def _fresh_view(env: Environment) -> tuple[View, RowsPosition]:
    """A view, and where its rows stand."""
    while True:
        view = env.view()
        try:
            with env.reading(view) as txn:
                record = meta_record(env, txn, ROWS)
        except ViewEnded:
            continue
        except BaseException:
            view.close()
            raise
        return view, unpack_rows_position(record) if record is not None else RowsPosition(0, 0, 0)


def _rows_turn(env: Environment, view: View, start: bytes | None) -> tuple[list[tuple[bytes, bytes]], int]:
    """The next rows as they are stored, and how many there are in all."""
    with env.reading(view) as txn:
        cursor = txn.cursor(db=env.rows)
        found = cursor.first() if start is None else cursor.set_range(start)
        stored = list(islice(cursor.iternext(), _ROWS_A_TURN)) if found else []
        return stored, txn.stat(env.rows)["entries"]
