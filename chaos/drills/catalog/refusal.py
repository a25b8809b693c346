"""A node that is started on damaged files: it refuses them or is well, and in the end it is whole again."""

import asyncio
import contextlib
import shutil

from chaos.drills.node import Node
from chaos.drills.scene import Broken, Scene
from resourcelease.client import ResourceLeaseError

__all__ = ["caught_up", "refused_or_well"]


async def refused_or_well(scene: Scene, victim: Node, what: str, look_s: float, *, signals: bool = False) -> None:
    """Starts a node, sees what it makes of its files, and has it back with what it has or with empty ones.

    It is looked at after ``look_s`` seconds of service. ``signals``: the kernel may end it, where a file is mapped and
    shorter than it should be. What is met late, by a commit that needs a damaged page, may end it late.
    """
    start, said = scene.history.now(), victim.log.stat().st_size
    await scene.cluster.start(victim.name)
    await scene.started_or_ended(victim.name, said)
    await scene.work(look_s)
    if victim.exit_code is None:
        scene.notes.append(f"{victim.name} started on what was changed; the digests say whether it serves it")
        try:
            await _back(scene, victim, what, start)
        except (ChildProcessError, ResourceLeaseError):
            if victim.exit_code is None:
                raise
        else:
            return
    await _emptied(scene, victim, said, signals=signals)
    await _back(scene, victim, what, start)


async def _back(scene: Scene, victim: Node, what: str, start: float) -> None:
    await scene.recovered(what, start)
    await scene.cluster.ready(scene.client)
    await caught_up(scene, victim.name)


async def _emptied(scene: Scene, victim: Node, said: int, *, signals: bool) -> None:
    """A node has ended: in the way it should, having said why; it is started with an empty directory."""
    code, words = victim.exit_code, victim.words(said)
    signalled = signals and code is not None and code < 0
    if not (code == 1 or signalled) or "Traceback" in words:
        raise Broken(f"{victim.name} met the damage and ended with {code}: {words[-300:]}")
    last = (words.splitlines() or ["nothing"])[-1][:300]
    scene.notes.append(f"{victim.name} ended with {code}, and said: {last}")
    victim.kill()
    await asyncio.to_thread(shutil.rmtree, victim.data)
    await scene.cluster.start(victim.name)


async def caught_up(scene: Scene, name: str, seconds: float = 30.0) -> None:
    """Waits until a node has applied what the leader had applied when it was asked."""
    until = scene.history.now() + seconds
    goal: int | None = None
    while True:
        # On a busy machine a node that runs may not answer for a while.
        with contextlib.suppress(ResourceLeaseError):
            if goal is None:
                goal = await _applied(scene, await scene.leader())
            if await _applied(scene, name) >= goal:
                return
        if scene.cluster.nodes[name].exit_code is not None:
            raise ChildProcessError(f"node {name} ended while it caught up")
        if scene.history.now() > until:
            raise Broken(f"{name} has not caught up in {seconds:g} s")
        await scene.work(0.1)


async def _applied(scene: Scene, name: str) -> int:
    return (await scene.client.status(node=scene.cluster.nodes[name].address)).applied_index
