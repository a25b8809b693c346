"""Nodes that come and go for good while clients are at work."""

import contextlib

from chaos.drills.scene import Broken, Drill, Scene
from resourcelease.client import Conflict, ResourceLeaseError

__all__ = ["DRILLS"]


async def membership(scene: Scene) -> None:
    """A node is added, the leader is killed, the old member is removed, and the leader too."""
    cluster, client = scene.cluster, scene.client
    await scene.work(scene.seconds * 0.1)
    fresh = f"n{len(cluster.names) + 1}"
    fault = scene.fault(f"{fresh} joins")
    start = scene.history.now()
    await cluster.make([fresh], joins=True)
    await cluster.start(fresh)
    await _add(scene, fresh)
    await cluster.ready(client)
    await scene.recovered(f"{fresh} was added", start)
    scene.over(fault)
    leader = await scene.leader()
    fault = scene.fault(f"kill -9 {leader}, the leader, with {fresh} among the voters")
    await cluster.kill(leader)
    await scene.recovered(f"the death of leader {leader}", scene.history.now())
    await cluster.start(leader)
    scene.over(fault)
    await cluster.ready(client)
    for who in ("a follower", "the leader"):
        await scene.work(scene.seconds * 0.1)
        name = await scene.leader() if who == "the leader" else (await scene.followers())[0]
        await _remove(scene, name, who)
    await scene.work(scene.seconds * 0.2)


async def _add(scene: Scene, name: str) -> None:
    node = scene.cluster.nodes[name]
    until = scene.history.now() + 30
    while True:
        try:
            members = await scene.client.add_member(
                name, raft_address=scene.cluster.raft_addresses[name], client_address=node.address
            )
        except Conflict:
            # Said where an earlier try that was not answered went through.
            members = await scene.client.members(linearizable=True)
        except ResourceLeaseError:
            if scene.history.now() > until:
                raise
            await scene.work(0.3)
            continue
        if name not in {member.node_id for member in members}:
            raise Broken(f"{name} was added, and is not among the members")
        return


async def _remove(scene: Scene, name: str, who: str) -> None:
    fault = scene.fault(f"{name}, {who}, is removed")
    start = scene.history.now()
    until = start + 30
    while True:
        with contextlib.suppress(ResourceLeaseError):
            await scene.client.remove_member(name)
        with contextlib.suppress(ResourceLeaseError):
            members = {member.node_id for member in await scene.client.members(linearizable=True)}
            if name not in members:
                break
        if scene.history.now() > until:
            raise Broken(f"{name} could not be removed in 30 s")
        await scene.work(0.3)
    await scene.cluster.stop(name)
    del scene.cluster.nodes[name]
    await scene.recovered(f"the removal of {name}", start)
    scene.over(fault)


DRILLS = [Drill("membership", "nodes come and go under fire, and every majority serves", membership, 8.0)]
