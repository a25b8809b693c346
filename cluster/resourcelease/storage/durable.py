"""What a store holds on disk, read back in one look and checked against itself."""

import json
from typing import TYPE_CHECKING, NamedTuple

from resourcelease.storage.api import Identity, Loaded, WriteBatch
from resourcelease.storage.environment import Environment
from resourcelease.storage.errors import CorruptStore
from resourcelease.storage.positions import Positions
from resourcelease.storage.records import (
    INDEX_KEY_BYTES,
    RowsPosition,
    Vote,
    is_sound,
    seal,
    unpack_number,
    unpack_rows_position,
    unpack_vote,
    unseal,
)

if TYPE_CHECKING:
    from lmdb import Transaction

__all__ = [
    "AHEAD",
    "COMPACTED",
    "Durable",
    "IDENTITY",
    "ROWS",
    "VOTE",
    "meta_record",
    "read_durable",
    "read_identity",
    "write_identity",
]

# The keys of the sub-database ``meta``.
IDENTITY = b"identity"
VOTE = b"vote"
ROWS = b"rows"
COMPACTED = b"compacted"
AHEAD = b"ahead"


class Durable(NamedTuple):
    """The state of a store after its last commit."""

    positions: Positions = Positions()
    vote: Vote = Vote(0, "")
    rows: RowsPosition = RowsPosition(0, 0, 0)
    # The first entry that is physically there. Compacted entries are deleted a chunk at a time, so it may be lower than
    # the first that counts; in an empty journal it is the next to come.
    first_held: int = 1
    # The last batch of the log ahead that has settled here.
    ahead: int = 0

    def after(self, batch: WriteBatch, ahead: int = 0) -> "Durable":
        """The same once ``batch``, which follows from this, is durable as well; ``ahead`` is its number, if it has one.

        What is physically there only writing it tells.
        """
        rows = self.rows
        if batch.rows_index:
            rows = RowsPosition(batch.rows_index, batch.rows_term, rows.changes)
        vote = self.vote if batch.vote is None else Vote(*batch.vote)
        return Durable(self.positions.after(batch), vote, rows, self.first_held, ahead or self.ahead)

    def with_rows(self, other: "Durable") -> "Durable":
        """The same with the rows of another, where these are newer, and with what they allowed to be compacted."""
        if other.rows.entry <= self.rows.entry:
            return self
        compacted = max(self.positions.compacted, other.positions.compacted)
        positions = self.positions._replace(compacted=compacted, rows_index=other.rows.entry)
        return self._replace(positions=positions, rows=other.rows)

    @property
    def deletion_due(self) -> bool:
        """Whether compacted entries are still there."""
        return self.first_held <= self.positions.compacted

    def loaded(self) -> Loaded:
        """The same, in the words of the interface."""
        return Loaded(
            term=self.vote.term,
            voted_for=self.vote.voted_for,
            rows_index=self.rows.entry,
            rows_term=self.rows.term,
            first_index=self.positions.compacted + 1,
            last_index=self.positions.last,
        )


def meta_record(env: Environment, txn: "Transaction[bytes]", key: bytes) -> bytes | None:
    """The payload stored under ``key``, or None when there is none."""
    value = txn.get(key, db=env.meta)
    if value is None:
        return None
    if not is_sound(key, value):
        raise CorruptStore(env.data, f"the record {key.decode()!r} does not match its checksum")
    return unseal(value)


def read_identity(env: Environment, txn: "Transaction[bytes]") -> Identity | None:
    """Whose store this is, or None when it was never finished."""
    payload = meta_record(env, txn, IDENTITY)
    if payload is None:
        return None
    stored = json.loads(payload)
    return Identity(stored["cluster_id"], stored["node_id"], stored["format_version"])


def write_identity(env: Environment, txn: "Transaction[bytes]", identity: Identity) -> None:
    """Makes the store that of ``identity``."""
    txn.put(IDENTITY, seal(IDENTITY, json.dumps(identity._asdict()).encode()), db=env.meta)


def read_durable(env: Environment, txn: "Transaction[bytes]") -> Durable:
    """All positions; raises ``CorruptStore`` when the journal's ends and its length contradict each other."""
    vote = meta_record(env, txn, VOTE)
    rows = meta_record(env, txn, ROWS)
    compacted_record = meta_record(env, txn, COMPACTED)
    ahead_record = meta_record(env, txn, AHEAD)
    term_and_vote = unpack_vote(vote) if vote is not None else Vote(0, "")
    position = unpack_rows_position(rows) if rows is not None else RowsPosition(0, 0, 0)
    compacted = unpack_number(compacted_record) if compacted_record is not None else 0
    ahead = unpack_number(ahead_record) if ahead_record is not None else 0
    held = txn.stat(env.journal)["entries"]
    if not held:
        last, first_held = compacted, compacted + 1
    else:
        first_held, last = _ends(env, txn)
        if last - first_held + 1 != held or first_held > compacted + 1:
            raise CorruptStore(
                env.data,
                f"the journal has {held} entries between {first_held} and {last}, and is compacted through {compacted}",
            )
        last = max(last, compacted)
    if not compacted <= position.entry <= last:
        raise CorruptStore(
            env.data, f"the rows stand for entry {position.entry}, the journal for {compacted + 1} to {last}"
        )
    positions = Positions(compacted, last, position.entry, term_and_vote.term)
    return Durable(positions, term_and_vote, position, first_held, ahead)


def _ends(env: Environment, txn: "Transaction[bytes]") -> tuple[int, int]:
    cursor = txn.cursor(db=env.journal)
    cursor.first()
    first = cursor.key()
    cursor.last()
    last = cursor.key()
    if len(first) != INDEX_KEY_BYTES or len(last) != INDEX_KEY_BYTES:
        raise CorruptStore(env.data, f"the journal has a key that is no index: {first.hex()} or {last.hex()}")
    return int.from_bytes(first), int.from_bytes(last)
