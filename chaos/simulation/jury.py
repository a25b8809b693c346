"""The checkers of a run, and what they are told of it."""

from collections.abc import Callable, Mapping, Sequence

from chaos.checkers import (
    Acknowledged,
    Commits,
    HeldByMajority,
    Items,
    LeaseTime,
    LogMatching,
    OneHistory,
    OneLeaderATerm,
    SameStates,
    StaleLeader,
    Violation,
)
from chaos.simulation.machines import CLUSTER_ID, Watched
from chaos.simulation.node import Node
from resourcelease.consensus.effects import Effects
from resourcelease.consensus.host import Host
from resourcelease.machine.machine import Machine

__all__ = ["Histories", "Jury"]

# Above the fallback of 2 s on a slow clock, and the next heartbeat after it.
_STALE_LEADER_S = 4.0
# All rows of a state are looked at after every so many entries, beside those of states that are loaded.
_ALL_ROWS_EVERY = 64
_NOTHING_SEEN = (0, 0)


class Histories:
    """The judges of what the machines did; they know nothing of Raft."""

    def __init__(self) -> None:
        self.history = OneHistory()
        self.items = Items()
        self.acknowledged = Acknowledged(self.items)
        self.states = SameStates()
        # By node: the machine that was seen last, and the event that it was at.
        self._seen: dict[str, tuple[Watched, int]] = {}

    def turned(self, node: str, machine: Watched, written: Sequence[tuple[int, bytes]]) -> None:
        """A node has applied entries, or loaded a state, and wrote these records (first event, bytes)."""
        seen, before = self._seen.get(node, (None, 0))
        if seen is not machine:
            before = machine.began_at
        after = machine.sequence_number
        self._seen[node] = (machine, after)
        for record in self.history.applied(node, before, after, written):
            self.items.event(record)
            self.acknowledged.event(record)
        for index, total in machine.notes:
            self.states.state(node, index, "rows", total)
        machine.notes.clear()
        self.states.state(node, machine.applied_index, "chain", machine.chain())

    def ended(self, node: str, machine: Machine) -> None:
        """A node has come as far as everybody."""
        self.states.state(node, machine.applied_index, "state", machine.digest())
        for namespace in machine.namespaces():
            view = machine.queue(namespace)
            assert view is not None
            places = self.items.places(namespace)
            told = [places.get(place, 0) for place in ("waiting", "active", "dead", "completed", "discarded")]
            counted = [view.pending + view.delayed, view.active, view.dead, view.completed, view.discarded]
            if told != counted:
                raise Violation(
                    "no item is lost",
                    f"waiting, active, dead, completed, discarded in {namespace}: {node} has {counted}, by the events "
                    f"it should be {told}",
                )

    def folded(self, node: str, machine: Machine) -> None:
        """The events alone give the state."""
        self.history.folds_to(CLUSTER_ID, node, machine)


class Jury:
    """Everything that is judged while a simulated cluster lives."""

    def __init__(self, nodes: Sequence[Node], now: Callable[[], float], rate_max: float) -> None:
        self._nodes = nodes
        self._now = now
        self.histories = Histories()
        self.commits = Commits()
        self.term_max = 0
        self._leaders = OneLeaderATerm()
        self._logs = LogMatching()
        self._held = HeldByMajority()
        self._stale = StaleLeader(_STALE_LEADER_S)
        self._time = LeaseTime(rate_max)
        self._seen_commit: dict[str, tuple[int, int]] = {}
        # By node: the configuration after its last turn. A configuration is never changed, but replaced.
        self._members: dict[str, Mapping[str, str]] = {}

    def heard(self, node: str, peer: str) -> None:
        """A message of a peer reached a node."""
        self._stale.heard(node, peer, self._now())

    def stopped(self, node: Node) -> None:
        """A node refused to go on."""
        if not node.damaged:
            raise Violation("a sound node goes on", f"{node.name} stopped: {node.broken}")

    def truncated(self) -> None:
        """Some disk has let go of entries."""
        self._held.recheck(self._holders)

    def turned(self, node: Node, effects: Effects) -> None:
        """A node has done a turn, and nothing of it has left the node yet."""
        host = node.host
        assert host is not None
        if effects.write is not None:
            batch = effects.write[1]
            process = f"{node.name}/{node.life}"
            if batch.truncate_from:
                self._logs.truncated(process, batch.truncate_from)
            if batch.appends:
                self._logs.appended(process, batch.appends)
                self._time.made([(entry.index, entry.term) for entry in batch.appends], self._now())
        members = host.members
        if host.is_leader:
            term = host.term
            self.term_max = max(self.term_max, term)
            self._leaders.leads(node.name, term)
            self._stale.leads(node.name, members, self._now())
        else:
            self._stale.follows(node.name)
        self._check_commits(node, host)
        self._members[node.name] = members
        machine = node.machine
        if effects.applied:
            last = effects.applied[-1]
            self._time.applied(last.index, last.term, machine.clock_ms)
            if last.index % _ALL_ROWS_EVERY == 0:
                machine.note()
        if effects.applied or machine.notes:
            written = [(record.sequence, record.encoded) for a in effects.applied for record in a.outcome.records]
            self.histories.turned(node.name, machine, written)

    def _check_commits(self, node: Node, host: Host) -> None:
        life, seen = self._seen_commit.get(node.name, _NOTHING_SEEN)
        commit = host.commit_index
        if life == node.life and seen == commit:
            return
        self._seen_commit[node.name] = (node.life, commit)
        first = max(seen + 1 if life == node.life else 1, host.journal.first_index)
        for index in range(first, min(commit, host.journal.last_index) + 1):
            data, _, term = host.journal.entry(index)
            if index > self.commits.highest and host.is_leader:
                # In one turn, what is committed is so before the configuration changes.
                self._held.committed(node.name, index, term, self._members.get(node.name, ()), host.members)
            self.commits.committed(node.name, index, term, data)
        self._held.check(self._holders)

    def _holders(self, index: int, term: int) -> list[str]:
        return [node.name for node in self._nodes if node.disk.holds(index, term)]
