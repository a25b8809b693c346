"""The stored rows at one entry of the log, to be digested and to be sent: read on threads, a little at a time."""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import islice

import msgpack

from resourcelease.consensus.members import MEMBERS_ROW
from resourcelease.node.takes import Take, laid_over
from resourcelease.storage import EntryNotHeld, JournalEntry, LmdbStore, RowsChanged

__all__ = ["Missed", "Picture", "RowsDigest", "digest_of", "take_picture"]

Row = tuple[bytes, bytes]

# Rows are read and digested so many at a time: less than a millisecond's work, and then other threads have their turn.
_ROWS_A_TURN = 128
# A digest shares the processor with the node: it works about this long at a stretch, and pauses so many times as long.
_STRETCH_S = 0.002
_PAUSES = 2
# How long to wait until the disk has what was handed to it before, and the entries of that place.
_PATIENCE_S = 5.0
_PAUSE_S = 0.01
_PIECE_BYTES = 256 * 1024
# The row in which the machine says where it stands, and the place in it.
_META, _INDEX = b"m", 2


class Missed(Exception):
    """The rows of that place are not to be had here any more."""


class RowsDigest:
    """The digest over a whole state from its rows: the one that ``Machine.digest`` gives.

    Rows that are not the machine's are passed over.
    """

    def __init__(self) -> None:
        self._whole = sha256()

    def add(self, rows: Iterable[Row]) -> None:
        """The next rows, in the order of their keys."""
        parts: list[bytes] = []
        for key, value in rows:
            if key != MEMBERS_ROW:
                parts += (len(key).to_bytes(1, "big"), key, len(value).to_bytes(8, "big"), value)
        self._whole.update(b"".join(parts))

    def hex(self) -> str:
        """The digest so far."""
        return self._whole.hexdigest()


class Picture:
    """The rows at one entry. Its iterators hold pages of the store until they end or it is closed."""

    def __init__(self, index: int, term: int, rows: Iterator[Row], kept: Iterator[Row] | None) -> None:
        self.index = index
        self.term = term
        # The last two entries that they stand for, where they are to be sent.
        self.head: Sequence[JournalEntry] = ()
        self._rows = rows
        self._kept = kept
        self._lock = threading.Lock()
        self._sent = -1
        self._piece: tuple[list[Row], bool] = ([], False)
        self._asked_at = time.monotonic()

    def left_s(self, patience_s: float) -> float:
        """How long until nobody has asked for a piece of it for so long."""
        return self._asked_at + patience_s - time.monotonic()

    def digest(self, closing: threading.Event) -> str:
        """The digest of the state, in hex. Takes long, and a small part of the processor."""
        return digest_of(self._rows, self.index, closing)

    def piece(self, number: int) -> tuple[list[Row], bool]:
        """Rows to send, and whether these are the last; the piece of before may be asked for again."""
        with self._lock:
            self._asked_at = time.monotonic()
            if self._kept is None or number not in (self._sent, self._sent + 1):
                raise Missed(f"piece {number} of the state at index {self.index} is not to be had")
            if number > self._sent:
                rows: list[Row] = []
                size = 0
                for key, value in self._kept:
                    rows.append((key, value))
                    size += len(key) + len(value)
                    if size >= _PIECE_BYTES:
                        break
                self._sent, self._piece = number, (rows, size < _PIECE_BYTES)
            return self._piece

    def close(self) -> None:
        """Lets go of the store's pages."""
        with self._lock:
            for rows in (self._rows, self._kept):
                if rows is not None:
                    # One that is being read on another thread ends by itself.
                    with suppress(ValueError):
                        rows.close()  # type: ignore[attr-defined]
            self._kept = None


def take_picture(store: LmdbStore, takes: Sequence[Take], floor: int, index: int, term: int, *, keep: bool) -> Picture:
    """The rows at an entry: those on disk, and over them what was taken since. Blocks, for some milliseconds mostly.

    Meanwhile no rows of later entries may be stored. ``floor``: rows of before that are another machine's.
    """
    until = time.monotonic() + _PATIENCE_S
    while True:
        stored, rows = store.rows_at()
        kept_at, kept = store.rows_at() if keep else (stored, None)
        if stored == kept_at >= floor:
            break
        _close(rows, kept)
        if time.monotonic() > until:
            raise Missed(f"the rows on disk stand for entry {stored}, those of entry {floor} are not there yet")
        time.sleep(_PAUSE_S)
    fresh = [take for take in takes if take.index > stored]
    picture = Picture(index, term, laid_over(rows, fresh), laid_over(kept, fresh) if kept is not None else None)
    try:
        while keep and not picture.head:
            with suppress(EntryNotHeld):
                picture.head = store.settled_entries(index - 1, index)
            if not picture.head:
                if time.monotonic() > until:
                    raise Missed(f"entry {index} is not on this disk yet")
                time.sleep(_PAUSE_S)
    except BaseException:
        picture.close()
        raise
    return picture


def _close(*iterators: Iterator[Row] | None) -> None:
    for rows in iterators:
        if rows is not None:
            rows.close()  # type: ignore[attr-defined]


def digest_of(rows: Iterator[Row], index: int, closing: threading.Event) -> str:
    """The digest over rows that stand for an entry; ``Missed`` if they stand for another one, or cannot be read on."""
    whole = RowsDigest()
    found = 0
    began = time.monotonic()
    try:
        while turn := list(islice(rows, _ROWS_A_TURN)):
            whole.add(turn)
            found = next((_index_in(value) for key, value in turn if key == _META), found)
            worked = time.monotonic() - began
            if worked > _STRETCH_S:
                if closing.wait(_PAUSES * worked):
                    raise Missed("the node stops")
                began = time.monotonic()
    except RowsChanged as error:
        raise Missed(str(error)) from error
    if found != index:
        raise Missed(f"the rows stand for entry {found}, not for {index}")
    return whole.hex()


def _index_in(value: bytes) -> int:
    try:
        return int(msgpack.unpackb(value)[_INDEX])
    except (ValueError, TypeError, LookupError):
        return 0
