"""Consensus on an asyncio loop: drives a ``Host``, its store and its connections.

>>> async def enqueue(consensus: "Consensus", ops: list[bytes]) -> None:
...     results = await consensus.propose(ops, timeout_s=5.0)
"""

import asyncio
import logging
import os
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from resourcelease.consensus import wire
from resourcelease.consensus.api import (
    Busy,
    EventLog,
    Machine,
    Machines,
    NoLeader,
    NotAllowed,
    OutcomeUnknown,
    TooLarge,
)
from resourcelease.consensus.effects import Applied, Effects
from resourcelease.consensus.entries import join_ops
from resourcelease.consensus.host import Host
from resourcelease.consensus.peers import Peers, TlsContexts
from resourcelease.consensus.questions import Questions
from resourcelease.consensus.settings import Settings
from resourcelease.consensus.wire import Message
from resourcelease.model.ops import ENTRY_VERSION
from resourcelease.storage.api import QuickStore, WriteBatch

__all__ = ["Consensus", "GATHER_S", "Status", "give_way"]

logger = logging.getLogger(__name__)

# What arrives in one pass of the loop is gathered; a pass that takes longer than this is not waited for.
GATHER_S = 0.003
# Turns taken in one go: new entries to the disk, their acknowledgement, and the rest.
_PASSES = 3
# No timer of a loop is finer; one that rings early is not set again for less.
_TICK_S = 0.001
# Between two attempts of a request to a leader that is not known, or not the leader any more.
_ASK_AGAIN_S = 0.1
# Whoever else wants this processor has it first. So before each entry that a follower applies: for that nobody waits,
# unlike for what other processes here may do.
give_way: Callable[[], object] = getattr(os, "sched_yield", lambda: None)


@dataclass(frozen=True, slots=True)
class Status:
    """What a node knows of itself and the cluster."""

    node_id: str
    leader: str | None
    term: int
    commit_index: int
    applied_index: int
    members: Mapping[str, str]
    connected: Sequence[str]
    pending: int


class Consensus:
    """One node. ``bootstrap`` is the first configuration, id to address; empty for a node that will be added.

    An empty disk may be one that was lost. So a node that finds its own empty votes for nobody who has a log, until it
    has caught up. ``founding`` says that this start founds the cluster, and nothing was ever promised.
    """

    # Where the others call, once it listens.
    address = ""

    def __init__(
        self,
        *,
        store: QuickStore,
        machines: Machines,
        listen: str,
        bootstrap: Mapping[str, str],
        settings: Settings | None = None,
        tls: TlsContexts | None = None,
        founding: bool = False,
        reads: int = ENTRY_VERSION,
        on_applied: Callable[[Sequence[Applied]], None] | None = None,
        on_failure: Callable[[BaseException], None] | None = None,
    ) -> None:
        identity = store.identity
        self.node_id = identity.node_id
        self.settings = settings or Settings()
        self._store = store
        self._listen = listen
        # The newest version of entries that this release reads.
        self._reads = reads
        self._on_applied = on_applied
        self._on_failure = on_failure
        self._loop = asyncio.get_running_loop()
        incarnation = int.from_bytes(os.urandom(7), "big")
        self._peers = self._connections(identity.cluster_id, incarnation, tls)
        self._host = Host(
            node_id=identity.node_id,
            store=store,
            machines=machines,
            incarnation=incarnation,
            rng=random.Random(incarnation),  # noqa: S311 draws election times
            now=self._loop.time(),
            bootstrap=bootstrap,
            settings=self.settings,
            has_room=self._peers.has_room,
            founding=founding,
            reads=reads,
            read_by=self._peers.read_by,
            give_way=give_way,
        )
        self.questions = Questions(lambda peer, message: self._peers.send(peer, [wire.encode(message)]))
        self._waiters: dict[int, Callable[[Sequence[Any] | Exception], None]] = {}
        self._tickets: dict[int, Callable[[str], None]] = {}
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._asks = 0
        # The turn that is on its way, if any.
        self._woken: asyncio.Handle | None = None
        self._woken_at = 0.0
        # Whether the turn that is taken leaves other work of this pass of the loop behind.
        self._more = False
        # Whether a message came that asks for one.
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = self._timer_at = 0.0
        # Numbers of batches that are on disk, and errors; filled on the store's thread, emptied on the loop.
        self._synced: deque[tuple[int, BaseException | None]] = deque()
        self._sync_told = False
        self._failure: BaseException | None = None
        self._running = self._turning = False

    def _connections(self, cluster_id: str, incarnation: int, tls: TlsContexts | None) -> Peers:
        return Peers(
            cluster_id=cluster_id,
            node_id=self.node_id,
            incarnation=incarnation,
            frame_bytes_max=self.settings.frame_bytes_max,
            tls=tls,
            opened=self._opened,
            closed=self._closed,
            received=self._received,
            settled=self._heard,
            gone=self._gone,
            turned_away=self._fail,
            reads=self._reads,
            written=lambda: self._host.versions.written,
        )

    # Life.

    async def start(self) -> None:
        """Listens, calls the others, and takes part."""
        self.address = await self._peers.listen(self._listen)
        self._running = True
        self._wake()

    def follow(self, log: EventLog) -> None:
        """Keeps rows and journal no further than a log of events is durable; to be said before ``start``."""
        self._host.follow(log)

    async def stop(self) -> None:
        """Ends at once; what waits for an answer gets ``OutcomeUnknown``. The store is left to its owner."""
        self._halt(None)
        await self.questions.close()
        await self._peers.close()

    async def __aenter__(self) -> "Consensus":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # What callers do.

    async def propose(self, ops: Sequence[bytes], timeout_s: float) -> Sequence[Any]:
        """Has ops applied everywhere, in one entry; their results, once this node has applied them.

        Raises ``NoLeader`` when it has surely not happened, ``OutcomeUnknown`` when it may have.
        """
        waiter: asyncio.Future[Any] = self._loop.create_future()
        self._take(ops, timeout_s, lambda answer: _settle(waiter, answer))
        if self._woken is None:
            self._wake()
        elif time.monotonic() - self._woken_at > GATHER_S and not self._turning:
            self._go(more=True)
        return await waiter  # type: ignore[no-any-return]

    def begin(
        self,
        ops: Sequence[bytes],
        timeout_s: float,
        tell: Callable[[Sequence[Any] | Exception], None],
        *,
        more: bool = False,
    ) -> None:
        """The same for one who has gathered the ops of many callers: is sent on at once, and told without a task.

        ``more`` says that there is work to do here meanwhile, so that a thread should wait for the disk. Raises what is
        known now. ``tell`` is called once, with the results or the error, and must not raise.
        """
        self._take(ops, timeout_s, tell)
        if self._turning:
            self._wake()
        else:
            self._go(more=more)

    def _go(self, *, more: bool) -> None:
        self._more = more
        try:
            self._turn()
        finally:
            self._more = False

    def _take(self, ops: Sequence[bytes], timeout_s: float, tell: Callable[[Sequence[Any] | Exception], None]) -> None:
        joined = join_ops(ops)
        if len(joined) > self.settings.entry_bytes_max:
            raise TooLarge(f"{len(joined)} bytes of ops; an entry takes {self.settings.entry_bytes_max}, split them")
        if self._host.pending >= self.settings.pending_max:
            raise Busy(f"{self._host.pending} proposals wait already; propose again a little later")
        self._check_running()
        number = self._host.propose(len(ops), joined, self._loop.time() + timeout_s)
        self._waiters[number] = tell

    async def add_member(self, node: str, address: str, timeout_s: float = 60.0) -> None:
        """Takes a node in once it has caught up; also changes the address of a member."""
        await self._administer("add", node, address, timeout_s)

    async def remove_member(self, node: str, timeout_s: float = 10.0) -> None:
        """Takes a node out; it may then be stopped."""
        await self._administer("remove", node, "", timeout_s)

    async def transfer_leadership(self, node: str = "", timeout_s: float = 5.0) -> None:
        """Hands the lead to a member, or to the one that is furthest."""
        await self._administer("transfer", node, "", timeout_s)

    async def barrier(self, timeout_s: float) -> int:
        """Waits until this node has applied everything that was acknowledged before; the index it has reached."""
        await self.propose([], timeout_s)
        return self._host.applied_index

    @property
    def machine(self) -> Machine:
        """The state here; to be read between awaits only, and another object after a snapshot was installed."""
        return self._host.machine

    @property
    def is_leader(self) -> bool:
        """Whether this node leads, as far as it knows."""
        return self._host.is_leader

    @property
    def leader(self) -> str | None:
        """Who leads, as far as this node knows."""
        return self._host.leader

    @property
    def leaders_processor(self) -> int | None:
        """Where another node that leads was running lately, if it is on this machine."""
        leader = self._host.leader
        return None if leader is None else self._peers.processor_of(leader)

    @property
    def clock_ms(self) -> int:
        """The lease clock as read here."""
        return self._host.clock_ms(self._loop.time())

    def status(self) -> Status:
        """For people and probes."""
        host = self._host
        return Status(
            node_id=self.node_id,
            leader=host.leader,
            term=host.term,
            commit_index=host.commit_index,
            applied_index=host.applied_index,
            members=dict(host.members),
            connected=self._peers.connected,
            pending=host.pending,
        )

    # Administration: answered by the leader, asked of any node.

    async def _administer(self, action: str, node: str, address: str, timeout_s: float) -> None:
        deadline = self._loop.time() + timeout_s
        refusal = "no leader is known"
        while self._loop.time() < deadline:
            self._check_running()
            leader = self._host.leader
            if leader is not None:
                refusal = await self._ask(leader, action, node, address, deadline)
                if not refusal or not refusal.startswith("this node "):
                    break
            await asyncio.sleep(_ASK_AGAIN_S)
        if refusal:
            raise NotAllowed(f"{action} {node}: {refusal}".replace(" :", ":"))

    async def _ask(self, leader: str, action: str, node: str, address: str, deadline: float) -> str:
        answer: asyncio.Future[str] = self._loop.create_future()
        self._asks += 1
        number = self._asks
        self._asked[number] = answer
        if leader == self.node_id:
            self._take_request(action, node, address, deadline, lambda refusal: self._told(number, refusal))
        else:
            message = {"type": "admin", "number": number, "action": action, "node": node, "address": address}
            self._peers.send(leader, [wire.encode(message)])
        try:
            async with asyncio.timeout_at(deadline):
                return await answer
        except TimeoutError:
            return "the leader did not answer in time; look at the members before asking again"
        finally:
            self._asked.pop(number, None)

    def _take_request(self, action: str, node: str, address: str, deadline: float, tell: Callable[[str], None]) -> None:
        ticket = self._host.administration.request(action, node, address, deadline)
        self._tickets[ticket] = tell
        self._wake()

    def _told(self, number: int, refusal: str) -> None:
        answer = self._asked.get(number)
        if answer is not None and not answer.done():
            answer.set_result(refusal)

    # What happens.

    def _opened(self, peer: str, epoch: int) -> None:
        self._host.opened(peer, epoch)
        self.questions.opened(peer)
        self._wake()

    def _closed(self, peer: str, epoch: int) -> None:
        self._host.closed(peer, epoch)
        self._wake()

    def _received(self, peer: str, epoch: int, message: Message) -> None:
        if message["type"] == "admin":
            number = message["number"]

            def tell(refusal: str) -> None:
                self._peers.send(peer, [wire.encode({"type": "admin_done", "number": number, "refusal": refusal})])

            deadline = self._loop.time() + 60.0
            self._take_request(message["action"], message["node"], message["address"], deadline, tell)
        elif message["type"] == "admin_done":
            self._told(message["number"], message["refusal"])
        elif message["type"] in ("ask", "answer"):
            self.questions.received(peer, message)
        else:
            self._due |= self._host.receive(peer, epoch, message)

    def _heard(self) -> None:
        """All that came at once is taken."""
        if self._due:
            self._turn()

    def _gone(self, peer: str) -> None:
        self._host.suspect(peer)
        self._wake()

    def _on_synced(self) -> None:
        """A commit is back; what one fsync covered, and what came back since, is taken together."""
        self._sync_told = False
        due = False
        while self._synced:
            number, error = self._synced.popleft()
            if error is not None:
                self._fail(error)
                return
            due |= self._host.durable(number)
        if not self._running:
            # It says nothing more, also not what is true: it may be one of two processes with one name.
            return
        try:
            self._send(self._host.released())
        except Exception as error:
            self._fail(error)
            return
        if due:
            self._turn()

    # The loop.

    def _check_running(self) -> None:
        if self._failure is not None:
            raise OutcomeUnknown(f"this node has stopped: {self._failure}") from self._failure
        if not self._running:
            raise NoLeader("this node is not running")

    def _wake(self) -> None:
        """Has a turn after whatever else arrives in this pass of the loop: so it is one entry for all callers."""
        if self._woken is None and self._running:
            self._woken = self._loop.call_soon(self._turn)
            self._woken_at = time.monotonic()

    def _turn(self) -> None:
        if self._woken is not None:
            self._woken.cancel()
            self._woken = None
        self._due = False
        if not self._running:
            return
        self._turning = True
        try:
            for _ in range(_PASSES):
                if not self._pass():
                    break
            else:
                self._wake()
        except Exception as error:  # a node that cannot keep the rules must not go on
            self._fail(error)
            return
        finally:
            self._turning = False
        self._due_at = self._host.next_turn_at()
        if self._timer is None or self._timer_at > self._due_at:
            self._set_timer()

    def _pass(self) -> bool:
        """One turn of the host; True if another has something to do at once."""
        effects = self._host.turn(self._loop.time(), time.time_ns() // 1_000_000)
        # Sent first: the way to another disk and back is longer than that to this one.
        self._send(effects.sends)
        awaited = effects.write is not None and self._write(*effects.write)
        if effects.rows is not None:
            self._store.write_later(effects.rows)
        self._carry_out(effects)
        return awaited or self._host.unfinished

    def _write(self, number: int, batch: WriteBatch) -> bool:
        """Whether it is on disk already, and a turn is due for that."""
        if not self._more and self._store.write_at_once(batch):
            due = self._host.durable(number)
            self._send(self._host.released())
            return due
        self._store.write(batch).add_done_callback(lambda done: self._written(number, done))
        return False

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # Kept beside it: not every loop's handle says when it is due.
        self._timer_at = self._due_at
        self._timer = self._loop.call_at(self._due_at, self._on_timer)

    def _on_timer(self) -> None:
        # Set once and left standing while turns put off what it was set for: arming one costs more than a look.
        self._timer = None
        if (now := self._loop.time()) >= self._due_at:
            self._turn()
        else:
            self._due_at = max(self._due_at, now + _TICK_S)
            self._set_timer()

    def _carry_out(self, effects: Effects) -> None:
        # Callers first: they wait, and what they ask for next finds both done.
        for proposal, answer in effects.answers:
            self._waiters.pop(proposal)(answer)
        if effects.applied and self._on_applied is not None:
            self._on_applied(effects.applied)
        for ticket, refusal in effects.administered:
            self._tickets.pop(ticket)(refusal)
        self._peers.want(self._host.members, self._host.administration.learners)

    def _send(self, sends: Sequence[tuple[str, Message]]) -> None:
        frames: dict[str, list[bytes]] = {}
        # Followers that stand at the same place are sent the same bytes.
        packed: dict[tuple[int, ...], bytes] = {}
        for peer, message in sends:
            if message.get("entries"):
                key = (message["prevLogIdx"], message["prevLogTerm"], message["commit_index"], len(message["entries"]))
                frame = packed.get(key) or packed.setdefault(key, wire.encode(message))
            else:
                frame = wire.encode(message)
            frames.setdefault(peer, []).append(frame)
        for peer, together in frames.items():
            self._peers.send(peer, together)

    def _written(self, number: int, done: "Future[None]") -> None:
        """On the store's thread: wakes the loop, once for all that it has not looked at yet."""
        self._synced.append((number, done.exception()))
        # In this order: whoever takes the mark away looks at all that was there before.
        if not self._sync_told and not self._loop.is_closed():
            self._sync_told = True
            self._loop.call_soon_threadsafe(self._on_synced)

    def _fail(self, error: BaseException) -> None:
        if self._failure is not None:
            return
        self._failure = error
        logger.error("node %s stops: %s", self.node_id, error)
        self._halt(error)
        if self._on_failure is not None:
            self._on_failure(error)

    def _halt(self, error: BaseException | None) -> None:
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        waiters, self._waiters = self._waiters, {}
        for tell in waiters.values():
            tell(OutcomeUnknown(f"this node has stopped: {error or 'it was told to'}"))
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result("this node has stopped")


def _settle(waiter: "asyncio.Future[Any]", answer: Sequence[Any] | Exception) -> None:
    if waiter.done():
        return
    if isinstance(answer, Exception):
        waiter.set_exception(answer)
    else:
        waiter.set_result(answer)
