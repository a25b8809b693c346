"""One node's consensus, without a network, a disk, a clock or a thread of its own.

Inputs are ``receive``, ``opened``, ``closed``, ``durable`` and ``propose``; they only take note. ``turn`` does the work
and returns what is to be done about it. The order of the duties is the safety of the protocol:

1. hand ``Effects.write`` to the store before the next turn, and call ``durable`` when its fsync is back; behind it
   ``Effects.rows``, for which nobody waits;
2. send ``Effects.sends``, in order to each peer; what may not leave before an fsync is ``released`` after ``durable``;
3. give answers and records to whoever waits.

The asyncio shell and the simulator are the two that drive it.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from resourcelease.consensus.administration import Administration
from resourcelease.consensus.api import ConsensusBroken, EventLog, Machine, Machines
from resourcelease.consensus.effects import Applied, Effects
from resourcelease.consensus.entries import KIND_MEMBERS, KIND_OPS, Origin, decode_ops, encode_ops
from resourcelease.consensus.guards import Connections, Durability, HeldReplies, ResetThrottle, VoteBox, is_behind, trim
from resourcelease.consensus.journal import Entry, Journal
from resourcelease.consensus.leaseclock import LeaseClock
from resourcelease.consensus.members import MEMBERS_ROW, unpack_members
from resourcelease.consensus.newborn import Newborn, Promises
from resourcelease.consensus.news import News
from resourcelease.consensus.outbox import Outbox
from resourcelease.consensus.precedence import Precedence, is_late
from resourcelease.consensus.proposals import Proposals, Queue, forwarded
from resourcelease.consensus.recovery import Recovered, recover
from resourcelease.consensus.seams import FOLLOWER, LEADER, LibRaft, Random, ambient
from resourcelease.consensus.settings import ALL_GUARDS, Guards, Settings
from resourcelease.consensus.snapshots import Arrived, Incoming, Outgoing, is_here
from resourcelease.consensus.versions import EntryVersions
from resourcelease.consensus.wire import Chunk, Message
from resourcelease.consensus.writebehind import WriteBehind
from resourcelease.model.ops import ENTRY_VERSION
from resourcelease.storage.api import Store

__all__ = ["Host"]

# Without guard **fallback**: what the library ships with.
_LIBRARY_FALLBACK_S = 30.0
# Timers of the library fire strictly after their time.
_JUST_AFTER_S = 1e-4
# Between the elections of two successors of a leader that is known to be gone.
_SUCCESSION_S = 0.06
# How soon to look again at something that could not be done.
_AGAIN_S = 0.02


class Host:
    """The node ``node_id``, as it comes back from its store."""

    def __init__(
        self,
        *,
        node_id: str,
        store: Store,
        machines: Machines,
        incarnation: int,
        rng: Random,
        now: float,
        bootstrap: Mapping[str, str],
        settings: Settings | None = None,
        guards: Guards = ALL_GUARDS,
        has_room: Callable[[str], bool] = lambda peer: True,
        founding: bool = False,
        reads: int = ENTRY_VERSION,
        read_by: Callable[[str], int] = lambda peer: ENTRY_VERSION,
        give_way: Callable[[], object] = lambda: None,
    ) -> None:
        self.node_id = node_id
        self.settings = settings = settings or Settings()
        self._store, self._machines = store, machines
        self._guards, self._rng, self._now, self._give_way = guards, rng, now, give_way
        # A number no earlier run of this node had: replies to an earlier run must not answer calls of this one.
        self._incarnation = incarnation if guards.reqid else 0

        recovered: Recovered = recover(store, machines, bootstrap, guards, founding=founding)
        self.machine: Machine = recovered.machine  # another one once a snapshot is installed
        self.membership = recovered.membership
        self._journal = recovered.journal
        self.versions = EntryVersions(reads, read_by, self._journal[:], recovered.rows_index)
        self._effects, self._held = Effects(), HeldReplies()
        self._inbox: deque[tuple[str, int, Message]] = deque()
        self._connections = Connections()
        self._durability = Durability(self._journal.last_index if len(self._journal) else 0)
        self._outbox = Outbox(self._connections, self._durability, guards)
        self._precedence = Precedence(self._journal)
        self._behind = WriteBehind(
            journal=self._journal,
            membership=self.membership,
            settings=settings,
            rows_index=recovered.rows_index,
            stored=lambda: store.settled_rows_index,
            now=now,
        )
        self._votes, self._promises = VoteBox(), Promises(node_id)
        self._resets = ResetThrottle(settings.reset_repeat_s)
        self._incoming = Incoming(guarded=guards.snapseq)
        self._arrived: Arrived | None = None
        self._outgoing = Outgoing(
            store=store,
            journal=self._journal,
            incarnation=incarnation,
            chunk_bytes=settings.chunk_bytes,
            answer_s=settings.snapshot_answer_s,
        )
        self._proposals, self._queue = Proposals(settings.retry_s), Queue()
        silent_s = 2 * settings.election_max_s if node_id in bootstrap else 0.0
        self._newborn = Newborn(self._journal, self._proposals, now + silent_s, guarded=guards.proof)
        self._clock = LeaseClock(settings.clock_step_max_s)
        self._led_term = self._arrived_term = self._wall_ms = 0
        self._heard_leader_at = float("-inf")
        self._led_by = ""  # The last leader that was heard.
        self._answer_as: int | None = None
        self._news = News(settings.news_s, settings.behind_s)

        with ambient(now, rng):
            self._raft = LibRaft(
                node_id=node_id,
                settings=settings,
                fallback_s=settings.fallback_s if guards.fallback else _LIBRARY_FALLBACK_S,
                journal=self._journal,
                applied_index=recovered.rows_index,
                send=self._emit,
                apply=self._apply,
                snapshots=self,
                has_room=has_room,
            )
            self._journal.on_append = self._appended
            self._journal.on_truncate = self._truncated
            self._raft.set_members(self._others())
        if not guards.ci:
            self._raft.believe_committed(self._journal.last_index)
        self.administration = Administration(
            raft=self._raft,
            journal=self._journal,
            membership=self.membership,
            settings=settings,
            promises=self._promises,
        )

    # What others read.

    @property
    def members(self) -> Mapping[str, str]:
        """The configuration in force: node id to address."""
        return self.membership.current

    @property
    def leader(self) -> str | None:
        """Who leads, as far as this node knows."""
        return self._raft.leader

    @property
    def is_leader(self) -> bool:
        """Whether this node leads; another may, in a later term, without this one knowing yet."""
        return self._raft.state == LEADER

    @property
    def term(self) -> int:
        """The current term."""
        return self._raft.term

    @property
    def commit_index(self) -> int:
        """The highest index known here to be committed."""
        return self._raft.commit_index

    @property
    def applied_index(self) -> int:
        """The highest index applied here."""
        return self._raft.applied_index

    @property
    def journal(self) -> Journal:
        """The log held here; to be read only."""
        return self._journal

    @property
    def pending(self) -> int:
        """Proposals of this node that wait for their answer."""
        return len(self._proposals)

    def epoch_of(self, peer: str) -> int:
        """The connection in use; 0 for none."""
        return self._connections.epoch(peer)

    def clock_ms(self, now: float) -> int:
        """The lease clock: a leader's reading, or the last committed one."""
        return self._clock.reading_ms(now) if self._clock.running else self.machine.clock_ms

    # Inputs.

    def opened(self, peer: str, epoch: int) -> None:
        """A connection to a peer is up; ``epoch`` is higher than that of any earlier one."""
        with ambient(self._now, self._rng):
            self._connections.opened(peer, epoch)
            self._outgoing.cancel(peer)
            self._raft.connect(peer)

    def closed(self, peer: str, epoch: int) -> None:
        """A connection is gone."""
        if self._connections.closed(peer, epoch):
            self._outgoing.cancel(peer)
            self._news.lost(peer)
            self._raft.disconnect(peer)

    def receive(self, peer: str, epoch: int, message: Message) -> bool:
        """A message came by a connection; whether a turn is due for it."""
        self._inbox.append((peer, epoch, message))
        counted = self._outgoing.sending or self.administration.busy
        return counted or not is_late(message, self._raft.term, self._raft.commit_index)

    def durable(self, batch: int) -> bool:
        """The fsync of a batch is back; whether a turn is due for it, apart from what is ``released`` now."""
        self._durability.done(batch)
        return self._held.waiting or self._arrived is not None or len(self.members) == 1

    def released(self) -> Sequence[tuple[str, Message]]:
        """What waited for nothing but the disk, to be sent at once: so an acknowledgement costs no turn."""
        return self._outbox.covered(self._raft.term)

    def propose(self, count: int, ops: bytes, deadline: float) -> int:
        """Takes ``count`` ops, joined by ``join_ops``; the number under which the answer will come."""
        return self._proposals.add(count, ops, deadline)

    def suspect(self, peer: str) -> None:
        """The peer's process is known to be gone: if it led, the others stand for election soon, one by one."""
        members = sorted(node for node in self.members if node != peer)
        # Another's request for votes may have come first, and taken the leader from the library's mind.
        led = self._led_by == peer and self._raft.leader in (peer, None)
        if led and self.node_id in members:
            self._raft.stand_at(self._now + _SUCCESSION_S * (members.index(self.node_id) + 0.2 * self._rng.random()))

    def follow(self, log: EventLog) -> None:
        """Stores rows, and cuts the journal, no further than a log of events is durable."""
        self._behind.log = log

    # The turn.

    def turn(self, now: float, wall_ms: int = 0) -> Effects:
        """Does everything there is to do at ``now`` (monotonic, seconds)."""
        self._now, self._wall_ms = now, wall_ms
        with ambient(now, self._rng):
            while self._inbox:
                self._deliver(*self._inbox.popleft())
            if not self._puts_off():
                self._precedence.done()
                self._do_the_rest()
            self._finish()
        effects, self._effects = self._effects, Effects()
        return effects

    @property
    def unfinished(self) -> bool:
        """Whether the last turn did only what could not wait, and the next one is due at once."""
        return self._precedence.unfinished

    def _puts_off(self) -> bool:
        if self._raft.state != FOLLOWER or self._arrived is not None:
            return False
        last = min(self._raft.commit_index, self._journal.last_index)
        return self._precedence.puts_off(self._raft.applied_index + 1, last)

    def _do_the_rest(self) -> None:
        if self._held.waiting:
            self._show_held_replies()
        self._install_arrived()
        self._stand_alone()
        self._check_disk()
        self._effects.administered += self.administration.turn(self._now)
        self._submit()
        if self._may_tick():
            self._raft.tick()
        self._follow_leadership()
        self._newborn.seek_proof()
        if self._raft.state == LEADER:
            self._send_news()
        if self._arrived is None:
            self._behind.turn(self._now, self._raft.applied_index, self.machine, self._floor)

    def _floor(self) -> int | None:
        """The journal is not cut from here on."""
        return self._outgoing.floor(map(self._raft.next_index, self._news.passed & self._raft.followers))

    def next_turn_at(self) -> float:
        """When the next turn is due if nothing happens before."""
        now = self._now
        if self._precedence.unfinished:
            return now
        rows_at, asked_at = self._behind.next_at(self._raft.applied_index), self._proposals.next_deadline(now)
        at = min(now + 1.0, rows_at, asked_at)
        if self._arrived is not None:
            at = min(at, now + _AGAIN_S)
        floor = now if self._outgoing.sending else now + _AGAIN_S
        if self._raft.state == LEADER:
            at = min(at, self._raft.heartbeat_at + _JUST_AFTER_S)
            due_ms = self.machine.next_due_ms()
            if due_ms is not None and self._clock.running and due_ms > self._clock.stamped_ms:
                at = min(at, now + (due_ms - self._clock.reading_ms(now)) / 1000.0 + _JUST_AFTER_S)
            # The others are told on time, whatever else there is.
            return min(max(at, floor), max(self._news.due_at, now))
        if self.node_id in self.members:
            at = min(at, self._raft.election_at + _JUST_AFTER_S)
        return max(at, floor)

    def _may_tick(self) -> bool:
        # Alone, the library would commit what it has just appended; so it waits for the disk (guard **sync**).
        waits = self._guards.sync and self.membership.is_alone(self.node_id)
        return not waits or (self._durability.settled and not self._journal.dirty)

    def _stand_alone(self) -> None:
        """Where nobody else can lead there is nobody to wait for."""
        if self._raft.state != LEADER and self.membership.is_alone(self.node_id):
            self._raft.stand_at(self._now)

    def _check_disk(self) -> None:
        """Guard **stall**: a leader whose disk stands still would block the cluster while its heartbeats go on."""
        if self.node_id not in self.membership.current or not self._newborn.stands(self._now):
            # A node that is joining, was removed, or has forgotten what it promised never stands.
            self._raft.stand_by(self._now + self.settings.election_max_s)
        waiting_s = self._now - self._durability.waiting_since(self._now)
        if not self._guards.stall or waiting_s < self.settings.fallback_s:
            return
        if self._raft.state == LEADER and len(self.members) > 1:
            self._raft.step_down()
        self._raft.stand_by(self._now + self.settings.election_max_s)

    def _follow_leadership(self) -> None:
        leads = self._raft.state == LEADER
        if self._led_term and (not leads or self._raft.term != self._led_term):
            self._led_term = 0
            self._clock.stop()
            self._news.reset()
            self._queue.clear()
            self._outgoing.cancel_all()
            self._promises.reset()
            self._effects.administered += self.administration.leadership_lost()
        if leads and not self._led_term:
            self._led_term = self._raft.term
            self._newborn.heard(self.node_id, self._raft.term)

    # Proposals.

    def _submit(self) -> None:
        for late in self._proposals.expired(self._now):
            self._effects.answers.append((late.number, late.too_late()))
        self._route_proposals()
        if not self._clock.running or self._raft.state != LEADER or not self._may_tick():
            return
        if self.administration.handing_over:
            return
        room = self.settings.in_flight_entries_max - (self._journal.last_index - self._raft.commit_index)
        queue, ops_max, bytes_max = self._queue, self.settings.in_flight_ops_max, self.settings.in_flight_bytes_max
        while queue and room > 0 and queue.ops_under_way < ops_max and queue.bytes_under_way < bytes_max:
            room -= 1
            taken = queue.take(self.settings.entry_bytes_max, ops_max - queue.ops_under_way)
            self._append([origin for origin, _ in taken], [ops for _, ops in taken])
        due_ms = self.machine.next_due_ms()
        if due_ms is not None and self._clock.stamped_ms < due_ms <= self._clock.reading_ms(self._now):
            self._append([], [])

    def _append(self, origins: list[Origin], ops: list[bytes]) -> None:
        self._news.owed.update(origin.node for origin in origins)
        version = self.versions.to_write([*self._others(), *self.administration.learners])
        self._raft.submit(encode_ops(origins, self._clock.stamp_ms(self._now), self._wall_ms, ops, version))

    def _route_proposals(self) -> None:
        leader, term = self._raft.leader, self._raft.term
        if leader == self.node_id:
            for pending in self._proposals.to_send((leader, term, 0), self._now):
                self._queue.offer(Origin(leader, self._incarnation, pending.number, pending.count), pending.ops)
        elif leader is not None and (epoch := self._connections.epoch(leader)):
            due = self._proposals.to_send((leader, term, epoch), self._now)
            for proposals in forwarded(due, self.settings.append_bytes_max):
                told = {"type": "propose", "incarnation": self._incarnation, "proposals": proposals}
                self._outbox.put(leader, told)

    def _apply(self, index: int, term: int, command: bytes) -> None:
        if term == self._raft.term and index == self._raft.noop_index and self._raft.state == LEADER:
            self._clock.start(self.machine.clock_ms, self._now)
        if command[0] != KIND_OPS:
            return
        if self._raft.state != LEADER:
            self._give_way()
        origins, entry = decode_ops(command)
        self.versions.met(index, entry)
        outcome = self.machine.apply(index, term, entry)
        self._behind.applied(len(command))
        self._clock.saw(self.machine.clock_ms)
        self._effects.applied.append(Applied(index, term, outcome))
        start = 0
        for origin in origins:
            self._queue.applied(origin)
            self._news.owed.add(origin.node)
            mine = origin.node == self.node_id and origin.incarnation == self._incarnation
            if mine and self._newborn.is_proof(origin.number):
                self._newborn.proved(self._led_by, self._raft.term)
            elif mine and self._proposals.answered(origin.number):
                self._effects.answers.append((origin.number, outcome.results[start : start + origin.ops]))
            start += origin.ops

    # Messages in.

    def _deliver(self, peer: str, epoch: int, message: Message) -> None:
        if self._guards.epoch and not self._connections.current(peer, epoch):
            return
        match message["type"]:
            case "append_entries" if message["term"] >= self._raft.term:
                self._heard_leader_at, self._led_by = self._now, peer
                (self._on_chunk if "serialized" in message else self._on_append)(peer, message)
            case "next_node_idx":
                self._on_next_index(peer, message)
            case "request_vote":
                self._on_request_vote(peer, message)
            case "response_vote":
                self._on_vote(peer, message)
            case "timeout_now":
                self._raft.deliver(peer, message)
            case "propose":
                self._on_propose(peer, message)

    def _on_append(self, peer: str, message: Message) -> None:
        if self._guards.trim:
            message, self._answer_as = trim(message, self._journal, self._raft.commit_index)
        try:
            self._raft.deliver(peer, message)
        finally:
            self._answer_as = None

    def _on_chunk(self, peer: str, message: Message) -> None:
        chunk: Chunk | None = message["serialized"]
        # Guard **snapcommit**: the library lifts the commit index by any such message, without a look at its log.
        commit = 0 if self._guards.snapcommit else message["commit_index"]
        self._raft.deliver(peer, dict(message, commit_index=commit, serialized=None))
        if chunk is None:
            self._reply(peer, self._journal.last_index + 1, success=False)
            return
        if self._guards.snapseq and is_here(chunk, self._journal, self._raft.applied_index):
            self._reply(peer, max(chunk.log_index, self._raft.applied_index) + 1, success=True)
            return
        self._reply(peer, self._journal.last_index + 1, success=False)
        arrived = self._incoming.accept(peer, chunk)
        if arrived is not None:
            self._arrived = arrived
            self._arrived_term = self._raft.term

    def _reply(self, peer: str, index: int, *, success: bool) -> None:
        self._emit(peer, {"type": "next_node_idx", "next_node_idx": index, "reset": False, "success": success})

    def _install_arrived(self) -> None:
        arrived = self._arrived
        # The rows that are replaced must be those on disk, so nothing may be on its way there.
        if arrived is None or not self._durability.settled or self._journal.dirty or not self._store.settle():
            return
        stale = self._raft.term != self._arrived_term or self._raft.leader != arrived.sender
        if stale or (self._guards.snapseq and is_here(arrived, self._journal, self._raft.applied_index)):
            self._arrived = None
            return
        message = {"type": "append_entries", "term": self._raft.term, "commit_index": 0, "serialized": True}
        self._raft.deliver(arrived.sender, message)
        if self._raft.applied_index != arrived.log_index:
            raise ConsensusBroken(
                f"the snapshot of index {arrived.log_index} was not loaded; see the log for the reason"
            )
        self._arrived = None

    def install(self) -> tuple[Entry, Entry]:
        """Called by the library: the arrived snapshot takes the place of state, log and stored rows."""
        arrived = self._arrived
        assert arrived is not None
        self.versions.take(arrived.head, arrived.log_index)
        rows = dict(arrived.rows)
        members = rows.get(MEMBERS_ROW)
        self.machine = self._machines.load((key, value) for key, value in arrived.rows if key != MEMBERS_ROW)
        gone = [key for key, _ in self._store.rows() if key not in rows]
        self._journal.write_rows(arrived.rows, gone, arrived.log_index, arrived.log_term)
        self._behind.replaced(arrived.log_index, self._now)
        self.membership.reset(arrived.log_index, self.members if members is None else unpack_members(members))
        self._raft.set_members(self._others())
        return arrived.head

    def _on_next_index(self, peer: str, message: Message) -> None:
        # Guard **term**: the library would count an acknowledgement of an earlier term in this one.
        stale = self._guards.term and message["term"] != self._raft.term
        if stale or self._raft.state != LEADER or not self._raft.tracks(peer):
            return
        if not message["success"]:
            self._raft.deliver(peer, message)
            return
        index = message["next_node_idx"] - 1
        self._outgoing.answered(peer, index)
        if not self._promises.told(peer, kept=message["counts"]) and peer in self.members:
            self._raft.restore_next_index(peer, index + 1)
            return
        if self._guards.sync:
            index = self._held.offer(peer, self._raft.term, index, self._durability.through)
        self._acknowledge(peer, index)

    def _acknowledge(self, peer: str, index: int) -> None:
        reply = {"type": "next_node_idx", "term": self._raft.term, "next_node_idx": index + 1}
        next_index = self._raft.next_index(peer)
        self._raft.deliver(peer, dict(reply, reset=False, success=True))
        if self._guards.pipeline:
            self._raft.restore_next_index(peer, next_index)

    def _show_held_replies(self) -> None:
        for peer, index in self._held.release(self._raft.term, self._durability.through):
            if self._raft.state == LEADER and self._raft.tracks(peer) and index > self._raft.match_index(peer):
                self._acknowledge(peer, index)

    def _on_request_vote(self, peer: str, message: Message) -> None:
        # Guard **stranger**: a node that was removed does not know it, and would unseat every leader in turn.
        # One that is being added again is heard: its term may be ahead, and it obeys no leader of a lower one.
        known = peer in self.members or peer in self.administration.learners
        led = self._raft.state == LEADER or self._now - self._heard_leader_at < self.settings.election_min_s
        if self._guards.stranger and not known and led:
            return
        if self._newborn.may_vote(message, self._now):
            self._raft.deliver(peer, message)
        if self._raft.leader is None and self.node_id in self.members and is_behind(message, self._journal):
            self._raft.stand_at(self._now + 0.2 * _SUCCESSION_S * self._rng.random())

    def _on_vote(self, peer: str, message: Message) -> None:
        if peer not in self.members:
            return
        if self._guards.vote and (message["term"] != self._raft.term or not self._votes.admits(peer, message["term"])):
            return
        for voter, vote in self._newborn.counted(peer, message, self._others()):
            self._raft.deliver(voter, vote)

    def _on_propose(self, peer: str, message: Message) -> None:
        if self._raft.state == LEADER:
            for number, count, ops in message["proposals"]:
                self._queue.offer(Origin(peer, message["incarnation"], number, count), ops)

    # Messages out.

    def _emit(self, peer: str, message: Message) -> None:
        """What the library sends, and replies of our own."""
        kind = message["type"]
        if kind == "next_node_idx":
            message["term"] = self._raft.term
            if message["reset"] and not self._may_reset(peer, message):
                return
            if self._answer_as is not None and message["success"]:
                message["next_node_idx"] = self._answer_as
            message["counts"] = self._newborn.counts(self._led_by, self._raft.term)
        elif kind == "append_entries" and "serialized" in message and self._guards.snapcommit:
            message["commit_index"] = 0
        elif kind == "apply_command":
            return
        self._outbox.put(peer, message)

    def _may_reset(self, peer: str, message: Message) -> bool:
        if not self._guards.reset:
            return True
        if message["next_node_idx"] <= self._journal.last_index:
            # A conflict. What is applied here is the leader's too; going back one entry at a time takes for ever.
            message["next_node_idx"] = self._raft.applied_index + 1
        return self._resets.permits(peer, self._raft.term, message["next_node_idx"], self._now)

    def next_chunk(self, peer: str) -> Chunk | None:
        """Called by the library for a follower that is behind the journal."""
        return self._outgoing.next_chunk(peer, self._now)

    def _send_news(self) -> None:
        reach = self._journal.last_index, self._raft.commit_index
        if self._news.racing(self._now):
            self._news.race(self._raft.ahead(reach[1]), len(self.members) // 2, reach[1], self._now)
        if tell := self._news.tell(*reach, self._raft.followers, self._now, more=self._outgoing.sending):
            self._raft.send_now(tell)

    # The disk.

    def _appended(self, index: int, command: bytes) -> None:
        if command[0] == KIND_MEMBERS and self.membership.appended(index, command):
            self._raft.set_members(self._others())

    def _truncated(self, index: int) -> None:
        self._durability.truncated(index)
        if self.membership.truncated(index):
            self._raft.set_members(self._others())

    def _others(self) -> list[str]:
        return [node for node in self.members if node != self.node_id]

    def _finish(self) -> None:
        """Guard **sync**: the turn's changes go to the disk, and what promises them waits for it."""
        batch = self._journal.take_batch()
        if batch is not None:
            self._effects.write = (self._durability.written(self._journal.last_index, self._now), batch)
        self._effects.rows = self._journal.take_rows()
        self._effects.sends = self._outbox.leave(self._raft.term)
