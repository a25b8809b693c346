"""Everything that touches a private name of pysyncobj 0.3.17 stands here and nowhere else.

``LibRaft`` is the library's ``SyncObj`` with its clock, randomness, journal, transport and serializer handed in. It
opens no socket, file or thread. Time stands still within a turn: whoever drives it wraps the turn in ``ambient``.
``tests/consensus/test_seams.py`` fails when a new release moves anything used here.
"""

import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Set
from operator import attrgetter
from queue import Empty
from typing import Any, Protocol, TypeVar, cast

import pysyncobj
from pysyncobj import syncobj as library
from pysyncobj.config import SERIALIZER_STATE, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.syncobj import SyncObj
from pysyncobj.transport import Transport

from resourcelease.consensus.journal import Entry, Journal
from resourcelease.consensus.settings import Settings
from resourcelease.consensus.wire import Chunk, Message

__all__ = [
    "CANDIDATE",
    "FOLLOWER",
    "LEADER",
    "LIBRARY_VERSION",
    "USED",
    "LibRaft",
    "Peer",
    "Random",
    "SnapshotPort",
    "ambient",
    "patch_library",
]

LIBRARY_VERSION = "0.3.17"
FOLLOWER, CANDIDATE, LEADER = 0, 1, 2

# The private names that ``LibRaft`` reads, sets, calls or overrides.
USED: Mapping[str, tuple[str, ...]] = {
    "attributes": (
        "_SyncObj__commandsQueue",
        "_SyncObj__connectedNodes",
        "_SyncObj__lastResponseTime",
        "_SyncObj__newAppendEntriesTime",
        "_SyncObj__noopIDx",
        "_SyncObj__otherNodes",
        "_SyncObj__raftCommitIndex",
        "_SyncObj__raftCurrentTerm",
        "_SyncObj__raftElectionDeadline",
        "_SyncObj__raftLastApplied",
        "_SyncObj__raftLeader",
        "_SyncObj__raftLog",
        "_SyncObj__raftMatchIndex",
        "_SyncObj__raftNextIndex",
        "_SyncObj__raftState",
        "_SyncObj__readonlyNodes",
        "_SyncObj__serializer",
        "_SyncObj__transport",
        "_poller",
    ),
    "methods": (
        "_SyncObj__doApplyCommand",
        "_SyncObj__onBecomeLeader",
        "_SyncObj__parseChangeClusterRequest",
        "_SyncObj__sendAppendEntries",
        "_SyncObj__setState",
        "_SyncObj__tryLogCompaction",
        "_checkCommandsToApply",
        "_onTick",
        "transferLeadership",
    ),
    "module": ("createJournal", "monotonicTime", "random"),
}


class Random(Protocol):
    """The part of ``random.Random`` that the library uses."""

    def random(self) -> float:
        """A number in [0, 1)."""


class SnapshotPort(Protocol):
    """Where the library's serializer calls go."""

    def next_chunk(self, peer: str) -> Chunk | None:
        """The next piece for a follower that needs a snapshot, or None while there is none to send."""

    def install(self) -> tuple[Entry, Entry]:
        """Loads the snapshot that has arrived; its last entry but one, and its last."""


class _Ambient(threading.local):
    # Outside of a turn there is none.
    turn: "ambient | None" = None


_ambient = _Ambient()


def _monotonic() -> float:
    turn = _ambient.turn
    if turn is None:
        return time.monotonic()
    now = turn.now
    if turn.step_s:
        turn.now = now + turn.step_s
    return now


class _Draws:
    @staticmethod
    def random() -> float:
        turn = _ambient.turn
        return random.random() if turn is None else turn.rng.random()  # noqa: S311 draws election times


class ambient:
    """Within it, the library's time is ``now`` and its randomness is ``rng``.

    Each reading moves the time by ``step_s``: unguarded, the library has loops that only the clock ends.
    """

    __slots__ = ("_before", "now", "rng", "step_s")

    def __init__(self, now: float, rng: Random, step_s: float = 0.0) -> None:
        self.now, self.rng, self.step_s = now, rng, step_s

    def __enter__(self) -> None:
        self._before = _ambient.turn
        _ambient.turn = self

    def __exit__(self, *_: object) -> None:
        _ambient.turn = self._before


class Peer(int, Node):  # type: ignore[misc]
    """A node by its id, which as a number hashes alike in every process: sets of nodes are walked in the same order.

    The library keeps all it knows of nodes by them, and looks it up for each entry; a number is compared without a
    call.
    """

    # In the place of the library's property, which is a call.
    id = ""

    def __new__(cls, node_id: str) -> "Peer":
        """Two of one id are equal."""
        return super().__new__(cls, int.from_bytes(node_id.encode(), "big"))

    def __init__(self, node_id: str) -> None:
        Node.__init__(self, node_id)
        self.__dict__["id"] = node_id

    def __getnewargs__(self) -> tuple[str]:  # type: ignore[override]
        # The library as it ships, which the simulator plays against, copies nodes.
        return (self.id,)

    __repr__ = Node.__repr__


class _Wire(Transport):  # type: ignore[misc]
    # Always; the library asks at each tick.
    ready = True

    def __init__(self, send: Callable[[Any, Message], bool]) -> None:
        super().__init__(None, None, [])
        self.send = send


class _Serializer:
    """Stands in for the library's serializer; the names are its."""

    def __init__(self, port: SnapshotPort) -> None:
        self._port = port

    def checkSerializing(self) -> tuple[int, None]:
        return SERIALIZER_STATE.NOT_SERIALIZING, None

    def serialize(self, data: Any, id: int) -> None:
        raise AssertionError("rows are written behind by the host; the library never compacts")

    def getTransmissionData(self, node: Any) -> Chunk | None:
        return self._port.next_chunk(node.id)

    def setTransmissionData(self, data: Any) -> bool:
        return data is not None

    def deserialize(self) -> tuple[None, Entry, Entry, list[Any]]:
        before_last, last = self._port.install()
        return None, last, before_last, []

    def cancelTransmisstion(self, node: Any) -> None:
        """The host knows when a connection is lost; this is also called for one that is only held back."""


class _Commands:
    """Stands in for the library's queue of commands, which raises an exception each time it is found empty."""

    def __init__(self) -> None:
        self._waiting: deque[Any] = deque()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put_nowait(self, command: Any) -> None:
        self._waiting.append(command)

    def get_nowait(self) -> Any:
        if not self._waiting:
            raise Empty
        return self._waiting.popleft()


class _NoPoller:
    def poll(self, timeout: float) -> None:
        return


class _LeadsAlone(Exception):
    """Ends the tick in which a lone node elects itself: it would commit at once what is not on disk yet."""


_Kind = TypeVar("_Kind")


def _field(name: str, kind: type[_Kind]) -> _Kind:
    """A field of the library's under a name of ours, read without a call of Python's: hosts read some at every turn."""
    return cast(_Kind, property(attrgetter(name)))


class LibRaft(SyncObj):  # type: ignore[misc]
    """The library's core, with names that can be read."""

    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftState: int
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftLastApplied: int
    _SyncObj__raftElectionDeadline: float
    # The library's constructor reads every property, before it has set this one.
    _SyncObj__newAppendEntriesTime: float = 0.0

    def __init__(
        self,
        *,
        node_id: str,
        settings: Settings,
        fallback_s: float,
        journal: Journal,
        applied_index: int,
        send: Callable[[str, Message], None],
        apply: Callable[[int, int, bytes], None],
        snapshots: SnapshotPort,
        has_room: Callable[[str], bool],
    ) -> None:
        if pysyncobj.version.VERSION != LIBRARY_VERSION:
            raise RuntimeError(
                f"pysyncobj {LIBRARY_VERSION} is needed exactly; {pysyncobj.version.VERSION} is installed"
            )
        self._send = send
        self._apply = apply
        self._has_room = has_room
        # Nodes to which nothing more goes out in this round of sending.
        self._cut_short: set[Any] | None = None
        # The only ones that are sent something in it; None for all.
        self._sent_to: Set[str] | None = None
        self._peers: dict[str, Peer] = {}
        # Whom a leader sends to: the other members, and learners.
        self.followers: Set[str] = frozenset()
        conf = SyncObjConf(
            autoTick=False,
            raftMinTimeout=settings.election_min_s,
            raftMaxTimeout=settings.election_max_s,
            appendEntriesPeriod=settings.heartbeat_s,
            leaderFallbackTimeout=fallback_s,
            connectionTimeout=max(3.5, settings.election_max_s),
            appendEntriesBatchSizeBytes=settings.append_bytes_max,
            # The host compacts; these keep the library from it.
            logCompactionMinEntries=sys.maxsize,
            logCompactionMinTime=sys.maxsize,
            commandsWaitLeader=False,
        )
        patch_library()
        _handed_in.journal = journal
        try:
            super().__init__(Peer(node_id), [], conf, transport=_Wire(self._emit))
        finally:
            _handed_in.journal = None
        self._poller = _NoPoller()
        self._SyncObj__commandsQueue = _Commands()
        self._SyncObj__serializer = _Serializer(snapshots)
        self._SyncObj__raftLastApplied = max(applied_index, 1)
        self._SyncObj__raftCommitIndex = max(applied_index, 1)

    def _peer(self, node_id: str) -> Peer:
        peer = self._peers.get(node_id)
        if peer is None:
            peer = self._peers[node_id] = Peer(node_id)
        return peer

    # What the host does to it.

    def tick(self) -> None:
        """Timers, commit, apply, and entries that were submitted."""
        try:
            self._onTick(0.0)
        except _LeadsAlone:
            return

    def submit(self, command: bytes) -> None:
        """Takes an entry; a leader's next tick appends it."""
        self._SyncObj__commandsQueue.put_nowait((command, None))

    def deliver(self, peer: str, message: Message) -> None:
        """A message that has passed the guards."""
        self._SyncObj__transport._onMessageReceived(self._peer(peer), message)

    def connect(self, peer: str) -> None:
        """A connection is there: what was sent on an earlier one may be lost, so sending starts after what is known."""
        node = self._peer(peer)
        self._SyncObj__transport._onNodeConnected(node)
        if self._SyncObj__raftMatchIndex.get(node):
            self._SyncObj__raftNextIndex[node] = self._SyncObj__raftMatchIndex[node] + 1

    def disconnect(self, peer: str) -> None:
        """It is gone."""
        self._SyncObj__transport._onNodeDisconnected(self._peer(peer))

    def send_now(self, peers: Set[str]) -> None:
        """A leader sends what these followers lack, or the commit index alone, without waiting for the timer."""
        self._sent_to = peers
        try:
            self._SyncObj__sendAppendEntries()
        finally:
            self._sent_to = None

    def believe_committed(self, index: int) -> None:
        """What is up to there counts as committed, whoever has it."""
        self._SyncObj__raftCommitIndex = index

    def step_down(self) -> None:
        """A leader stops leading, as the library itself does when no majority answers."""
        self._SyncObj__setState(FOLLOWER)
        self._SyncObj__raftLeader = None

    def stand_by(self, until: float) -> None:
        """No election of our own before ``until``."""
        self._SyncObj__raftElectionDeadline = max(self.election_at, until)

    def stand_at(self, when: float) -> None:
        """The next election of our own comes no later than ``when``."""
        self._SyncObj__raftElectionDeadline = min(self.election_at, when)

    def hand_over(self, peer: str) -> bool:
        """Asks a follower that has everything to stand for election at once; False if it lacks something."""
        answers: list[int] = []
        self.transferLeadership(self._peer(peer), lambda _, error: answers.append(error))
        return answers == [0]

    def set_members(self, others: Iterable[str]) -> None:
        """The configuration without this node, as the log has it."""
        wanted = {self._peer(node) for node in others}
        for node in self._SyncObj__otherNodes - wanted:
            self._SyncObj__otherNodes.discard(node)
            self._forget(node)
        for node in sorted(wanted - self._SyncObj__otherNodes, key=lambda node: str(node.id)):
            self._SyncObj__otherNodes.add(node)
            if node in self._SyncObj__readonlyNodes:
                self._SyncObj__readonlyNodes.discard(node)
            else:
                self._meet(node)

    def add_learner(self, peer: str) -> None:
        """A node that is sent everything and counts for nothing."""
        node = self._peer(peer)
        if node not in self._SyncObj__otherNodes and node not in self._SyncObj__readonlyNodes:
            self._SyncObj__readonlyNodes.add(node)
            self._meet(node)

    def drop_learner(self, peer: str) -> None:
        """No longer."""
        node = self._peer(peer)
        if node in self._SyncObj__readonlyNodes:
            self._SyncObj__readonlyNodes.discard(node)
            self._forget(node)

    def _meet(self, node: Peer) -> None:
        self._SyncObj__raftNextIndex[node] = self._SyncObj__raftLog[-1][1] + 1
        self._SyncObj__raftMatchIndex[node] = 0
        self._SyncObj__lastResponseTime[node] = _monotonic()
        self.followers = self.followers | {str(node.id)}

    def _forget(self, node: Peer) -> None:
        self._SyncObj__raftNextIndex.pop(node, None)
        self._SyncObj__raftMatchIndex.pop(node, None)
        self._SyncObj__lastResponseTime.pop(node, None)
        self.followers = self.followers - {str(node.id)}

    # What the host reads.

    # The current term.
    term = _field("_SyncObj__raftCurrentTerm", int)
    # ``FOLLOWER``, ``CANDIDATE`` or ``LEADER``.
    state = _field("_SyncObj__raftState", int)
    # The highest index known to be committed, and the highest applied.
    commit_index = _field("_SyncObj__raftCommitIndex", int)
    applied_index = _field("_SyncObj__raftLastApplied", int)
    # When this node will stand for election unless it hears of a leader.
    election_at = _field("_SyncObj__raftElectionDeadline", float)
    # When a leader will next send by itself.
    heartbeat_at = _field("_SyncObj__newAppendEntriesTime", float)

    @property
    def leader(self) -> str | None:
        """Who leads, as far as this node knows."""
        node = self._SyncObj__raftLeader
        return None if node is None else str(node.id)

    @property
    def noop_index(self) -> int:
        """Where this leader's term begins in the log; 0 if it has never led."""
        return int(self._SyncObj__noopIDx or 0)

    def match_index(self, peer: str) -> int:
        """Up to where a follower is known to hold this leader's log."""
        return int(self._SyncObj__raftMatchIndex.get(self._peer(peer), 0))

    def ahead(self, index: int) -> list[str]:
        """The other members that are connected and have acknowledged the log as far as an index."""
        match, connected = self._SyncObj__raftMatchIndex, self._SyncObj__connectedNodes
        return sorted(node.id for node in self._SyncObj__otherNodes if node in connected and match[node] >= index)

    def is_connected(self, peer: str) -> bool:
        """Whether it can be sent anything."""
        return self._peer(peer) in self._SyncObj__connectedNodes

    def next_index(self, peer: str) -> int:
        """What it will be sent next."""
        return int(self._SyncObj__raftNextIndex.get(self._peer(peer), 0))

    def restore_next_index(self, peer: str, index: int) -> None:
        """Undoes the step back that the library takes at each acknowledgement of a part of what is on its way."""
        node = self._peer(peer)
        if node in self._SyncObj__raftNextIndex:
            self._SyncObj__raftNextIndex[node] = max(index, self._SyncObj__raftNextIndex[node])

    def tracks(self, peer: str) -> bool:
        """Whether replies of this node mean anything: it is a member, or learning."""
        return self._peer(peer) in self._SyncObj__raftMatchIndex

    def answered_at(self, peer: str) -> float:
        """When a follower last answered this leader."""
        return float(self._SyncObj__lastResponseTime.get(self._peer(peer), 0.0))

    # What the library calls, overridden by its mangled names.

    def _emit(self, node: Any, message: Message) -> bool:
        self._send(node.id, message)
        if self._cut_short is not None and "serialized" in message:
            # One chunk a round; and after "nothing to send" the library would ask again without end.
            self._SyncObj__connectedNodes.discard(node)
            self._cut_short.add(node)
        return True

    def _checkCommandsToApply(self) -> None:
        if self._SyncObj__commandsQueue:
            super()._checkCommandsToApply()

    def _SyncObj__tryLogCompaction(self) -> None:
        """The host compacts."""

    def _SyncObj__onBecomeLeader(self) -> None:
        super()._SyncObj__onBecomeLeader()
        if not self._SyncObj__otherNodes:
            raise _LeadsAlone

    def _SyncObj__sendAppendEntries(self) -> None:
        connected = self._SyncObj__connectedNodes
        only, has_room = self._sent_to, self._has_room
        self._cut_short = {
            node for node in connected if (only is not None and node.id not in only) or not has_room(node.id)
        }
        connected -= self._cut_short
        try:
            super()._SyncObj__sendAppendEntries()
        finally:
            connected |= self._cut_short
            self._cut_short = None

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        index = self._SyncObj__raftLastApplied + 1
        self._apply(index, self._SyncObj__raftLog.term_at(index), command)

    def _SyncObj__parseChangeClusterRequest(self, command: bytes) -> None:
        # The library would unpickle it. The configuration is the host's, from the log.
        return None


class _HandedIn(threading.local):
    journal: Journal | None = None


_handed_in = _HandedIn()
_stock_journal = library.createJournal


def _create_journal(path: str | None = None) -> Any:
    return _stock_journal(path) if _handed_in.journal is None else _handed_in.journal


def patch_library() -> None:
    """Points the library's clock, randomness and journal here; outside of a turn they are what they were."""
    library.createJournal = _create_journal
    library.monotonicTime = _monotonic
    library.random = _Draws
