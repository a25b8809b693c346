"""Anything at any time, drawn from a seed; a majority is back before each promise is asked for."""

from collections.abc import Awaitable, Callable

from chaos.drills.network import Network, Rule, between, isolated
from chaos.drills.scene import Drill, Scene

__all__ = ["DRILLS"]

Trouble = Callable[[Scene, str], Awaitable[str]]


async def mix(scene: Scene) -> None:
    """One trouble after another, for the time given, each ended before the next."""
    until = scene.history.now() + scene.seconds
    troubles = _troubles(scene.cluster.network)
    while scene.history.now() < until:
        await scene.work(scene.chance.uniform(0.3, 1.5))
        victim = scene.chance.choice(scene.cluster.names)
        if scene.chance.random() < 0.5:
            victim = await scene.leader()
        trouble = scene.chance.choices(list(troubles), list(troubles.values()))[0]
        fault = scene.fault(f"{trouble.__name__.strip('_').replace('_', ' ')}: {victim}")
        what = await trouble(scene, victim)
        await scene.cluster.bring_back()
        back = scene.history.now()
        scene.over(fault)
        await scene.recovered(what, back)
        await scene.cluster.ready(scene.client)


def _troubles(network: Network) -> dict[Trouble, int]:
    """What can happen, and how often; never what this network cannot do."""
    return {
        _kill: 4,
        _pause: 3,
        _power_cut: 1,
        _restart: 2,
        _isolate: 3,
        _one_way: 2 if network.one_way else 0,
        _slow: 1 if network.delays else 0,
        _reset: 2 if network.resets else 0,
        _transfer: 2,
    }


async def _kill(scene: Scene, victim: str) -> str:
    await scene.cluster.kill(victim)
    await scene.work(scene.chance.uniform(0.0, 3.0))
    return f"the death of {victim}"


async def _pause(scene: Scene, victim: str) -> str:
    scene.cluster.nodes[victim].pause()
    await scene.work(scene.chance.uniform(0.2, 5.0))
    return f"the pause of {victim}"


async def _power_cut(scene: Scene, victim: str) -> str:
    await scene.cluster.kill(*scene.cluster.names)
    await scene.work(scene.chance.uniform(0.0, 1.0))
    return "the power cut"


async def _restart(scene: Scene, victim: str) -> str:
    await scene.cluster.stop(victim)
    return f"the restart of {victim}"


async def _isolate(scene: Scene, victim: str) -> str:
    await scene.cluster.apply(isolated(victim, scene.cluster.names))
    await scene.work(scene.chance.uniform(0.5, 5.0))
    return f"the isolation of {victim}"


async def _one_way(scene: Scene, victim: str) -> str:
    rules = isolated(victim, scene.cluster.names)
    out = scene.chance.random() < 0.5
    await scene.cluster.apply({link: rule for link, rule in rules.items() if (link[0] == victim) == out})
    await scene.work(scene.chance.uniform(0.5, 5.0))
    return f"the one-way cut at {victim}"


async def _slow(scene: Scene, victim: str) -> str:
    names = scene.cluster.names
    await scene.cluster.apply(between(names, names, Rule(delay_ms=scene.chance.uniform(5, 60))))
    await scene.work(scene.chance.uniform(1.0, 3.0))
    return "the slow links"


async def _reset(scene: Scene, victim: str) -> str:
    await scene.cluster.network.reset([(victim, other) for other in scene.cluster.names if other != victim])
    return f"the reset of all links of {victim}"


async def _transfer(scene: Scene, victim: str) -> str:
    await scene.client.transfer()
    return "a change of leaders"


DRILLS = [Drill("mix", "whatever comes, nothing is lost and service comes back", mix, 12.0)]
