"""Networks that divide, lie, flap and crawl."""

from collections.abc import Mapping

from chaos.drills.network import CLIENTS, Link, Rule, between, isolated
from chaos.drills.scene import Broken, Drill, Fault, Scene
from resourcelease.client import ResourceLeaseError

__all__ = ["DRILLS"]


async def _apply(scene: Scene, words: str, rules: Mapping[Link, Rule]) -> tuple[Fault, float]:
    fault = scene.fault(words)
    await scene.cluster.apply(rules)
    return fault, scene.history.now()


async def _heal(scene: Scene, fault: Fault, what: str) -> None:
    await scene.cluster.heal()
    scene.over(fault, "the network is whole again")
    await scene.recovered(f"the end of {what}", scene.history.now())
    await scene.cluster.ready(scene.client)


async def partition_minority(scene: Scene) -> None:
    """The leader, with fewer than a majority, is cut off; then a follower."""
    names = scene.cluster.names
    for part in ("leader", "follower"):
        await scene.work(scene.seconds * 0.1)
        leader = await scene.leader()
        others = [name for name in names if name != leader]
        few = [leader, *others][: (len(names) - 1) // 2] if part == "leader" else others[: (len(names) - 1) // 2]
        most = [name for name in names if name not in few]
        fault, cut = await _apply(scene, f"{', '.join(few)} | {', '.join(most)}", between(few, most))
        asked, what = scene.workload.requests, f"the partition with the {part} in the minority"
        await scene.recovered(what, cut)
        await scene.streams_served(what, cut, asked)
        await scene.work(scene.seconds * 0.2)
        await _heal(scene, fault, "the partition")


async def partition_with_clients(scene: Scene) -> None:
    """A minority is cut off from the others and from nobody else: its clients must not be misled."""
    await scene.work(scene.seconds * 0.1)
    leader = await scene.leader()
    fault, cut = await _apply(scene, f"{leader}, the leader, loses the others", isolated(leader, scene.cluster.names))
    asked = scene.workload.requests
    await scene.work(5.0)
    if await _leader_by(scene, leader) == leader:
        raise Broken(f"{leader} still leads {scene.history.now() - cut:.1f} s after it lost the others")
    await scene.recovered("the isolation of the leader", cut)
    await scene.streams_served("the isolation of the leader", cut, asked)
    await _heal(scene, fault, "the isolation")


async def _leader_by(scene: Scene, name: str) -> str:
    """Who leads, as one node says; on a busy machine it may have to be asked again."""
    until = scene.history.now() + scene.recover_s
    while True:
        try:
            return str((await scene.client.status(node=scene.cluster.nodes[name].address)).leader_id)
        except ResourceLeaseError:
            if scene.history.now() > until:
                raise
            await scene.work(0.2)


async def clients_cut(scene: Scene) -> None:
    """The path from all clients to the leader is gone; nodes see each other."""
    await scene.work(scene.seconds * 0.15)
    leader = await scene.leader()
    fault, cut = await _apply(scene, f"no client reaches {leader}, the leader", between([CLIENTS], [leader]))
    await scene.recovered("the cut between clients and leader", cut)
    await scene.work(scene.seconds * 0.3)
    await _heal(scene, fault, "the cut")


async def bridge(scene: Scene) -> None:
    """Two halves that see each other through one node only."""
    await scene.work(scene.seconds * 0.15)
    leader = await scene.leader()
    others = [name for name in scene.cluster.names if name != leader]
    middle = scene.chance.choice(others)
    rest = [name for name in scene.cluster.names if name != middle]
    half = len(rest) // 2
    fault, cut = await _apply(scene, f"all but {middle} lose the other half", between(rest[:half], rest[half:]))
    await scene.recovered("the bridge", cut)
    await scene.work(scene.seconds * 0.3)
    await _heal(scene, fault, "the bridge")


async def ring(scene: Scene) -> None:
    """Each node sees its two neighbours only; of three nodes, one link is cut and then another."""
    names = scene.cluster.names
    count = len(names)
    far = [
        (one, other)
        for at, one in enumerate(names)
        for gap, other in enumerate(names[at + 1 :], 1)
        if gap not in (1, count - 1)
    ]
    rounds = [far] if far else [[(names[0], names[1])], [(names[1], names[2])]]
    for links in rounds:
        await scene.work(scene.seconds * 0.1)
        rules = {link: rule for one, other in links for link, rule in between([one], [other]).items()}
        fault, cut = await _apply(scene, "cut: " + ", ".join(f"{one}-{other}" for one, other in links), rules)
        await scene.recovered("the ring", cut)
        await scene.work(scene.seconds * 0.2)
        await _heal(scene, fault, "the ring")


async def one_way(scene: Scene) -> None:
    """What the leader says arrives nowhere, and what others say arrives; then the reverse."""
    for direction in ("from", "to"):
        await scene.work(scene.seconds * 0.1)
        leader = await scene.leader()
        others = [name for name in scene.cluster.names if name != leader]
        links = [(leader, other) if direction == "from" else (other, leader) for other in others]
        words = f"nothing {direction} {leader}, the leader, arrives"
        fault, cut = await _apply(scene, words, {link: Rule(cut=True) for link in links})
        await scene.recovered(f"the one-way cut {direction} the leader", cut)
        await scene.work(scene.seconds * 0.2)
        await _heal(scene, fault, "the one-way cut")


async def flapping(scene: Scene) -> None:
    """A link of the leader comes and goes, with connections reset each time; a majority is always there."""
    await scene.work(scene.seconds * 0.1)
    leader = await scene.leader()
    other = scene.chance.choice([name for name in scene.cluster.names if name != leader])
    fault = scene.fault(f"the link of {leader} and {other} flaps")
    start = scene.history.now()
    until = start + scene.seconds * 0.5
    while scene.history.now() < until:
        await scene.cluster.apply(between([leader], [other]))
        await scene.work(scene.chance.uniform(0.1, 0.9))
        await scene.cluster.network.reset([(leader, other)])
        await scene.cluster.heal()
        await scene.work(scene.chance.uniform(0.1, 0.6))
    await scene.recovered("the first flap", start)
    await _heal(scene, fault, "the flapping")


async def slow_link(scene: Scene) -> None:
    """Every link between nodes takes 80 ms more each way, and those of one follower crawl besides."""
    await scene.work(scene.seconds * 0.1)
    names = scene.cluster.names
    slow = scene.chance.choice(await scene.followers())
    rules = dict(between(names, names, Rule(delay_ms=80)))
    rules |= isolated(slow, names, Rule(delay_ms=80, bytes_per_s=40_000))
    fault, cut = await _apply(scene, f"80 ms each way everywhere; {slow} at 40 kB/s", rules)
    await scene.recovered("the links became slow", cut)
    await scene.work(scene.seconds * 0.4)
    if len({look.term for look in scene.looks if look.at > cut + 2 and look.term}) > 3:
        scene.notes.append("terms changed more than twice while links were slow")
    await _heal(scene, fault, "the slow links")


async def names_away(scene: Scene) -> None:
    """No name can be resolved any more; a follower that is killed finds nobody until names are back."""
    await scene.work(scene.seconds * 0.2)
    fault = scene.fault("no node's name can be resolved")
    start = scene.history.now()
    await scene.cluster.network.set_names(False)
    await scene.work(scene.seconds * 0.2)
    await scene.recovered("names went away", start)
    victim = scene.chance.choice(await scene.followers())
    killed = scene.fault(f"kill -9 {victim}, a follower; it is started again")
    await scene.cluster.kill(victim)
    await scene.recovered(f"the death of {victim}", scene.history.now())
    await scene.cluster.start(victim)
    await scene.work(max(5.0, scene.seconds * 0.3))
    if scene.cluster.nodes[victim].pid is None:
        raise Broken(f"{victim} ended because it could resolve no names: {scene.cluster.nodes[victim].words()[-300:]}")
    await scene.cluster.network.set_names(True)
    scene.over(killed)
    scene.over(fault, "names are back")
    await scene.cluster.ready(scene.client, 15)
    await scene.recovered("names came back", scene.history.now())
    await scene.work(scene.seconds * 0.2)


DRILLS = [
    Drill("partition-minority", "the majority goes on, the minority says no", partition_minority, 5.0),
    Drill("lonely-leader", "a leader without a majority stops leading within 5 s", partition_with_clients, 5.0),
    Drill("clients-cut", "clients move on from a node that they cannot hear", clients_cut, 8.0, proxied_clients=True),
    Drill("bridge", "one node in the middle is enough", bridge, 10.0),
    Drill("ring", "neighbours are enough", ring, 10.0),
    Drill("one-way", "half a link does not stop the cluster", one_way, 12.0, one_way=True),
    Drill("flapping", "a link that comes and goes does not stop the cluster", flapping, 8.0),
    Drill("names-away", "connections that are there live on; new ones wait for names", names_away, 6.0, names=True),
    Drill("slow-link", "slow links make slow answers, and no elections", slow_link, 8.0, delays=True),
]
