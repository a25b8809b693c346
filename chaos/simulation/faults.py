"""The hand that breaks things, drawn from the seed."""

from collections.abc import Callable

from chaos.simulation.clients import NAMESPACES
from chaos.simulation.network import Network
from chaos.simulation.node import Node
from chaos.simulation.profiles import Profile
from chaos.simulation.world import World
from resourcelease.model.ops import Call, Heartbeat, pack_op

__all__ = ["Faults"]


class Faults:
    """Faults of a profile until ``stop``."""

    def __init__(self, world: World, network: Network, nodes: list[Node], spares: list[Node], profile: Profile) -> None:
        self._world = world
        self._network = network
        self._nodes = nodes
        self._spares = spares
        self._profile = profile
        self._stopped = False
        self._count = world.faults
        self._flipped: set[str] = set()
        # Whose disk was lost last.
        self._lost: Node | None = None
        # Changes that were asked for and not answered yet.
        self.open_changes = 0

    def start(self) -> None:
        """Puts the first of each kind on the calendar."""
        profile = self._profile
        for every_s, fault in (
            (profile.kill_every_s, self._kill),
            (profile.power_every_s, self._power),
            (profile.blackout_every_s, self._blackout),
            (profile.reset_every_s, self._reset),
            (profile.cut_every_s, self._cut),
            (profile.split_every_s, self._split),
            (profile.rerun_every_s, self._rerun),
            (profile.pause_every_s, self._pause),
            (profile.wall_jump_every_s, self._wall_jump),
            (profile.flip_every_s, self._flip),
            (profile.lose_every_s, self._lose),
            (profile.forget_every_s, self._forget),
            (profile.full_every_s, self._fill),
            (profile.transfer_every_s, self._transfer),
            (profile.change_every_s if self._spares else 0.0, self._change),
        ):
            if every_s:
                self._world.after(self._world.rng.expovariate(1.0 / every_s), self._again, every_s, fault)

    def stop(self) -> None:
        """No more faults; what is broken is mended."""
        self._stopped = True
        self._network.heal()
        for node in self._nodes:
            node.disk.faults.stall_rate = 0.0
            node.disk.faults.full = False
            node.start()
        if self._world.rng.random() < self._profile.stuck_rate:
            self._stick_a_disk()

    def _stick_a_disk(self) -> None:
        """With all others in order, a node that cannot write must not keep them from their work."""
        leader = self._leader()
        if leader is None or len(self._nodes) < 3 or any(node.broken for node in self._nodes):
            return
        self._world.tell("faults", f"the disk of {leader.name} is stuck for good")
        leader.disk.faults.stuck = True
        self._count["disk stuck"] += 1

    def _again(self, every_s: float, fault: Callable[[], None]) -> None:
        if self._stopped:
            return
        fault()
        self._world.after(self._world.rng.expovariate(1.0 / every_s), self._again, every_s, fault)

    def _pick(self) -> Node:
        # Leaders are where the harm is.
        leaders = [node for node in self._nodes if node.host is not None and node.host.is_leader]
        rng = self._world.rng
        return rng.choice(leaders) if leaders and rng.random() < 0.4 else rng.choice(self._nodes)

    def _pair(self) -> tuple[Node, Node]:
        first = self._pick()
        others = [node for node in self._nodes if node is not first]
        return first, self._world.rng.choice(others or [first])

    def _down(self, node: Node, *, silent: bool) -> None:
        node.stop(silent=silent)
        rng = self._world.rng
        down_s = rng.uniform(0.01, self._profile.down_max_s) if rng.random() < 0.7 else 0.01
        self._world.after(down_s, node.start)

    def _kill(self) -> None:
        self._count["kill"] += 1
        self._down(self._pick(), silent=False)

    def _power(self) -> None:
        self._count["power"] += 1
        self._down(self._pick(), silent=True)

    def _blackout(self) -> None:
        self._count["blackout"] += 1
        self._world.tell("faults", "the power of all nodes goes")
        for node in self._nodes:
            self._down(node, silent=True)

    def _reset(self) -> None:
        first, second = self._pair()
        self._count["reset"] += 1
        self._world.tell("faults", f"the connection of {first.name} and {second.name} breaks")
        self._network.reset(first.name, second.name)

    def _cut(self) -> None:
        rng = self._world.rng
        node = self._pick()
        until = self._world.now + rng.uniform(0.1, self._profile.cut_max_s)
        others = [other for other in self._nodes if other is not node]
        rng.shuffle(others)
        others = others[: rng.randint(1, len(others))] if others else []
        way = rng.choice(("to", "from", "both"))
        names = ", ".join(other.name for other in others)
        self._count["cut"] += 1
        self._world.tell("faults", f"{node.name} is cut off {way} {names} until {until:.2f}")
        for other in others:
            if way != "from":
                self._network.cut(node.name, other.name, until)
            if way != "to":
                self._network.cut(other.name, node.name, until)
            if rng.random() < self._profile.cut_reset_rate:
                self._network.reset(node.name, other.name)

    def _split(self) -> None:
        rng = self._world.rng
        until = self._world.now + rng.uniform(0.5, self._profile.split_max_s)
        leaders = [node for node in self._nodes if node.host is not None and node.host.is_leader]
        first = rng.choice(leaders or self._nodes)
        rest = [node for node in self._nodes if node is not first]
        rng.shuffle(rest)
        # Often a full minority, which is where the most can be believed wrongly.
        minority = [first, *rest[: rng.choice((0, (len(self._nodes) - 1) // 2 - 1)) if len(self._nodes) > 2 else 0]]
        self._count["split"] += 1
        self._world.tell("faults", f"{', '.join(node.name for node in minority)} are split off until {until:.2f}")
        majority = [node for node in rest if node not in minority]
        self._separate(minority, majority, until - self._world.now)

    def _rerun(self) -> None:
        """A leader with one follower gathers a tail, loses it to another leader, and leads again.

        What was said of the tail in the first term must count for nothing in the third.
        """
        leader = self._leader()
        if leader is None or len(self._nodes) < 5:
            return
        others = [node for node in self._nodes if node is not leader]
        self._world.rng.shuffle(others)
        self._count["rerun"] += 1
        self._world.tell("faults", f"{leader.name} and {others[0].name} are split off, with much to do")
        for number in range(25):
            op = Heartbeat(Call(NAMESPACES[0], f"tail-{self._world.now:.3f}-{number}"))
            self._world.after(0.02 * number, leader.propose, [pack_op(op)], 3.0, _nobody)
        self._separate([leader, others[0]], others[1:], 1.0)
        term = leader.host.term if leader.host is not None else 0
        self._world.after(0.1, self._rerun_deposed, leader, others, term, 40)

    def _rerun_deposed(self, first: Node, others: list[Node], term: int, tries: int) -> None:
        leader = self._leader(but=first)
        if self._stopped or tries == 0:
            return
        if leader is None:
            self._separate([first, others[0]], others[1:], 0.1)
            self._world.after(0.05, self._rerun_deposed, first, others, term, tries - 1)
            return
        self._world.after(0.25, self._ask, leader, "transfer", first.name)
        self._world.after(0.25, self._rerun_leads, first, others, term, 80)

    def _rerun_leads(self, first: Node, others: list[Node], term: int, tries: int) -> None:
        if self._stopped or tries == 0:
            return
        if first.host is None or not first.host.is_leader or first.host.term == term:
            self._world.after(0.01, self._rerun_leads, first, others, term, tries - 1)
            return
        self._world.tell("faults", f"{first.name} leads again, and is heard by {others[1].name} only")
        for node in (others[0], *others[2:]):
            self._network.cut(first.name, node.name, self._world.now + 1.5)

    def _leader(self, but: Node | None = None) -> Node | None:
        for node in self._nodes:
            if node.host is not None and node.host.is_leader and node is not but:
                return node
        return None

    def _separate(self, these: list[Node], those: list[Node], for_s: float) -> None:
        for one in these:
            for other in those:
                self._network.cut(one.name, other.name, self._world.now + for_s)
                self._network.cut(other.name, one.name, self._world.now + for_s)

    def _pause(self) -> None:
        node = self._pick()
        until = self._world.now + self._world.rng.uniform(0.05, self._profile.pause_max_s)
        self._count["pause"] += 1
        self._world.tell("faults", f"{node.name} is stopped until {until:.2f}")
        node.pause(until)

    def _wall_jump(self) -> None:
        node = self._pick()
        self._count["wall jump"] += 1
        node.jump_wall_clock(self._world.rng.randint(-3_600_000, 3_600_000))

    def _flip(self) -> None:
        """At most a minority of the nodes is damaged, and only while it is down: pages in memory are not modelled."""
        node = self._pick()
        damaged = self._flipped | {node.name}
        if len(damaged) * 2 >= len(self._nodes):
            return
        node.stop(silent=True)
        if node.disk.flip_a_bit():
            node.damaged = True
            self._flipped.add(node.name)
            self._count["flip"] += 1
            self._world.tell("faults", f"a bit flips on the disk of {node.name}")
        self._world.after(self._world.rng.uniform(0.01, 1.0), node.start)

    def _lose(self) -> None:
        self._lose_disk(self._pick(), 1.0)

    def _lose_disk(self, node: Node, within_s: float) -> bool:
        """One disk at a time: the next is lost only when nobody is catching up from the last."""
        if self._lost is not None and (self._lost.newborn or not self._lost.running):
            return False
        self._lost = node
        node.stop(silent=True)
        node.disk.lose_everything()
        self._count["disk lost"] += 1
        self._world.tell("faults", f"the disk of {node.name} is lost")
        self._world.after(self._world.rng.uniform(0.01, within_s), node.start)
        return True

    def _forget(self) -> None:
        """A bare majority goes on; one of it loses its disk, and meets those who were away, without the rest.

        What was acknowledged meanwhile is known to a minority then, which is cut off.
        """
        leader = self._leader()
        others = [node for node in self._nodes if node is not leader and node.running]
        if leader is None or len(others) < len(self._nodes) - 1 or len(others) < 2:
            return
        self._world.rng.shuffle(others)
        half = len(others) // 2
        away, near = others[:half], others[half:]
        self._count["forgotten"] += 1
        self._world.tell("faults", f"{', '.join(node.name for node in away)} are cut off, and will meet {near[0].name}")
        self._separate([leader, *near], away, 1.0)
        self._world.after(self._world.rng.uniform(0.2, 0.6), self._forgotten, leader, near, away)

    def _forgotten(self, leader: Node, near: list[Node], away: list[Node]) -> None:
        if not self._stopped and self._lose_disk(near[0], 0.05):
            after_s = self._world.rng.uniform(0.05, 0.4)
            self._world.after(after_s, self._separate, [leader, *near[1:]], [near[0], *away], 3.0)

    def _fill(self) -> None:
        """A disk has no space for a while; one of a leader more often, and now and then a majority."""
        node = self._pick()
        until = self._world.now + self._world.rng.uniform(0.1, self._profile.full_max_s)
        node.disk.faults.full = True
        self._count["disk full"] += 1
        self._world.tell("faults", f"the disk of {node.name} is full until {until:.2f}")
        self._world.at(until, self._free, node)

    def _free(self, node: Node) -> None:
        node.disk.faults.full = False

    def _transfer(self) -> None:
        leader = self._leader()
        if leader is not None:
            self._ask(leader, "transfer", "")

    def _change(self) -> None:
        for leader in self._nodes:
            if leader.host is None or not leader.host.is_leader:
                continue
            members = leader.host.members
            spare = self._world.rng.choice(self._spares)
            action = "remove" if spare.name in members else "add"
            if action == "remove" and spare is leader:
                action = "transfer"
            self._ask(leader, action, spare.name if action != "transfer" else "")
            return

    def _ask(self, leader: Node, action: str, node: str) -> None:
        self._world.tell("faults", f"{leader.name} is asked to {action} {node}".rstrip())
        self.open_changes += 1
        self._count[action] += 1
        leader.administer(action, node, 4.0, lambda refusal: self._told(leader, action, node, refusal))

    def _told(self, leader: Node, action: str, node: str, refusal: str) -> None:
        self.open_changes -= 1
        self._world.tell(leader.name, f"{action} {node}: {refusal or 'done'}")


def _nobody(answer: object) -> None:
    """Nobody waits for the answer."""
