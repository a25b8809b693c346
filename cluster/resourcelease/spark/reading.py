"""Reads a piece of a log as Arrow batches."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa

from resourcelease.spark.batch import NOT_A_RECORD, EventBatch
from resourcelease.spark.plan import Piece
from resourcelease.spark.unpack import unpack_all
from resourcelease.storage.segments import CorruptSegment, Frame, Query, SegmentFile, verify_file

__all__ = ["read_piece"]

# A batch is handed over once it has so many rows, or so many bytes of records went into it. With four times as many
# rows, what is made of the records leaves the processor's cache before it is used: all takes a tenth longer.
BATCH_ROWS = 8192
BATCH_BYTES = 8 << 20

# Every record of version 1 begins with these bytes, and then the number of its type.
_PREFIX = b"\xdc\x00\x11\x01"


def read_piece(piece: Piece, query: Query, schema: pa.Schema, *, verify: bool = False) -> Iterator[pa.RecordBatch]:
    """The events of a piece that the query selects. Raises ``CorruptSegment`` with file and offset.

    With ``verify`` the whole file is checked before the first event is given.
    """
    query = query._replace(
        first=max(query.first, piece.first), last=min(query.last, piece.last) if query.last else piece.last
    )
    if verify:
        verify_file(Path(piece.path))
    with _no_search_for_cycles(), SegmentFile(Path(piece.path)) as file:
        batch, taken = EventBatch(schema), 0
        for frame in _frames(file, piece, query):
            records, size = _records(frame, query)
            # A frame may hold an entry of any size; else its records go together.
            groups = [records] if size <= BATCH_BYTES else [[one] for one in records]
            for group in groups:
                _extend(batch, group, frame)
                taken += size // len(groups)
                if batch.rows >= BATCH_ROWS or taken >= BATCH_BYTES:
                    yield _finished(batch, query, frame)
                    batch, taken = EventBatch(schema), 0
        if batch.rows:
            yield _finished(batch, query, frame)


@contextmanager
def _no_search_for_cycles() -> Iterator[None]:
    """Records are many small lists, none of which refers to another; to look through them costs a fifth of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _frames(file: SegmentFile, piece: Piece, query: Query) -> Iterator[Frame]:
    if file.footer is not None or not piece.offset:
        yield from file.frames(query)
        return
    for frame in file.scan(piece.offset, piece.at):
        if frame.meta.span.first > query.last:
            return
        if query.may_want(frame.meta.span):
            yield frame


def _records(frame: Frame, query: Query) -> tuple[list[list[Any]], int]:
    """The records of a frame that are wanted, unpacked, and how many bytes they have."""
    try:
        if query.types:
            records, size = _records_of_types(frame, query.types)
        else:
            records, size = _all_records(frame)
            _check_order(frame, records)
        if not _wants_all(query, frame):
            records = [one for one in records if _wants(query, *one[1:4], *one[7:9])]
    except NOT_A_RECORD as error:
        raise _corrupt(frame, f"not an event record: {error}") from error
    return records, size


def _all_records(frame: Frame) -> tuple[list[list[Any]], int]:
    joined = frame.joined()
    try:
        records = unpack_all([joined], frame.meta.span.records)
    except ValueError as error:
        raise ValueError(f"there are more records or fewer than it says ({error})") from error
    return records, len(joined)


def _records_of_types(frame: Frame, mask: int) -> tuple[list[list[Any]], int]:
    encoded = [one for entry in frame.entries() for one in entry if one[:4] != _PREFIX or mask >> one[4] & 1]
    return list(map(msgpack.unpackb, encoded)), sum(map(len, encoded))


def _check_order(frame: Frame, records: list[list[Any]]) -> None:
    """The records follow each other without a gap."""
    counts = [one[3] for one in records]
    expected = list(accumulate(counts, initial=frame.meta.span.first))
    for record, number in zip(records, expected, strict=False):
        if record[2] != number:
            raise _corrupt(frame, f"event {record[2]} stands where {number} belongs")


def _wants_all(query: Query, frame: Frame) -> bool:
    """Whether the description of a frame says already that everything in it is wanted."""
    span = frame.meta.span
    in_range = query.first <= span.first and (not query.last or span.last <= query.last)
    in_time = query.from_ms <= span.least_wall_ms and (query.until_ms < 0 or span.most_wall_ms <= query.until_ms)
    in_spaces = query.namespaces is None or span.counts.keys() <= query.namespaces
    return in_range and in_time and in_spaces and not query.types


def _wants(query: Query, number: int, first: int, count: int, wall_ms: int, namespace: str) -> bool:
    if not query.within(first, first + count - 1):
        return False
    if query.namespaces is not None and namespace not in query.namespaces:
        return False
    in_time = wall_ms >= query.from_ms and (query.until_ms < 0 or wall_ms <= query.until_ms)
    return in_time and (not query.types or bool(query.types >> number & 1))


def _extend(batch: EventBatch, records: list[list[Any]], frame: Frame) -> None:
    try:
        batch.extend(records)
    except NOT_A_RECORD as error:
        raise _corrupt(frame, f"not an event record: {error}") from error


def _finished(batch: EventBatch, query: Query, frame: Frame) -> pa.RecordBatch:
    """The batch, without the events of its first and last records that are out of range."""
    try:
        return batch.finish(query.first, query.last)
    except NOT_A_RECORD as error:
        raise _corrupt(
            frame, f"this frame, or one shortly before it, holds what is no event record: {error}"
        ) from error


def _corrupt(frame: Frame, reason: str) -> CorruptSegment:
    return CorruptSegment(frame.path, frame.offset, f"the frame of event {frame.meta.span.first}: {reason}")
