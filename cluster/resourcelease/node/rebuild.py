"""A node whose state is not the majority's gets that of the majority.

It keeps to the rule of every snapshot in Raft: the state that it takes over covers all that its own log has, so nothing
that it ever acknowledged is forgotten, and term and vote stay what they are. Until that state is in place the node is
deaf; it cannot vote or acknowledge on the strength of what it has lost.

1. A healthy node names an index above the end of our log, and keeps its rows there.
2. All others are asked for their digest at that index; a majority of all members must tell one, its sender among them.
3. The rows come in pieces, into a file beside the store. Read back from there, they must have that digest.
4. The old file gets a second name, and the new one takes its place, in one rename.
"""

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from resourcelease.consensus.journal import NEWBORN
from resourcelease.consensus.members import MEMBERS_ROW, unpack_members
from resourcelease.consensus.settings import Settings
from resourcelease.events import NO_ANSWER
from resourcelease.node.deaf import DeafNode
from resourcelease.node.oldlog import put_log_aside
from resourcelease.node.pictures import Missed, digest_of
from resourcelease.node.schema import NodeConfig
from resourcelease.node.statecare import DIGEST_S
from resourcelease.node.takeout import Mark, Rebuilt, clear_mark, mark_out, note_rebuilt, put_aside, rebuilds
from resourcelease.node.tls import peer_contexts
from resourcelease.storage import (
    CorruptStore,
    JournalEntry,
    LmdbStore,
    SnapshotFailed,
    StorageError,
    StoreOptions,
    WriteBatch,
)
from resourcelease.storage.intake import RowsIntake

__all__ = ["CannotRebuild", "rebuild"]

logger = logging.getLogger(__name__)

# A node that goes on to differ has something that no copy of a state mends.
_A_DAY_MAX = 3
_DAY_MS = 86_400_000
_LOOK_S = 0.5
_TELL_EVERY_S = 30.0
_PICTURE_S = 30.0
_PIECE_S = 20.0
_PIECE_BYTES_MAX = 64 << 20
# What may pass by itself: nodes that are away, a state that is not kept any more, a disk without room.
_PASSING = (*NO_ANSWER, OSError, Missed, SnapshotFailed, lmdb.Error)


class CannotRebuild(StorageError):
    """What is damaged here, or elsewhere, cannot be mended by a copy; an operator has to look."""


class _Agreed(NamedTuple):
    """What a majority says the state is."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    digest: str
    sender: str
    votes: int
    members: int


async def rebuild(
    config: NodeConfig, settings: Settings, mark: Mark, store_options: StoreOptions | None = None
) -> Rebuilt:
    """Puts a healthy majority's state in the place of this node's; waits for one as long as it takes.

    Raises ``CannotRebuild``, or another ``StorageError`` where the store cannot even be opened.
    """
    directory = config.node.dir
    _check_bound(directory)
    logger.error("node %s is out: %s. It rebuilds its state from the others", config.node.id, mark.reason)
    options = store_options or StoreOptions()
    store = await asyncio.to_thread(
        lambda: LmdbStore(
            directory, cluster_id=config.cluster.id, node_id=config.node.id, options=options, create=False
        )
    )
    try:
        members = _known_members(store, config, mark)
        if not set(members) - {config.node.id}:
            raise CannotRebuild(f"{mark.reason}; this node is the only one, so nobody else has its state")
        deaf = DeafNode(config.cluster.id, config.node.id, settings.frame_bytes_max, peer_contexts(config.tls))
        try:
            await deaf.listen(config.peers.listen, members)
            rebuilt = await _Rebuilding(config, store, deaf, mark).run()
        finally:
            await deaf.close()
    finally:
        await asyncio.to_thread(store.close)
    await asyncio.to_thread(clear_mark, directory)
    return rebuilt


def _check_bound(directory: Path) -> None:
    since_ms = time.time_ns() // 1_000_000 - _DAY_MS
    lately = [each for each in rebuilds(directory) if each.at_ms > since_ms]
    if len(lately) >= _A_DAY_MAX:
        raise CannotRebuild(
            f"this node has rebuilt its state {len(lately)} times within a day, the last time because "
            f"{lately[-1].reason}; look at its memory and its disk. Remove the node and add one with a new name and an "
            f"empty directory, or delete {directory / 'rebuilds.json'} to have it try again"
        )


def _known_members(store: LmdbStore, config: NodeConfig, mark: Mark) -> Mapping[str, str]:
    if mark.members:
        return mark.members
    row = store.row(MEMBERS_ROW)
    try:
        return unpack_members(row) if row is not None else config.founders
    except (ValueError, TypeError):
        return config.founders


class _Rebuilding:
    def __init__(self, config: NodeConfig, store: LmdbStore, deaf: DeafNode, mark: Mark) -> None:
        self._directory = config.node.dir
        self._node_id = config.node.id
        self._store = store
        self._deaf = deaf
        self._mark = mark
        self._closing = threading.Event()
        self._told_at = 0.0
        self._turn = 0

    async def run(self) -> Rebuilt:
        """Tries one node after the other until it is done."""
        while True:
            if self._deaf.turned_away.done():
                raise CannotRebuild(str(self._deaf.turned_away.result()))
            connected = self._deaf.connected
            why = "no other node can be reached yet"
            if connected:
                sender = connected[self._turn % len(connected)]
                self._turn += 1
                try:
                    return await self._from(sender)
                except CorruptStore:
                    raise
                except _PASSING as error:
                    why = f"from {sender}: {type(error).__name__}: {error}"
            self._tell(why)
            await asyncio.sleep(_LOOK_S)

    def _tell(self, why: str) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            logger.warning("node %s is out and waits for a state to take over: %s", self._node_id, why)

    async def _from(self, sender: str) -> Rebuilt:
        agreed = await self._agree(sender)
        logger.info(
            "%d of %d nodes agree on the state at index %d; it is fetched from %s",
            agreed.votes,
            agreed.members,
            agreed.index,
            sender,
        )
        intake = await asyncio.to_thread(self._store.take_in)
        try:
            term, head = await self._fetch(agreed, intake)
            # From the disk, not from the wire: this is what the node will start with.
            digest = await asyncio.to_thread(lambda: digest_of(intake.rows(), agreed.index, self._closing))
            if digest != agreed.digest:
                raise SnapshotFailed(f"the state that {sender} sent has the digest {digest}, not {agreed.digest}")
        except BaseException:
            self._closing.set()
            await asyncio.to_thread(intake.abandon)
            self._closing = threading.Event()
            raise
        return await asyncio.to_thread(self._install, agreed, intake, term, head)

    async def _agree(self, sender: str) -> _Agreed:
        above = self._store.load().last_index
        question = {"what": "state picture", "node": self._node_id, "above": above}
        said = await self._deaf.ask(sender, question, _PICTURE_S)
        place, members = int(said["index"]), sorted(str(node) for node in said["members"])
        if self._node_id not in members:
            raise CannotRebuild(f"{sender} says that this node was removed from the cluster")
        asked = [node for node in members if node in self._deaf.connected]
        told = await asyncio.gather(*(self._state_of(node, place) for node in asked))
        usual, votes = Counter(digest for digest in told if digest).most_common(1)[0] if any(told) else ("", 0)
        if votes * 2 <= len(members):
            raise Missed(f"{votes} of {len(members)} nodes tell one state at index {place}; that is no majority")
        if dict(zip(asked, told, strict=True)).get(sender) != usual:
            raise Missed(f"{sender} itself does not have the state of the majority")
        index, digest = usual.split(":")
        if int(index) <= above:
            raise Missed(f"the state at index {index} does not cover the log here, which ends at {above}")
        return _Agreed(int(index), digest, sender, votes, len(members))

    async def _state_of(self, node: str, place: int) -> str:
        asking = asyncio.ensure_future(self._deaf.ask(node, {"what": "state", "index": place}, DIGEST_S))
        try:
            while not asking.done() and node in self._deaf.connected:
                await asyncio.wait([asking], timeout=_LOOK_S)
            return str((await asking)["state"]) if asking.done() else ""
        except NO_ANSWER:
            return ""
        finally:
            asking.cancel()

    async def _fetch(self, agreed: _Agreed, intake: RowsIntake) -> tuple[int, Sequence[JournalEntry]]:
        number = 0
        while True:
            question = {"what": "state piece", "node": self._node_id, "index": agreed.index, "number": number}
            said = await self._deaf.ask(agreed.sender, question, _PIECE_S)
            await asyncio.to_thread(intake.add, _rows_in(said))
            number += 1
            if said["last"] is True:
                return _head_in(said, agreed.index)

    def _install(self, agreed: _Agreed, intake: RowsIntake, term: int, head: Sequence[JournalEntry]) -> Rebuilt:
        """On a thread."""
        store, directory = self._store, self._directory
        # Whoever dies between here and the end would else start on new rows beside the history of before.
        mark_out(directory, self._mark)
        staged = store.staged(intake, agreed.index, term)
        loaded = store.load()
        if term > loaded.term:
            # No vote was given in that term; the node had not heard of it.
            newborn = NEWBORN if loaded.voted_for.startswith(NEWBORN) else ""
            store.write(WriteBatch(vote=(term, newborn))).result()
        aside = put_aside(directory, directory / "lmdb" / "data.mdb", self._mark.reason)
        store.install(staged, head).result()
        put_log_aside(store, directory / "segments", aside)
        rebuilt = Rebuilt(
            time.time_ns() // 1_000_000,
            agreed.index,
            term,
            agreed.digest,
            agreed.sender,
            self._mark.reason,
            os.fspath(aside.relative_to(directory)),
        )
        note_rebuilt(directory, rebuilt)
        logger.warning(
            "node %s has rebuilt its state: at index %d it is that of %d of %d nodes by its digest %s, as sent by %s. "
            "What it was before is kept in %s",
            self._node_id,
            agreed.index,
            agreed.votes,
            agreed.members,
            agreed.digest[:16],
            agreed.sender,
            aside,
        )
        return rebuilt


def _rows_in(said: Mapping[str, Any]) -> list[tuple[bytes, bytes]]:
    rows = []
    size = 0
    for key, value in said["rows"]:
        if type(key) is not bytes or type(value) is not bytes or not key:
            raise TypeError("a row is two strings of bytes")
        rows.append((key, value))
        size += len(key) + len(value)
    if size > _PIECE_BYTES_MAX:
        raise ValueError(f"a piece of {size} bytes")
    return rows


def _head_in(said: Mapping[str, Any], index: int) -> tuple[int, list[JournalEntry]]:
    head = [JournalEntry(int(at), int(term), bytes(data)) for at, term, data in said["head"]]
    if [entry.index for entry in head] != [index - 1, index] or head[1].term != said["term"]:
        raise ValueError(f"the last entries are not those of index {index}")
    return head[1].term, head
