"""Disks that are slow, fail to flush or forget; clocks that are wrong."""

import errno

from chaos.drills.scene import Broken, Drill, Scene
from chaos.drills.workload import Plan

__all__ = ["DRILLS"]

_FOR_EVER_US = 3_600_000_000
_LATE_US = 150_000
_HOUR_NS = 3_600_000_000_000
_FAST, _SLOW = 50_000, -50_000


async def slow_disk(scene: Scene) -> None:
    """Each flush of a follower takes 0.3 s more, then of the leader; its disk stands still, and then a quick leader's.

    A node that has found its disk slow flushes on a thread, so that it goes on without its disk and has to give up the
    lead by itself. One with a quick disk stands still with it.
    """
    follower, leader = (await scene.followers())[0], await scene.leader()
    for name, role, delay_us in ((follower, "a follower", 300_000), (leader, "the leader", 300_000)):
        await scene.work(scene.seconds * 0.1)
        fault = scene.fault(f"each flush of {name}, {role}, takes {delay_us / 1e6:g} s more")
        start, shim = scene.history.now(), scene.shims[name]
        before = shim.count("flushes")
        shim.tell(delay_us=delay_us)
        await scene.recovered(f"the disk of {name} became slow", start)
        await scene.work(scene.seconds * 0.2)
        if shim.count("flushes") == before:
            raise Broken(f"{name} has flushed nothing, so its slow disk was no trouble")
        if role == "the leader":
            await _stands_still(scene, name)
        shim.tell(delay_us=0)
        scene.over(fault, "the disk is fast again")
        await scene.recovered(f"the disk of {name} became fast", scene.history.now())
    leader = await scene.leader()
    await _stands_still(scene, leader)
    scene.shims[leader].tell(delay_us=0)
    await scene.cluster.ready(scene.client)
    await scene.recovered("the disk went on", scene.history.now())


async def _stands_still(scene: Scene, name: str) -> None:
    """The disk of a leader flushes nothing until it is told otherwise."""
    fault, start = scene.fault(f"the disk of {name}, the leader, stands still"), scene.history.now()
    scene.shims[name].tell(delay_us=_FOR_EVER_US)
    await scene.recovered("the disk stood still", start)
    scene.over(fault, "the disk goes on")


async def fsync_error(scene: Scene) -> None:
    """A flush fails: what became of the pages nobody knows, so the node must end, and say why."""
    for role in ("the leader", "a follower"):
        await scene.work(scene.seconds * 0.2)
        name = await scene.leader() if role == "the leader" else (await scene.followers())[0]
        node, shim = scene.cluster.nodes[name], scene.shims[name]
        fault = scene.fault(f"flushes of {name}, {role}, fail")
        start, said = scene.history.now(), len(node.words())
        shim.tell(flush_errno=errno.EIO)
        await scene.recovered(f"flushes of {name} failed", start)
        code = await _ended(scene, name, 10.0)
        words = node.words(said)
        if code != 1 or "Traceback" in words or "Input/output error" not in words:
            raise Broken(f"{name} met a flush that failed and ended with {code}: {words[-300:]}")
        scene.notes.append(f"{name} said: {_last_error(words)}")
        shim.tell(flush_errno=0)
        await scene.cluster.start(name)
        scene.over(fault, f"{name} is started again, and its disk is well")
        await scene.cluster.ready(scene.client)
        await scene.recovered(f"the return of {name}", scene.history.now())
    await scene.work(scene.seconds * 0.1)


async def _ended(scene: Scene, name: str, seconds: float) -> int:
    """How a node ended by itself."""
    until = scene.history.now() + seconds
    while (code := scene.cluster.nodes[name].exit_code) is None:
        if scene.history.now() > until:
            raise Broken(f"{name} lives on {seconds:g} s after a flush of its has failed")
        await scene.work(0.05)
    return code


def _last_error(words: str) -> str:
    lines = [line for line in words.splitlines() if "rror" in line]
    return lines[-1][:300] if lines else words[-300:]


async def power_loss(scene: Scene) -> None:
    """All nodes lose power at once, and with it half of the pages that no flush covers: twice, then with slow disks.

    A flush of a good disk takes less than a millisecond, so a cut seldom falls into one. With slow disks there is
    always one under way on each node, with more behind it: what was answered too early is lost then.
    """
    lost = 0
    await scene.cluster.kill(*scene.cluster.names)
    for delay_us in (0, 0, _LATE_US):
        for shim in scene.shims.values():
            shim.start_record()
        back = scene.history.now()
        await scene.cluster.start()
        await scene.recovered("the start", back)
        await scene.work(scene.seconds * 0.3)
        if delay_us:
            await _all_slow(scene, delay_us)
        fault = scene.fault("all nodes lose power, and what was not flushed")
        await scene.cluster.kill(*scene.cluster.names)
        lost += sum(shim.lose_power(scene.chance) for shim in scene.shims.values())
        scene.over(fault, "all are started again")
    scene.counts["pages that the power cuts took back"] = lost
    back = scene.history.now()
    for shim in scene.shims.values():
        shim.tell(record=0, delay_us=0)
    await scene.cluster.start()
    await scene.recovered("the power cut", back)
    await scene.work(scene.seconds * 0.2)


async def _all_slow(scene: Scene, delay_us: int) -> None:
    """Each flush of each node takes so much more, and clients go on as well as they can."""
    fault, start = scene.fault(f"each flush of all nodes takes {delay_us / 1e6:g} s more"), scene.history.now()
    for shim in scene.shims.values():
        shim.tell(delay_us=delay_us)
    await scene.recovered("all disks became slow", start)
    await scene.work(1.0)
    scene.over(fault)


async def clock_jump(scene: Scene) -> None:
    """The wall clock of the leader is set an hour ahead, then that of a follower an hour back, and it leads."""
    leader, follower = await scene.leader(), (await scene.followers())[0]
    for name, hours in ((leader, 1), (follower, -1)):
        await scene.work(scene.seconds * 0.1)
        fault = scene.fault(f"the wall clock of {name} is set by {hours:+d} h")
        start, shim = scene.history.now(), scene.shims[name]
        shim.tell(jump_ns=hours * _HOUR_NS)
        await scene.recovered(f"the clock of {name} jumped", start)
        await _lead(scene, name)
        await scene.work(scene.seconds * 0.2)
        if not shim.count("wrong_times"):
            raise Broken(f"{name} has not looked at its clock, so nothing was tried")
        shim.tell(jump_ns=0)
        scene.over(fault, "the clock is right again")
        await scene.recovered(f"the clock of {name} was set right", scene.history.now())


async def clock_rate(scene: Scene) -> None:
    """All clocks of one node run 5 % fast, of another 5 % slow; each of them leads for a while."""
    fast, slow = scene.cluster.names[:2]
    fault = scene.fault(f"the clocks of {fast} run 5 % fast, those of {slow} 5 % slow")
    start = scene.history.now()
    scene.shims[fast].set_rate(_FAST)
    scene.shims[slow].set_rate(_SLOW)
    for name in (fast, slow):
        await _lead(scene, name)
        await scene.work(scene.seconds * 0.3)
        if not scene.shims[name].count("wrong_times"):
            raise Broken(f"{name} has not looked at its clock, so nothing was tried")
    await scene.recovered("clocks went astray", start)
    scene.over(fault)


async def _lead(scene: Scene, name: str) -> None:
    """Has a node lead."""
    if await scene.leader() != name:
        await scene.client.transfer(name)


_SHORT = Plan(lease_ms=2_000)
DRILLS = [
    Drill(
        "slow-disk",
        "slow flushes make slow answers; a disk that stands still costs the lead",
        slow_disk,
        8.0,
        shim=True,
    ),
    Drill("fsync-error", "the node ends and says why; the others go on", fsync_error, 8.0, quick=True, shim=True),
    Drill("power-loss", "what was acknowledged had been flushed by a majority", power_loss, 12.0, shim=True),
    Drill("clock-jump", "wall clocks decide nothing", clock_jump, 6.0, _SHORT, shim=True),
    Drill(
        "clock-rate",
        "leases run by the leader's clock, and nothing else changes",
        clock_rate,
        12.0,
        _SHORT,
        shim=True,
        fastest_clock=1.06,
    ),
]
