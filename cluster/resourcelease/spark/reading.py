"""Reads a piece of a log as Arrow batches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import pyarrow as pa

from resourcelease.spark.batch import NOT_A_RECORD, EventBatch
from resourcelease.spark.plan import Piece
from resourcelease.storage.segments import CorruptSegment, Frame, Query, SegmentFile, verify_file

__all__ = ["read_piece"]

# A batch is handed over once it has so many rows, or so many bytes of records went into it.
BATCH_ROWS = 16_384
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
    with SegmentFile(Path(piece.path)) as file:
        batch, taken = EventBatch(schema), 0
        for frame in _frames(file, piece, query):
            for fields, size in _records(frame, query):
                _add(batch, fields, frame)
                taken += size
                if batch.rows >= BATCH_ROWS or taken >= BATCH_BYTES:
                    yield _finished(batch, query, frame)
                    batch, taken = EventBatch(schema), 0
        if batch.rows:
            yield _finished(batch, query, frame)


def _frames(file: SegmentFile, piece: Piece, query: Query) -> Iterator[Frame]:
    if file.footer is not None or not piece.offset:
        yield from file.frames(query)
        return
    for frame in file.scan(piece.offset, piece.at):
        if frame.meta.span.first > query.last:
            return
        if query.may_want(frame.meta.span):
            yield frame


def _records(frame: Frame, query: Query) -> Iterator[tuple[list[Any], int]]:
    """The records of a frame that are wanted, unpacked, each with its length."""
    expected, unpack = frame.meta.span.first, msgpack.unpackb
    for entry in frame.entries():
        for encoded in entry:
            if query.types and encoded[:4] == _PREFIX and not query.types >> encoded[4] & 1:
                continue
            try:
                fields = unpack(encoded)
                number, first, count = fields[1:4]
                wall_ms, namespace = fields[7:9]
                if not query.types and first != expected:
                    raise _corrupt(frame, f"event {first} stands where {expected} belongs")
                expected += count
                wanted = _wants(query, number, first, count, wall_ms, namespace)
            except NOT_A_RECORD as error:
                raise _corrupt(frame, f"not an event record: {error}") from error
            if wanted:
                yield fields, len(encoded)


def _wants(query: Query, number: int, first: int, count: int, wall_ms: int, namespace: str) -> bool:
    if not query.within(first, first + count - 1):
        return False
    if query.namespaces is not None and namespace not in query.namespaces:
        return False
    in_time = wall_ms >= query.from_ms and (query.until_ms < 0 or wall_ms <= query.until_ms)
    return in_time and (not query.types or bool(query.types >> number & 1))


def _add(batch: EventBatch, fields: list[Any], frame: Frame) -> None:
    try:
        batch.add(fields)
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
