"""The log ahead of LMDB: what was just acknowledged, in a file that one append and one flush make durable.

A commit of LMDB writes a path of pages, flushes, writes the page that makes them count, and flushes again. For the few
hundred bytes of a lone proposal that is several times the work of an append. So small batches are appended here first,
acknowledged, and settle in LMDB later, many in one transaction, which also notes how far it has come. What had not
settled is read back from here when the store is opened.

Two files take turns: one is written from its beginning again once all it holds has settled. ``docs/storage.md`` has the
format.
"""

import os
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import msgpack

from resourcelease.storage.api import JournalEntry, WriteBatch
from resourcelease.storage.environment import is_disk_full
from resourcelease.storage.errors import CorruptStore
from resourcelease.storage.layout import fsync_directory
from resourcelease.storage.points import reach

__all__ = ["Ahead", "AheadFull", "Numbered", "unsettled"]

_FILE_MAGIC = b"rlahead\x01"
_SALT_BYTES = 16
# Magic, salt, CRC of both; stands twice, so that a single damaged byte does not hide a file's content.
_HEADER = struct.Struct(f"<8s{_SALT_BYTES}sI")
_RECORDS_AT = 2 * _HEADER.size
_RECORD_MAGIC = b"\xa7rlr"
# Magic, bytes of the payload, number of the first batch, how many batches, CRC of the salt, these four and the payload.
_RECORD = struct.Struct("<4sIQII")
_NAMES = ("0", "1")


class AheadFull(Exception):
    """The disk took no more; nothing of the append counts."""


class Numbered(NamedTuple):
    """A batch and its number in the log ahead."""

    number: int
    batch: WriteBatch


class _File:
    """One of the two, open for appending."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        # The number of the last batch in it.
        self.last = 0
        self.end = 0
        self.salt = b""
        if os.fstat(self.fd).st_size < size:
            # Space that is there already cannot run out. And only what was written before can be written again without
            # a change to the file system's own records, whose flush would wait for everybody else's.
            _write_all(self.fd, bytes(size), 0)
            os.fsync(self.fd)


class Ahead:
    """Appends batches, numbered from 1 over the life of the store; not for several threads at once.

    ``settled`` tells up to which number LMDB holds everything; what the files hold beyond that was read before.
    """

    def __init__(self, directory: Path, size: int, settled: Callable[[], int], *, sync: bool = True) -> None:
        directory.mkdir(exist_ok=True)
        self._size = size
        self._sync = sync
        self._files = [_File(directory / name, size) for name in _NAMES]
        fsync_directory(directory)
        fsync_directory(directory.parent)
        self._active = self._files[0]
        self._active.end = size
        self._settled = settled
        self.number = settled()

    def pack(self, batches: Sequence[WriteBatch]) -> bytes:
        """What ``append`` takes."""
        packed: bytes = msgpack.packb([_columns(batch) for batch in batches])
        return packed

    def has_room(self, size: int) -> bool:
        """Whether a payload of so many bytes can be appended now."""
        needed = _RECORD.size + size
        if self._active.end + needed <= self._size:
            return True
        return self._other.last <= self._settled() and _RECORDS_AT + needed <= self._size

    @property
    def filling(self) -> bool:
        """Whether what is here should settle soon, so that there is room when it is needed."""
        return self._other.last > self._settled()

    @property
    def settled(self) -> bool:
        """Whether LMDB holds all that is here."""
        return self.number <= self._settled()

    @property
    def _other(self) -> _File:
        return self._files[1] if self._active is self._files[0] else self._files[0]

    def append(self, payload: bytes, count: int) -> int:
        """Makes ``count`` packed batches durable, all or none; the number of the last one."""
        start = b""
        if self._active.end + _RECORD.size + len(payload) > self._size:
            start = self._turn_over()
        active = self._active
        header = _RECORD.pack(_RECORD_MAGIC, len(payload), self.number + 1, count, 0)[:-4]
        crc = crc32(payload, crc32(header, crc32(active.salt)))
        record = b"".join((start, header, crc.to_bytes(4, "little"), payload))
        try:
            reach("ahead.begun")
            _write_all(active.fd, record, active.end - len(start))
        except OSError as error:
            if not is_disk_full(error):
                raise
            # What is there now is of no use; the next append begins the other file, or waits for it.
            active.end = self._size
            raise AheadFull from error
        reach("ahead.written")
        if self._sync:
            os.fdatasync(active.fd)
        reach("ahead.synced")
        active.end += len(record) - len(start)
        self.number += count
        active.last = self.number
        return self.number

    def _turn_over(self) -> bytes:
        """Goes on in the other file, from its beginning; what it begins with."""
        self._active = self._other
        self._active.salt = secrets.token_bytes(_SALT_BYTES)
        self._active.end = _RECORDS_AT
        head = _FILE_MAGIC + self._active.salt
        return 2 * (head + crc32(head).to_bytes(4, "little"))

    def close(self) -> None:
        """Lets go of the files; a second call does nothing."""
        for file in self._files:
            if file.fd >= 0:
                os.close(file.fd)
                file.fd = -1


def unsettled(directory: Path, settled: int) -> list[Numbered]:
    """The batches behind number ``settled``, in order; raises ``CorruptStore`` when one that was acknowledged is lost.

    A last record that is not whole was never acknowledged: its flush had not come back. A record that is not whole and
    has another behind it is damage.
    """
    found: list[Numbered] = []
    for path in (directory / name for name in _NAMES):
        if path.exists():
            found += [numbered for numbered in _read(path, settled) if numbered.number > settled]
    found.sort(key=lambda numbered: numbered.number)
    expected = settled
    for number, _ in found:
        expected += 1
        if number != expected:
            raise CorruptStore(directory, f"batch {expected} is missing or damaged, though batch {number} is there")
    return found


def _read(path: Path, settled: int) -> Iterator[Numbered]:
    content = path.read_bytes()
    salt = _salt(content)
    if salt is None:
        return
    at = _RECORDS_AT
    last = 0
    while (record := _record(content, at, salt)) is not None:
        first, payload, at = record
        for last, packed in enumerate(msgpack.unpackb(payload, use_list=True, strict_map_key=True), first):
            yield Numbered(last, _batch(packed))
    at = content.find(_RECORD_MAGIC, at)
    while at >= 0:
        behind = _record(content, at, salt)
        if behind is not None and behind[0] > settled:
            raise CorruptStore(path, f"batch {last + 1} is damaged; batch {behind[0]} stands whole behind it")
        at = content.find(_RECORD_MAGIC, at + 1)


def _salt(content: bytes) -> bytes | None:
    """None when the file was never begun: then nothing in it was acknowledged."""
    for at in (0, _HEADER.size):
        if len(content) >= at + _HEADER.size:
            magic, salt, crc = _HEADER.unpack_from(content, at)
            if magic == _FILE_MAGIC and crc == crc32(magic + salt):
                return bytes(salt)
    return None


def _record(content: bytes, at: int, salt: bytes) -> tuple[int, bytes, int] | None:
    """The number of the first batch, the payload, and where the next record begins; None if none is whole here."""
    if at + _RECORD.size > len(content):
        return None
    magic, size, first, _, crc = _RECORD.unpack_from(content, at)
    begin = at + _RECORD.size
    if magic != _RECORD_MAGIC or begin + size > len(content):
        return None
    payload = content[begin : begin + size]
    if crc != crc32(payload, crc32(content[at : begin - 4], crc32(salt))):
        return None
    return first, payload, begin + size


def _columns(batch: WriteBatch) -> tuple[object, ...]:
    return (
        batch.truncate_from,
        batch.appends,
        batch.vote,
        batch.row_puts,
        batch.row_deletes,
        batch.rows_index,
        batch.rows_term,
        batch.compact_through,
    )


def _batch(packed: Sequence[object]) -> WriteBatch:
    truncate_from, appends, vote, row_puts, row_deletes, rows_index, rows_term, compact_through = packed
    return WriteBatch(
        truncate_from=truncate_from,  # type: ignore[arg-type]
        appends=[JournalEntry(*entry) for entry in appends],  # type: ignore[attr-defined]
        vote=None if vote is None else (vote[0], vote[1]),  # type: ignore[index]
        row_puts=[(key, value) for key, value in row_puts],  # type: ignore[attr-defined]
        row_deletes=row_deletes,  # type: ignore[arg-type]
        rows_index=rows_index,  # type: ignore[arg-type]
        rows_term=rows_term,  # type: ignore[arg-type]
        compact_through=compact_through,  # type: ignore[arg-type]
    )


def _write_all(fd: int, data: bytes, at: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(fd, rest, at)
        rest = rest[written:]
        at += written
