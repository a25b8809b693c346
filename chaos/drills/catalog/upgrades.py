"""A cluster that changes its release while clients are at work."""

import functools
import sys

from chaos.drills.cluster import Cluster
from chaos.drills.releases import install, newest_tag, why_no_release
from chaos.drills.scene import Broken, Drill, Scene

__all__ = ["DRILLS", "NAME", "rolling_upgrade_from"]

NAME = "rolling-upgrade"


def rolling_upgrade_from(release: str) -> Drill:
    """The drill, beginning with a release: a git ref, a wheel, or empty for the last one."""
    return Drill(
        NAME,
        "each node comes back with the present release, and everything that was is there",
        functools.partial(_rolling_upgrade, release),
        6.0,
        processes=True,
        prepare=functools.partial(_begin_with, release),
        why_not=functools.partial(why_no_release, release),
    )


def _begin_with(release: str, cluster: Cluster) -> None:
    """All nodes run the earlier release, from their first start on."""
    python = str(install(release))
    for node in cluster.nodes.values():
        node.python = python


async def _rolling_upgrade(release: str, scene: Scene) -> None:
    """Nodes are stopped in order and started again with the present release, the leader last.

    The first one goes back to the earlier release once, as an operator does who has second thoughts; later that may be
    too late.
    """
    before = scene.cluster.nodes[scene.cluster.names[0]].python
    scene.notes.append(f"upgraded from {release or newest_tag()}, by {before}")
    await scene.work(scene.seconds * 0.15)
    order = [*await scene.followers(), await scene.leader()]
    await _replace(scene, order[0], sys.executable, "the present release")
    await scene.work(scene.seconds * 0.1)
    await _go_back(scene, order[0], before)
    await scene.work(scene.seconds * 0.1)
    for name in order:
        await _replace(scene, name, sys.executable, "the present release")
        await scene.work(scene.seconds * 0.1)
    olds = [node.name for node in scene.cluster.nodes.values() if node.python != sys.executable]
    if olds:
        raise Broken(f"{', '.join(olds)} still run the earlier release")
    await scene.recovered("the upgrade", scene.history.now())
    await scene.work(scene.seconds * 0.2)


async def _replace(scene: Scene, name: str, python: str, words: str) -> None:
    fault = scene.fault(f"SIGTERM {name}; it comes back with {words}")
    await _stop(scene, name, fault.start)
    scene.cluster.nodes[name].python = python
    await scene.cluster.start(name)
    scene.over(fault, f"{name} is started again")
    await scene.cluster.ready(scene.client)


async def _stop(scene: Scene, name: str, since: float) -> None:
    code = await scene.cluster.stop(name)
    if code != 0:
        raise Broken(f"{name} was asked to stop and ended with {code}")
    await scene.recovered(f"the orderly stop of {name}", since)


async def _go_back(scene: Scene, name: str, python: str) -> None:
    """The earlier release takes the files that the present one leaves, or says in a word why it does not."""
    node = scene.cluster.nodes[name]
    fault = scene.fault(f"SIGTERM {name}; it goes back to the earlier release")
    await _stop(scene, name, fault.start)
    said = node.log.stat().st_size
    node.python = python
    await scene.cluster.start(name)
    await scene.started_or_ended(name, said)
    if node.exit_code is not None:
        words = node.words(said)
        if node.exit_code != 1 or "Traceback" in words or "cannot start" not in words:
            raise Broken(f"{name} went back and ended with {node.exit_code}: {words[-300:]}")
        scene.notes.append(f"there is no way back: {(words.splitlines() or [''])[-1][:300]}")
        node.kill()
        node.python = sys.executable
        await scene.cluster.start(name)
    scene.over(fault)
    await scene.cluster.ready(scene.client)


DRILLS = [rolling_upgrade_from("")]
