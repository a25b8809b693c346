"""One seed: a cluster lives through its faults, and is then given peace to come together again."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from chaos.checkers import (
    Acknowledged,
    Applied,
    Commits,
    HeldByMajority,
    LogMatching,
    OneLeaderATerm,
    StaleLeader,
    Violation,
)
from chaos.simulation.clients import Client
from chaos.simulation.disk import Disk, DiskFaults
from chaos.simulation.faults import Faults
from chaos.simulation.network import Network, NetworkFaults
from chaos.simulation.node import Node, Observer
from chaos.simulation.plants import Plant
from chaos.simulation.profiles import PROFILES, Profile
from chaos.simulation.world import World
from resourcelease.consensus.effects import Effects
from resourcelease.consensus.settings import Settings

__all__ = ["CLEAN", "LIVENESS", "SAFETY", "Result", "profile_of", "run_seed"]

# Exit codes.
CLEAN, LIVENESS, SAFETY = 0, 2, 3

# How long a cluster in peace may take to come together.
_PEACE_S = 20.0
# Then nobody has a reason to stand for election.
_CALM_S = 5.0
# Above the fallback of 2 s on a slow clock, and the next heartbeat after it.
_STALE_LEADER_S = 4.0


@dataclass(frozen=True, slots=True)
class Result:
    """How a seed ended."""

    seed: int
    profile: str
    nodes: int
    code: int
    detail: str
    # Virtual seconds, and operations that were acknowledged.
    lived_s: float
    acknowledged: int
    terms: int


def profile_of(seed: int, plant: Plant | None) -> Profile:
    """The profile that a seed draws."""
    profiles = PROFILES
    if plant is not None and plant.profiles:
        profiles = tuple(profile for profile in PROFILES if profile.name in plant.profiles)
    return profiles[seed % len(profiles)]


def run_seed(
    seed: int,
    *,
    nodes: int = 0,
    plant: Plant | None = None,
    profile: Profile | None = None,
    tell: Callable[[str], None] | None = None,
) -> Result:
    """Runs one seed; the same arguments give the same run."""
    profile = profile or profile_of(seed, plant)
    cluster = _Cluster(World(seed, tell), profile, nodes, plant)
    code, detail = CLEAN, ""
    try:
        cluster.live()
        detail = cluster.make_peace()
        code = LIVENESS if detail else CLEAN
    except Violation as violation:
        code, detail = SAFETY, str(violation)
    except AssertionError as broken:
        code, detail = SAFETY, f"an invariant of the code does not hold: {broken}"
    cluster.world.tell("verdict", detail or "clean")
    return Result(
        seed,
        profile.name,
        len(cluster.founders),
        code,
        detail,
        cluster.world.now,
        len(cluster.acknowledged),
        cluster.term_max,
    )


class _Cluster:
    def __init__(self, world: World, profile: Profile, nodes: int, plant: Plant | None) -> None:
        self.world = world
        self.profile = profile
        plant = plant or Plant("", "")
        rng = world.rng
        count = nodes or rng.choice(profile.nodes)
        self.network = Network(
            world,
            NetworkFaults(
                delay_min_s=profile.delay_min_s,
                delay_max_s=profile.delay_max_s,
                slow_rate=profile.slow_rate,
                slow_max_s=profile.slow_max_s,
                twice_rate=profile.twice_rate,
                twice_max_s=profile.twice_max_s,
            ),
        )
        self.acknowledged = Acknowledged()
        self._leaders = OneLeaderATerm()
        self._logs = LogMatching()
        self._commits = Commits()
        self._applied = Applied()
        self._held = HeldByMajority()
        self._stale = StaleLeader(_STALE_LEADER_S)
        self._seen_commit: dict[str, tuple[int, int]] = {}
        self.term_max = 0
        settings = replace(
            Settings(),
            election_max_s=profile.election_max_s,
            flush_entries=profile.flush_entries,
            keep_entries=profile.keep_entries,
            chunk_bytes=profile.chunk_bytes,
            append_bytes_max=profile.append_bytes,
            entry_bytes_max=min(profile.append_bytes // 4, Settings().entry_bytes_max),
            learner_gap_max=5,
        )
        names = [f"n{number}" for number in range(1, count + profile.spare_nodes + 1)]
        bootstrap = {name: f"{name}:1" for name in names[:count]}
        observer = Observer(turned=self._turned, heard=self._heard, stopped=_stopped)
        self.nodes: list[Node] = []
        for name in names:
            faults = DiskFaults(
                sync_max_s=profile.sync_max_s, stall_rate=profile.stall_rate, stall_max_s=profile.stall_max_s
            )
            for defect in plant.disk:
                setattr(faults, defect, True)
            node = Node(
                name,
                world=world,
                network=self.network,
                disk=Disk(world, name, faults),
                observer=observer,
                settings=settings,
                guards=plant.guards(),
                bootstrap=bootstrap if name in bootstrap else {},
                machine=plant.machine,
            )
            node.disk.on_truncate = self._truncated
            node.run_clock_at(1.0 + rng.uniform(-profile.clock_drift, profile.clock_drift))
            self.network.add(name, node)
            self.nodes.append(node)
        self.founders = self.nodes[:count]
        self.clients = [
            Client(f"c{number}", world, self.nodes, self.acknowledged, profile.think_s)
            for number in range(profile.clients)
        ]
        self.faults = Faults(world, self.network, self.nodes, self.nodes[count:], profile)

    def live(self) -> None:
        """The safety phase."""
        self.world.tell("world", f"profile {self.profile.name}, {len(self.nodes)} nodes")
        for node in self.nodes:
            self.world.after(self.world.rng.uniform(0.0, 0.2), node.start)
        for client in self.clients:
            client.start()
        self.world.after(1.0, self.faults.start)
        self.world.run_until(self.profile.safety_s)

    def make_peace(self) -> str:
        """The liveness phase: why the cluster did not come together, or nothing."""
        world = self.world
        world.tell("world", "peace: faults end, nodes start")
        self.faults.stop()
        if self._majority_is_broken():
            return ""
        # With the calls going on, whoever was away has to come as far as the log was when peace came.
        goal = self._commits.highest
        world.run_until(world.now + 2.0)
        if not world.run_until(world.now + _PEACE_S, lambda: self._all_passed(goal)):
            return f"under load, not all nodes reached index {goal} in {_PEACE_S} s of peace; {self._where()}"
        for client in self.clients:
            client.stop()
        before = len(self.acknowledged)
        probe = Client("probe", world, [node for node in self.founders if _sound(node)], self.acknowledged, 0.1)
        probe.start()
        if not world.run_until(world.now + _PEACE_S, lambda: probe.answered >= 3):
            return f"no answer in {_PEACE_S} s of peace; {before} operations before it; {self._where()}"
        probe.stop()
        if not world.run_until(world.now + _PEACE_S, self._together):
            return f"the nodes did not come together in {_PEACE_S} s of peace; {self._where()}"
        self._check_states()
        world.run_until(world.now + _PEACE_S, lambda: self.faults.open_changes == 0)
        # A leader that has just handed over has a successor by then.
        world.run_until(world.now + 1.5)
        term = self.term_max
        world.run_until(world.now + _CALM_S)
        if self.term_max > term:
            return f"an election in peace: term {term} became {self.term_max}; {self._where()}"
        return ""

    def _majority_is_broken(self) -> bool:
        broken = [node for node in self.founders if node.broken]
        return len(broken) * 2 >= len(self.founders) and bool(broken)

    def _members(self) -> list[Node]:
        leader = next((node for node in self.nodes if node.host is not None and node.host.is_leader), None)
        if leader is None or leader.host is None:
            return []
        return [node for node in self.nodes if node.name in leader.host.members and _sound(node)]

    def _together(self) -> bool:
        members = self._members()
        applied = {node.host.applied_index if node.host is not None else -1 for node in members}
        return len(applied) == 1 and applied == {self._commits.highest}

    def _all_passed(self, index: int) -> bool:
        members = self._members()
        return bool(members) and all(node.host is not None and node.host.applied_index >= index for node in members)

    def _where(self) -> str:
        return "; ".join(
            f"{node.name} "
            + (
                f"term {node.host.term} log {node.host.journal.last_index} commit {node.host.commit_index} "
                f"applied {node.host.applied_index}"
                if node.host is not None
                else node.broken or "down"
            )
            for node in self.nodes
        )

    def _check_states(self) -> None:
        members = self._members()
        for node in members:
            self.acknowledged.check(node.name, node.machine.answers, node.machine.effects)
            if node.machine.digest() != members[0].machine.digest():
                raise Violation("equal states", f"{node.name} and {members[0].name} differ at the end")

    # What the checkers are told.

    def _heard(self, node: str, peer: str) -> None:
        self._stale.heard(node, peer, self.world.now)

    def _turned(self, node: Node, effects: Effects) -> None:
        host = node.host
        assert host is not None
        if effects.write is not None:
            batch = effects.write[1]
            if batch.truncate_from:
                self._logs.truncated(f"{node.name}/{node.life}", batch.truncate_from)
            if batch.appends:
                self._logs.appended(f"{node.name}/{node.life}", batch.appends)
        if host.is_leader:
            self.term_max = max(self.term_max, host.term)
            self._leaders.leads(node.name, host.term)
            self._stale.leads(node.name, host.members, self.world.now)
        else:
            self._stale.follows(node.name)
        self._check_commits(node)
        for applied in effects.applied:
            self._applied.applied(node.name, applied.outcome.records)
        if effects.applied:
            self._applied.state(node.name, effects.applied[-1].index, node.machine.digest())

    def _check_commits(self, node: Node) -> None:
        host = node.host
        assert host is not None
        life, seen = self._seen_commit.get(node.name, (0, 0))
        commit = host.commit_index
        if life == node.life and seen == commit:
            return
        self._seen_commit[node.name] = (node.life, commit)
        first = max(seen + 1 if life == node.life else 1, host.journal.first_index)
        for index in range(first, min(commit, host.journal.last_index) + 1):
            data, _, term = host.journal.entry(index)
            if index > self._commits.highest and host.is_leader:
                self._held.committed(node.name, index, term, host.members)
            self._commits.committed(node.name, index, term, data)
        self._held.check(self._holders)

    def _truncated(self) -> None:
        self._held.recheck(self._holders)

    def _holders(self, index: int, term: int) -> list[str]:
        return [node.name for node in self.nodes if node.disk.holds(index, term)]


def _sound(node: Node) -> bool:
    return not node.broken and not node.disk.faults.stuck


def _stopped(node: Node) -> None:
    if not node.damaged:
        raise Violation("a sound node goes on", f"{node.name} stopped: {node.broken}")
