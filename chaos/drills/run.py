"""One drill from the first start of its cluster to the verdict."""

import asyncio
import contextlib
import random
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from chaos.drills.cluster import Cluster
from chaos.drills.follow import Follower
from chaos.drills.history import OK, UNKNOWN, Call, History
from chaos.drills.outcome import Outcome
from chaos.drills.peace import WORK_OFF_S, agreed, looked_up, remembered_mib, usage_problems, worked_off
from chaos.drills.planted import plant_in
from chaos.drills.scene import Broken, Drill, Scene
from chaos.drills.shim import Shim
from chaos.drills.verdict import judge
from chaos.drills.watch import Usage, Watch, usage, waited_s
from chaos.drills.workload import Workload
from resourcelease.client import Client, ResourceLeaseError

__all__ = ["run_drill"]

# What ends a drill as a failure of the cluster, and not of the program.
FAILURES = (Broken, ResourceLeaseError, ChildProcessError, TimeoutError)


async def run_drill(
    drill: Drill,
    cluster: Cluster,
    directory: Path,
    *,
    seconds: float,
    seed: int,
    tell: Callable[[str], None],
    plant: str = "",
    work_off_s: float = WORK_OFF_S,
) -> Outcome:
    """Plays the drill, makes peace, and has the checkers judge it.

    ``plant`` is a defect that all nodes have, ``work_off_s`` how long peace may take until nothing is open.
    """
    outcome = Outcome(drill.name, drill.holds, seed, nodes=len(cluster.founders))
    began, waited_before_s = time.monotonic(), waited_s()
    history = History(directory / "history.jsonl")
    outcome.calls = history.calls
    try:
        async with Client(cluster.endpoints, peer_id="drill-operator", timeout=20) as client:
            await _play(drill, cluster, client, history, outcome, (seconds, seed, work_off_s), tell, plant)
    except FAILURES as error:
        # Where peace cannot be made after the drill has failed, the first of the two is the reason.
        chain: list[BaseException] = [error]
        while isinstance(earlier := chain[-1].__context__, (*FAILURES, OSError)):
            chain.append(earlier)
        outcome.problems += [f"{type(each).__name__}: {each}" for each in reversed(chain)]
    except Exception:
        outcome.stumbled = True
        outcome.problems.append(f"the drill itself stumbled: {traceback.format_exc()}")
    finally:
        await cluster.close()
        history.close()
    outcome.waited_s = waited_s() - waited_before_s
    tell("the checkers judge")
    outcome.problems += await asyncio.to_thread(judge, outcome, drill, cluster)
    outcome.took_s = time.monotonic() - began
    outcome.notes.append(f"the drill's own loop waited {outcome.waited_s:.1f} s for a processor")
    return outcome


async def _play(
    drill: Drill,
    cluster: Cluster,
    client: Client,
    history: History,
    outcome: Outcome,
    numbers: tuple[float, int, float],
    tell: Callable[[str], None],
    plant: str,
) -> None:
    seconds, seed, work_off_s = numbers
    shims = await asyncio.to_thread(_shims, cluster) if drill.shim else {}
    # After the shims, which are loaded with the program that they stand before.
    for node in cluster.nodes.values():
        if plant:
            plant_in(node, plant)
    if drill.prepare is not None:
        await asyncio.to_thread(drill.prepare, cluster)
    await cluster.start()
    await cluster.ready(client)
    await client.configure(
        lease_duration_ms=drill.plan.lease_ms,
        heartbeat_interval_ms=drill.plan.lease_ms // 3,
        max_attempts=10_000,
        capacity=1_000_000,
    )
    history.began = time.monotonic()
    workload = Workload(cluster.endpoints, drill.plan, history, seed)
    follower = Follower(cluster.endpoints, history)
    watch = Watch(cluster, client, history)
    scene = Scene(
        cluster, client, workload, history, random.Random(seed), seconds, drill.recover_s, tell, outcome.faults
    )
    scene.recoveries, scene.notes, scene.counts = outcome.recoveries, outcome.notes, outcome.counts
    scene.looks, scene.shims = watch.looks, shims
    outcome.told, outcome.looks, outcome.expected_words = follower.told, watch.looks, scene.expected_words
    try:
        follower.start()
        watch.start()
        workload.start()
        await scene.recovered("the start", history.now(), 15)
        before = _usages(cluster)
        await _then_peace(drill.act(scene), lambda: _peace(drill, scene, follower, watch, outcome, before, work_off_s))
    finally:
        outcome.problems += watch.problems
        await workload.stop()
        await follower.close()
        await watch.close()


async def _then_peace(act: Awaitable[None], peace: Callable[[], Awaitable[None]]) -> None:
    """Peace, also where the drill has failed.

    Who interrupts wants none: what goes wrong on the way there would hide that it was an interruption.
    """
    try:
        await act
    except asyncio.CancelledError:
        raise
    except BaseException:
        await peace()
        raise
    await peace()


async def _peace(
    drill: Drill,
    scene: Scene,
    follower: Follower,
    watch: Watch,
    outcome: Outcome,
    before: dict[str, Usage],
    work_off_s: float,
) -> None:
    """All faults end; what is open is worked off; then everything is looked at."""
    cluster, client = scene.cluster, scene.client
    outcome.acted_s = scene.history.now()
    scene.tell("peace")
    for shim in scene.shims.values():
        shim.heal()
    await cluster.bring_back()
    await cluster.ready(client)
    await scene.workload.stop_producing()
    outcome.problems += await worked_off(client, work_off_s)
    scene.workload.check()
    await scene.workload.stop()
    last = (await client.status(linearizable=True)).last_sequence
    if not await follower.catch_up(last):
        outcome.problems.append(f"a subscriber was told up to event {follower.told.last} of {last}")
    places = await looked_up(client, outcome.calls, follower.told.events)
    now = scene.history.now()
    for item, place in places.items():
        scene.history.add(
            Call("the end", "look", now, scene.history.now(), OK if place else UNKNOWN, item, detail=place)
        )
    outcome.problems += await agreed(client)
    await watch.close()
    outcome.usage = {name: (before.get(name), after) for name, after in _usages(cluster).items()}
    more_mib = drill.more_mib + remembered_mib(outcome.calls, now)
    outcome.problems += usage_problems(outcome.usage, more_mib)


def _shims(cluster: Cluster) -> dict[str, Shim]:
    return {name: Shim(node) for name, node in cluster.nodes.items()}


def _usages(cluster: Cluster) -> dict[str, Usage]:
    found = {}
    for name, node in cluster.nodes.items():
        if node.pid is not None:
            with contextlib.suppress(OSError, KeyError):
                found[name] = usage(node.pid)
    return found
