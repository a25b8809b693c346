"""The library's ``SyncObj`` as its own tests know it, with our consensus, transport, journal and store behind it.

Tables of methods, decorators and consumers stay the library's. Commands go through ``Consensus.propose``; state goes to
rows. An object lives only while it is ticked, as the library's does, so leaving one out is stopping its process. The
addresses that a test draws are labels: a node's id and port belong to its files, since the tests move files to new
addresses, and here a change of address is a change of membership.
"""

import asyncio
import itertools
import pickle
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
from pysyncobj import FAIL_REASON, SyncObjConf
from pysyncobj import SyncObj as LibrarySyncObj
from pysyncobj.node import TCPNode
from pysyncobj.transport import Transport

from bench.processes import free_ports
from resourcelease.consensus import Consensus, Machines, NoLeader, OutcomeUnknown, Settings
from resourcelease.storage import LmdbStore, StoreOptions

_OPTIONS = StoreOptions(ballast_bytes=0, map_size_bytes=16 << 20)
_PROPOSE_S = 30.0
_TICK_S = 0.02


@dataclass
class World:
    """What the objects of one test know of each other."""

    directory: Path
    objects: "list[StandIn]" = field(default_factory=list)
    # By node id: the label it was given last, and where it listens.
    labels: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def id_of(self, label: str) -> str:
        """The node that has a label now; one that is not there yet is named after it."""
        return next((node for node, current in self.labels.items() if current == label), label)

    def address_of(self, node: str, label: str) -> str:
        """Its port, given on first sight, which may be two nodes' at once; the host is the label's."""
        with self.lock:
            if node not in self.addresses:
                host = label.rpartition(":")[0]
                self.addresses[node] = f"{f'[{host}]' if ':' in host else host}:{free_ports(1)[0]}"
            return self.addresses[node]

    def close(self) -> None:
        """Ends what a test has left."""
        for one in self.objects:
            one.destroy()


class Outcome:
    """Results of one entry."""

    def __init__(self, results: list[Any]) -> None:
        self.results = results
        self.records: list[Any] = []


class Calls:
    """A machine that carries out the library's commands on an object, each once."""

    def __init__(self, target: "StandIn") -> None:
        self._target = target
        self.clock_ms = 0
        self.applied_index = 0
        self._answers: dict[int, Any] = {}

    def apply(self, index: int, term: int, data: bytes) -> Outcome:
        self.applied_index = index
        _, self.clock_ms, _, ops = msgpack.unpackb(data)
        return Outcome([self._run(*msgpack.unpackb(op)) for op in ops])

    def _run(self, number: int, command: bytes) -> Any:
        if number not in self._answers:
            self._answers[number] = self._target._SyncObj__doApplyCommand(command)
        return self._answers[number]

    def next_due_ms(self) -> int | None:
        return None

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        return list(self.dump_rows()), []

    def dump_rows(self) -> Iterator[tuple[bytes, bytes]]:
        state = (self.clock_ms, self.applied_index, self._answers, *self._target.held())
        yield b"state", pickle.dumps(state)

    def load(self, rows: Iterable[tuple[bytes, bytes]]) -> "Calls":
        for _, value in rows:
            self.clock_ms, self.applied_index, self._answers, *held = pickle.loads(value)
            self._target.take_back(*held)
        return self

    def digest(self) -> bytes:
        return repr(self._target.held()).encode()


class StandIn(LibrarySyncObj):  # type: ignore[misc]
    """Takes the library's place in its tests; ``world`` is set by the fixture."""

    world: World
    # The library's constructor looks at every property before this class's has begun.
    _node: Consensus | None = None

    def __init__(self, label: str, others: list[str], conf: SyncObjConf, consumers: Any = None) -> None:
        files = conf.journalFile or conf.fullDumpFile
        auto, self._wanted = conf.autoTick, conf
        bare = SyncObjConf(autoTick=False)
        super().__init__(label, others, bare, consumers=consumers, transport=Transport(None, None, []))
        self._SyncObj__conf = conf
        self._label, self._others = label, others
        self._id = Path(files).stem if files else label
        self._directory = self.world.directory / self._id
        self.world.labels = {node: at for node, at in self.world.labels.items() if at != label}
        self.world.labels[self._id] = label
        self.world.objects.append(self)
        self._kept = bool(files)
        self._loop = asyncio.new_event_loop()
        self._node = None
        self._store: LmdbStore | None = None
        self._todo: list[tuple[bytes, Callable[..., None] | None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._state = 0
        self._gone = False
        self._thread = threading.Thread(target=self._tick_on, daemon=True) if auto else None
        # What is set from here on is the test's own, and so the state.
        self._plumbing: set[str] = {*self.__dict__, "_plumbing"}
        if self._thread is not None:
            self._thread.start()

    # State, as the library would dump it.

    def held(self) -> tuple[dict[str, Any], list[Any]]:
        own = {key: value for key, value in self.__dict__.items() if key not in self._plumbing}
        return own, [consumer._serialize() for consumer in self._SyncObj__consumers]

    def take_back(self, own: dict[str, Any], consumers: list[Any]) -> None:
        self.__dict__.update(own)
        for consumer, value in zip(self._SyncObj__consumers, consumers, strict=True):
            consumer._deserialize(value)

    # Life.

    def _settings(self) -> Settings:
        conf = self._wanted
        least = conf.logCompactionMinEntries
        short = 0 < least < 1000 and conf.appendEntriesUseBatch
        return Settings(
            heartbeat_s=min(conf.appendEntriesPeriod, conf.raftMinTimeout / 4),
            election_min_s=conf.raftMinTimeout,
            election_max_s=conf.raftMaxTimeout,
            fallback_s=conf.leaderFallbackTimeout,
            flush_s=0.2 if short else 1.0,
            flush_entries=least // 4 if short else 5000,
            keep_entries=least // 4 if short else 10_000,
            # Callers of the library get an entry each; so here, that there is something to compact.
            in_flight_ops_max=1,
        )

    async def _start(self) -> None:
        if not self._kept:
            shutil.rmtree(self._directory, ignore_errors=True)
        world = self.world
        members = {world.id_of(label): label for label in [self._label, *self._others]}
        bootstrap = {node: world.address_of(node, label) for node, label in members.items()}
        self._store = LmdbStore(self._directory, cluster_id="upstream", node_id=self._id, options=_OPTIONS)
        machines = Machines(lambda: Calls(self), lambda rows: Calls(self).load(rows))
        self._node = Consensus(
            store=self._store,
            machines=machines,
            listen=bootstrap[self._id],
            bootstrap=bootstrap,
            settings=self._settings(),
            founding=True,
        )
        await self._node.start()

    async def _live(self, seconds: float) -> None:
        if self._node is None:
            await self._start()
        assert self._node is not None
        while self._todo:
            task = asyncio.ensure_future(self._propose(*self._todo.pop(0)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        await asyncio.sleep(seconds)
        raft = self._node._host._raft
        raft._SyncObj__conf.leaderFallbackTimeout = self._SyncObj__conf.leaderFallbackTimeout
        self._SyncObj__raftCommitIndex = raft.commit_index
        if raft.state != self._state:
            before, self._state = self._state, raft.state
            if self._SyncObj__conf.onStateChanged is not None:
                self._SyncObj__conf.onStateChanged(before, self._state)

    def _onTick(self, timeToWait: float = 0.0) -> None:
        if not self._gone and self._thread in (None, threading.current_thread()):
            self._loop.run_until_complete(self._live(min(timeToWait, _TICK_S)))

    def _tick_on(self) -> None:
        while not self._gone:
            self._onTick(_TICK_S)

    def destroy(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._thread is not None:
            self._thread.join()
        self._loop.run_until_complete(self._stop())
        if self._store is not None:
            self._store.close()
        self._loop.close()

    _destroy = destroy

    async def _stop(self) -> None:
        if self._node is not None:
            await self._node.stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # Commands.

    def _applyCommand(self, command: bytes, callback: Any, commandType: int | None = None) -> None:
        kind = b"\x00" if commandType is None else bytes([commandType])
        self._todo.append((kind + command, callback))

    async def _propose(self, command: bytes, callback: Callable[..., None] | None) -> None:
        assert self._node is not None
        op = msgpack.packb([next(self.world.numbers), command])
        try:
            (result,) = await self._node.propose([op], _PROPOSE_S)
        except (NoLeader, OutcomeUnknown):
            if callback is not None:
                callback(None, FAIL_REASON.MISSING_LEADER)
            return
        if callback is not None:
            callback(result, FAIL_REASON.SUCCESS)

    # What the tests look at.

    def isReady(self) -> bool:
        return self._node is not None and self._getLeader() is not None and self._node.status().applied_index > 1

    _isReady = isReady

    def _getLeader(self) -> TCPNode | None:
        leader = None if self._node is None else self._node.leader
        return None if leader is None else TCPNode(self.world.labels.get(leader, leader))

    def _isLeader(self) -> bool:
        return self._node is not None and self._node.is_leader

    def _getTerm(self) -> int:
        return 0 if self._node is None else self._node.status().term

    @property
    def hasQuorum(self) -> bool:
        if self._node is None:
            return False
        status = self._node.status()
        return 2 * (1 + len(status.connected)) > len(status.members)

    def _getRaftLogSize(self) -> int:
        return 0 if self._node is None else len(self._node._host.journal)

    def forceLogCompaction(self) -> None:
        assert self._node is not None
        self._node._host._behind._written_at = 0.0

    _forceLogCompaction = forceLogCompaction

    def waitBinded(self) -> None:
        return

    def _printStatus(self) -> None:
        print(None if self._node is None else self._node.status())
