"""One seed: a cluster lives through its faults, and is then given peace to come together again."""

import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from chaos.checkers import Violation
from chaos.simulation.callers import Caller
from chaos.simulation.clients import NAMESPACES, Producer, crew
from chaos.simulation.disk import Disk, DiskFaults
from chaos.simulation.faults import Faults
from chaos.simulation.jury import Jury
from chaos.simulation.network import Network
from chaos.simulation.node import Node, Observer
from chaos.simulation.plants import Plant
from chaos.simulation.profiles import PROFILES, Profile, network_faults
from chaos.simulation.world import World
from resourcelease.consensus.settings import Settings
from resourcelease.machine.machine import Machine

__all__ = ["CLEAN", "LIVENESS", "SAFETY", "Result", "profile_of", "run_seed"]

# Exit codes.
CLEAN, LIVENESS, SAFETY = 0, 2, 3

# How long a cluster in peace may take to come together.
_PEACE_S = 20.0
# Then nobody has a reason to stand for election.
_CALM_S = 5.0
# What falls due on the lease clock is seen to within this time.
_DUE_MS = 500


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
    entries: int = 0
    # How often what went wrong, by kind.
    faults: Counter[str] = field(default_factory=Counter)


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
    except Exception as broken:  # whatever the code lets through is a defect, and a sweep goes on to the next seed
        code, detail = SAFETY, f"the code breaks: {type(broken).__name__}: {broken}"
        cluster.world.tell("verdict", traceback.format_exc())
    cluster.world.tell("verdict", detail or "clean")
    return Result(
        seed,
        profile.name,
        len(cluster.founders),
        code,
        detail,
        cluster.world.now,
        cluster.acknowledged.count,
        cluster.jury.term_max,
        cluster.jury.commits.highest,
        cluster.world.faults,
    )


class _Cluster:
    def __init__(self, world: World, profile: Profile, nodes: int, plant: Plant | None) -> None:
        self.world = world
        self.profile = profile
        plant = plant or Plant("", "")
        rng = world.rng
        count = nodes or rng.choice(profile.nodes)
        self.network = Network(world, network_faults(profile))
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
        # Some clusters are told that they are founded; others find out that everybody's disk is empty.
        told = rng.random() < 0.5

        def founding(life: int) -> bool:
            return plant.always_founding or (told and life == 1)

        def never(life: int) -> bool:
            return False

        self.nodes: list[Node] = []
        jury = self.jury = Jury(self.nodes, lambda: world.now, 1.0 + profile.clock_drift)
        observer = Observer(turned=jury.turned, heard=jury.heard, stopped=jury.stopped)
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
                founding=founding if name in bootstrap else never,
            )
            node.disk.on_truncate = jury.truncated
            node.run_clock_at(1.0 + rng.uniform(-profile.clock_drift, profile.clock_drift))
            self.network.add(name, node)
            self.nodes.append(node)
        self.founders = self.nodes[:count]
        self.acknowledged = jury.histories.acknowledged
        self.clients: list[Caller] = crew(world, self.nodes, self.acknowledged, profile.clients, profile.think_s)
        self.faults = Faults(world, self.network, self.nodes, self.nodes[count:], profile)

    def live(self) -> None:
        """The safety phase."""
        self.world.tell("world", f"profile {self.profile.name}, {len(self.nodes)} nodes")
        for node in self.nodes:
            self.world.after(self.world.rng.uniform(0.0, self.profile.start_max_s), node.start)
        for client in self.clients:
            client.start()
        self.world.after(1.0, self.faults.start)
        self.world.run_until(self.profile.safety_s)

    def make_peace(self) -> str:
        """The liveness phase: why the cluster did not come together, or nothing."""
        world = self.world
        world.tell("world", "peace: faults end, nodes start")
        self.faults.stop()
        if self._cannot_come_together():
            return ""
        # With the calls going on, whoever was away has to come as far as the log was when peace came.
        goal = self.jury.commits.highest
        world.run_until(world.now + 2.0)
        if not world.run_until(world.now + _PEACE_S, lambda: self._all_passed(goal)):
            return f"under load, not all nodes reached index {goal} in {_PEACE_S} s of peace; {self._where()}"
        for client in self.clients:
            client.stop()
        before = self.acknowledged.count
        doors = [node for node in self.founders if _sound(node)]
        probe = Producer("probe", NAMESPACES[0], world, doors, self.acknowledged, 0.1)
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
        term = self.jury.term_max
        world.run_until(world.now + _CALM_S)
        if self.jury.term_max > term:
            return f"an election in peace: term {term} became {self.jury.term_max}; {self._where()}"
        return self._overdue()

    def _overdue(self) -> str:
        """Without any traffic, the leader sees to what falls due."""
        for node in self._members():
            if node.host is None or not node.host.is_leader:
                continue
            due_ms = Machine.next_due_ms(node.machine)
            now_ms = node.host.clock_ms(node.local(self.world.now))
            if due_ms is not None and now_ms > due_ms + _DUE_MS:
                return f"at {now_ms} on the lease clock, {node.name} has not seen to what fell due at {due_ms}"
        return ""

    def _cannot_come_together(self) -> bool:
        broken = [node for node in self.founders if node.broken]
        # A node that lost its disk, or may have, votes for nobody before it has caught up. Where founders were not told
        # that they found a cluster, that is all of them until the first leader's first entry has come.
        waiting = [node for node in self.founders if node.newborn]
        if (broken or waiting) and (len(broken) + len(waiting)) * 2 >= len(self.founders):
            return True
        # A cluster is founded by all; there is nothing in the log yet but what every log begins with.
        return bool(broken) and self.jury.commits.highest <= 1

    def _members(self) -> list[Node]:
        leader = next((node for node in self.nodes if node.host is not None and node.host.is_leader), None)
        if leader is None or leader.host is None:
            return []
        return [node for node in self.nodes if node.name in leader.host.members and _sound(node)]

    def _together(self) -> bool:
        members = self._members()
        applied = {node.host.applied_index if node.host is not None else -1 for node in members}
        return len(applied) == 1 and applied == {self.jury.commits.highest}

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
        histories = self.jury.histories
        members = self._members()
        for node in members:
            histories.ended(node.name, node.machine)
        histories.folded(members[0].name, members[0].machine)


def _sound(node: Node) -> bool:
    return not node.broken and not node.disk.faults.stuck
