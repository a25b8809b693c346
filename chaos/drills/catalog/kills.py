"""Processes that end, or stand still."""

from chaos.drills.scene import Broken, Drill, Scene
from chaos.drills.workload import Plan

__all__ = ["DRILLS"]


async def kill_leader(scene: Scene) -> None:
    """kill -9 of the leader, twice, and its return."""
    for _ in range(2):
        await scene.work(scene.seconds * 0.2)
        victim = await scene.leader()
        await _die_and_return(scene, victim, "the leader", scene.seconds * 0.15)
    await scene.work(scene.seconds * 0.2)


async def kill_follower(scene: Scene) -> None:
    """kill -9 of a follower: others go on as if nothing were."""
    await scene.work(scene.seconds * 0.2)
    victim = scene.chance.choice(await scene.followers())
    await _die_and_return(scene, victim, "a follower", scene.seconds * 0.3)
    await scene.work(scene.seconds * 0.3)


async def _die_and_return(scene: Scene, victim: str, who: str, away_s: float) -> None:
    fault = scene.fault(f"kill -9 {victim}, {who}")
    await scene.cluster.kill(victim)
    await scene.recovered(f"the death of {who.split()[-1]} {victim}", scene.history.now())
    await scene.work(away_s)
    await scene.cluster.start(victim)
    scene.over(fault, f"{victim} is started again")
    await scene.cluster.ready(scene.client)


async def kill_majority(scene: Scene) -> None:
    """More nodes die than the cluster can spare: nothing is acknowledged until enough are back."""
    await scene.work(scene.seconds * 0.25)
    names = [await scene.leader(), *await scene.followers()]
    victims = names[: len(names) // 2 + 1]
    fault = scene.fault(f"kill -9 {', '.join(victims)}: a majority")
    await scene.cluster.kill(*victims)
    dead = scene.history.now()
    await scene.work(min(4.0, scene.seconds * 0.3))
    if scene.served(dead + 0.5, scene.history.now()):
        raise Broken("a minority has acknowledged changes")
    back = scene.history.now()
    await scene.cluster.start(*victims)
    scene.over(fault, "all are started again")
    await scene.recovered("the return of the majority", back)
    await scene.work(scene.seconds * 0.25)


async def power_cut(scene: Scene) -> None:
    """kill -9 of all at the same moment, twice."""
    for _ in range(2):
        await scene.work(scene.seconds * 0.3)
        fault = scene.fault("kill -9 of all nodes at once")
        await scene.cluster.kill(*scene.cluster.names)
        await scene.work(0.5)
        back = scene.history.now()
        await scene.cluster.start()
        scene.over(fault, "all are started again")
        await scene.recovered("the power cut", back)
    await scene.work(scene.seconds * 0.2)


async def pause_leader(scene: Scene) -> None:
    """The leader stands still past its lease and everybody's, and returns believing that it leads."""
    await scene.work(scene.seconds * 0.2)
    victim = await scene.leader()
    fault = scene.fault(f"SIGSTOP {victim}, the leader")
    scene.cluster.nodes[victim].pause()
    await scene.recovered(f"the pause of leader {victim}", fault.start)
    await scene.work(max(4.0, scene.seconds * 0.3))
    scene.cluster.nodes[victim].resume()
    scene.over(fault, f"{victim} goes on")
    await scene.cluster.ready(scene.client)
    await scene.work(scene.seconds * 0.3)


async def rolling_restart(scene: Scene) -> None:
    """Each node is stopped in order and started again, as for an upgrade."""
    for name in scene.cluster.names:
        await scene.work(scene.seconds * 0.1)
        fault = scene.fault(f"SIGTERM {name}")
        code = await scene.cluster.stop(name)
        if code != 0:
            raise Broken(f"{name} was asked to stop and ended with {code}")
        await scene.recovered(f"the orderly stop of {name}", fault.start)
        await scene.cluster.start(name)
        scene.over(fault, f"{name} is started again")
        await scene.cluster.ready(scene.client)
    await scene.work(scene.seconds * 0.2)


DRILLS = [
    Drill("kill-leader", "another leads and serves at once", kill_leader, 6.0, quick=True),
    Drill("kill-follower", "callers of that node move on; others notice nothing", kill_follower, 4.0),
    Drill("kill-majority", "nothing is acknowledged without a majority; all is there after", kill_majority, 10.0),
    Drill("power-cut", "everything acknowledged is there after kill -9 of all", power_cut, 10.0, quick=True),
    Drill("pause-leader", "the sleeper's grants are refused when it wakes", pause_leader, 8.0, Plan(lease_ms=1_500)),
    Drill("rolling-restart", "each node ends with 0, and service goes on", rolling_restart, 6.0),
]
