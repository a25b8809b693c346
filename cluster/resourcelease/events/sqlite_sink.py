"""The history in a SQLite file: one row an event, for whoever speaks SQL."""

import errno
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resourcelease import v1
from resourcelease.events.sink import Checkpoint, Mark, WrongSource, check_writer, fresh

__all__ = ["SqliteSink"]

_VERSION = 1
_SCHEMA = """
CREATE TABLE checkpoint (
    one INTEGER PRIMARY KEY CHECK (one = 1), version INTEGER NOT NULL, cluster_id TEXT NOT NULL,
    position INTEGER NOT NULL, fence INTEGER NOT NULL
);
CREATE TABLE events (
    sequence_number INTEGER PRIMARY KEY, type TEXT NOT NULL, occurred_at INTEGER NOT NULL, lease_clock INTEGER NOT NULL,
    raft_index INTEGER NOT NULL, raft_term INTEGER NOT NULL, namespace TEXT NOT NULL, shard_id TEXT NOT NULL,
    item_id INTEGER, attempt INTEGER, fence INTEGER, peer_id TEXT NOT NULL, principal TEXT NOT NULL,
    pending INTEGER NOT NULL, active INTEGER NOT NULL, resource_type TEXT, resource_id TEXT, body BLOB,
    error_code TEXT, error_message TEXT, metadata TEXT NOT NULL
);
CREATE INDEX events_of_item ON events (namespace, item_id);
CREATE INDEX events_of_resource ON events (resource_type, resource_id);
"""
_INSERT = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_STANDS = "SELECT position, fence, fence = 0 AND NOT EXISTS (SELECT 1 FROM events) FROM checkpoint"
# The path leads nowhere, or to what may not be written.
_NO_PLACE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM)


class SqliteSink:
    """Events and checkpoint in one transaction.

    ``SELECT type, count(*) FROM events GROUP BY type`` and the like work at any time, also while it is written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = None
        self._start = 1

    def open(self, cluster_id: str, start: int) -> Checkpoint:
        """Where to go on; makes the file if there is none."""
        self.close()
        self._start = start
        try:
            db = self._db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = FULL")
            tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            if tables and "checkpoint" not in tables:
                raise WrongSource(f"{self.path} is a database of something else: name a file of its own")
            if not tables:
                db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
            # Fails where nobody may write, also if there is nothing to be done.
            db.execute("INSERT OR IGNORE INTO checkpoint VALUES (1, ?, ?, 0, 0)", (_VERSION, cluster_id))
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF in _NO_PLACE:
                raise PermissionError(errno.EACCES, str(error), str(self.path)) from error
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise WrongSource(f"{self.path} is no SQLite database: {error}") from error
        return self._read(cluster_id)

    def apply(self, events: Sequence[v1.Event], fence: int) -> Checkpoint:
        """Keeps a batch; it is there whole, with its checkpoint, or not at all."""
        db = self._db
        assert db is not None, "open it first"
        db.execute("BEGIN IMMEDIATE")
        try:
            # What is in the file counts, whoever wrote it.
            position, stood = self._stands(db)
            check_writer(Checkpoint(position, stood), fence)
            new = fresh(events, position)
            db.executemany(_INSERT, map(_row, new))
            position = new[-1].sequence_number if new else position
            db.execute("UPDATE checkpoint SET position = ?, fence = ?", (position, fence))
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        return Checkpoint(position, fence)

    def close(self) -> None:
        """Lets go of the file."""
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _read(self, cluster_id: str) -> Checkpoint:
        assert self._db is not None
        version, theirs = self._db.execute("SELECT version, cluster_id FROM checkpoint").fetchone()
        if version > _VERSION:
            raise WrongSource(f"{self.path} was written by a newer release, in version {version}; this one knows 1")
        if theirs != cluster_id:
            raise WrongSource(f"{self.path} holds the history of cluster {theirs}, not of {cluster_id}")
        position, fence = self._stands(self._db)
        query = "SELECT raft_index, raft_term, occurred_at FROM events WHERE sequence_number = ?"
        last = self._db.execute(query, (position,)).fetchone()
        return Checkpoint(position, fence, Mark(*last) if last else None)

    def _stands(self, db: sqlite3.Connection) -> tuple[int, int]:
        position, fence, untouched = db.execute(_STANDS).fetchone()
        # Nothing was ever copied: what whoever copies says counts, and not what somebody said who only looked.
        return (self._start - 1 if untouched else position), fence


def _row(event: v1.Event) -> tuple[Any, ...]:
    handle = event.handle if event.HasField("handle") else None
    payload = event.payload if event.HasField("payload") else None
    error = event.error if event.HasField("error") else None
    return (
        event.sequence_number,
        type_name(event.type),
        event.occurred_at,
        event.lease_clock,
        event.raft_index,
        event.raft_term,
        event.namespace,
        event.shard_id,
        handle.sequence_id if handle else None,
        handle.attempt if handle else None,
        (handle.lease_id or None) if handle else None,
        event.peer_id,
        event.principal,
        event.queue.pending,
        event.queue.active,
        payload.resource_type if payload else None,
        payload.resource_id if payload else None,
        payload.body if payload and payload.body else None,
        error.code if error else None,
        error.message if error else None,
        json.dumps(dict(event.metadata), ensure_ascii=False, sort_keys=True),
    )


def type_name(number: int) -> str:
    """The type of an event in words; a number, for one of a later release.

    >>> type_name(4), type_name(99)
    ('COMPLETED', '99')
    """
    if number in v1.EventType.values():
        return v1.EventType.Name(number).removeprefix("EVENT_TYPE_")  # type: ignore[arg-type]
    return str(number)
