"""Disks that are lost, copied, torn, flipped or full."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

from chaos.drills.catalog.refusal import caught_up, refused_or_well
from chaos.drills.node import Node
from chaos.drills.scene import Broken, Drill, Scene

__all__ = ["DRILLS"]

# To start, to be turned away and to end.
_CLONE_S = 20.0
_PAGE = 4096
_MIB = 1 << 20


async def lost_disk(scene: Scene) -> None:
    """A follower's directory is gone; it comes back under its name with an empty one."""
    await scene.work(scene.seconds * 0.2)
    victim = scene.chance.choice(await scene.followers())
    fault = scene.fault(f"kill -9 {victim}, and its disk is lost")
    await scene.cluster.kill(victim)
    shutil.rmtree(scene.cluster.nodes[victim].data)
    await scene.recovered(f"the loss of {victim}", scene.history.now())
    await scene.work(scene.seconds * 0.2)
    await scene.cluster.start(victim)
    await scene.cluster.ready(scene.client)
    await caught_up(scene, victim)
    scene.over(fault, f"{victim} has everything again")
    await scene.work(scene.seconds * 0.2)


async def cloned_node(scene: Scene) -> None:
    """A node's directory is copied and started a second time: beside it, and from the same directory.

    First the last node by name, which is called by the others, so that its clone has to ask; then the first, which
    calls them, and so would its clone. No more others run than a majority needs; then the leader dies. What a clone had
    acknowledged in its twin's name would be missing.
    """
    await scene.work(scene.seconds * 0.1)
    await _turned_away(scene, scene.cluster.nodes[max(scene.cluster.names)])
    await scene.work(scene.seconds * 0.1)
    victim = scene.cluster.nodes[min(scene.cluster.names)]
    if await scene.leader() == victim.name:
        await scene.client.transfer(scene.cluster.names[-1])
    await _second_process(scene, victim)
    start = scene.history.now()
    leader = await scene.leader()
    spared = [name for name in scene.cluster.names if name not in (victim.name, leader)][
        (len(scene.cluster.names)) // 2 - 1 :
    ]
    fault = scene.fault(f"no more run than a majority: {', '.join(spared)} are down")
    await scene.cluster.kill(*spared)
    await _turned_away(scene, victim)
    await scene.cluster.kill(leader)
    await scene.cluster.start(*spared)
    await scene.recovered("the death of the leader", scene.history.now())
    await scene.cluster.start(leader)
    scene.over(fault)
    await scene.recovered("the clone", start, scene.recover_s + _CLONE_S)


async def _turned_away(scene: Scene, victim: Node) -> None:
    """Starts a copy of a node beside it, with other ports; it must be told so and end, and clients notice nothing."""
    copy = scene.cluster.directory / f"{victim.name}-copy"
    await asyncio.to_thread(shutil.copytree, victim.data, copy)
    fault = scene.fault(f"{victim.name} runs twice, from a copy of its directory")
    clone = _twin(scene, victim, "copied-directory", copy)
    clone.start()
    try:
        code = await asyncio.to_thread(clone.ended, _CLONE_S)
    finally:
        clone.kill()
    words = clone.words()
    if code != 1 or "is connected with another process" not in words or "Traceback" in words:
        raise Broken(f"a clone of {victim.name} was let in beside it, its exit code is {code}: {words[-300:]}")
    scene.over(fault, "the clone has ended")


async def _second_process(scene: Scene, victim: Node) -> None:
    same = _twin(scene, victim, "same-directory", victim.data)
    fault = scene.fault(f"{victim.name} is started twice from one directory")
    same.start()
    code = await asyncio.to_thread(same.ended, 10.0)
    same.kill()
    if code in (None, 0):
        raise Broken(f"a second process on the directory of {victim.name} was let in: exit code {code}")
    scene.over(fault, "the second was refused")


def _twin(scene: Scene, node: Node, name: str, data: Path) -> Node:
    """The same identity and configuration, at other ports, so that nothing but the identity is in the way."""
    tables = {section: dict(values) for section, values in node.tables.items()}
    tables["node"]["dir"] = str(data)
    tables["grpc"] = {"listen": "127.0.0.1:0"}
    tables["peers"] = {"listen": "127.0.0.1:0"}
    return Node(scene.cluster.directory, f"{node.name}-{name}", "", tables)


async def torn_tail(scene: Scene) -> None:
    """The last pages of a stopped node's LMDB file were never written."""

    def tear(path: Path) -> str:
        used = max(_used_pages(path.parent), 4)
        with path.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            keep = max(size - _PAGE * (1 + used // 3), 3 * _PAGE)
            file.truncate(min(keep, (used - used // 3) * _PAGE))
        return f"a third of the pages of {path.parent.parent.parent.name} is cut off"

    await _damaged(scene, tear)


async def flipped_bytes(scene: Scene) -> None:
    """Bytes of a stopped node's LMDB file are others than were written."""

    def flip(path: Path) -> str:
        used = max(_used_pages(path.parent), 4)
        with path.open("r+b") as file:
            for _ in range(40):
                file.seek(scene.chance.randrange(2 * _PAGE, used * _PAGE))
                byte = file.read(1) or b"\0"
                file.seek(-len(byte), os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 1 << scene.chance.randrange(8)]))
        return f"40 bits flipped in {path.parent.parent.parent.name}"

    await _damaged(scene, flip)


def _used_pages(directory: Path) -> int:
    import lmdb

    with lmdb.open(str(directory), readonly=True, lock=False, max_dbs=8) as environment:
        return int(environment.info()["last_pgno"]) + 1


async def _damaged(scene: Scene, damage: "object") -> None:
    """The node refuses to start, or recovers; it never serves what is wrong. Then it gets an empty disk."""
    assert callable(damage)
    await scene.work(scene.seconds * 0.25)
    victim = scene.cluster.nodes[scene.chance.choice(await scene.followers())]
    fault = scene.fault(f"kill -9 {victim.name}; its file is damaged")
    await scene.cluster.kill(victim.name)
    scene.tell(str(damage(victim.data / "lmdb" / "data.mdb")))
    await refused_or_well(scene, victim, "the damage", scene.seconds * 0.2, signals=True)
    scene.over(fault, f"{victim.name} is whole again")
    await scene.work(scene.seconds * 0.2)


async def full_disk(scene: Scene) -> None:
    """The leader's disk fills up, and has room again later."""
    await scene.work(scene.seconds * 0.1)
    victim = scene.cluster.nodes[await scene.leader()]
    await scene.cluster.kill(victim.name)
    # Carried out to its end whatever happens: what is half mounted cannot be taken away.
    moving = asyncio.create_task(asyncio.to_thread(_move_to_small_disk, victim.data))
    try:
        await asyncio.shield(moving)
        await scene.cluster.start(victim.name)
        await scene.cluster.ready(scene.client)
        await scene.client.transfer(victim.name)
        await scene.work(1.0)
        fault = scene.fault(f"the disk of {victim.name}, the leader, is full")
        filler = victim.data / "somebody-elses-file"
        await asyncio.to_thread(_fill, filler)
        full = scene.history.now()
        await scene.work(scene.seconds * 0.3)
        filler.unlink()
        scene.over(fault, "there is room again")
        await scene.recovered("the full disk", full, scene.recover_s + scene.seconds * 0.3)
        await scene.recovered("the end of the full disk", scene.history.now())
        await scene.work(scene.seconds * 0.2)
        await scene.cluster.bring_back()
        await scene.cluster.ready(scene.client)
    finally:
        await scene.cluster.kill(victim.name)
        await asyncio.to_thread(_move_back, victim.data, await moving)
        await scene.cluster.start(victim.name)
    await scene.cluster.ready(scene.client)


def _move_to_small_disk(data: Path) -> Path:
    """Puts a small tmpfs in the place of a directory, with what was in it."""
    kept = data.with_name("data-before")
    data.rename(kept)
    data.mkdir()
    size = sum(path.stat().st_blocks * 512 for path in kept.rglob("*") if path.is_file()) + 48 * _MIB
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(data)], check=True)
    subprocess.run(["cp", "-a", "--sparse=always", f"{kept}/.", str(data)], check=True)
    return kept


def _move_back(data: Path, kept: Path) -> None:
    shutil.rmtree(kept)
    subprocess.run(["cp", "-a", "--sparse=always", f"{data}/.", str(kept)], check=True)
    subprocess.run(["umount", str(data)], check=True)
    data.rmdir()
    kept.rename(data)


def _fill(path: Path) -> None:
    with path.open("wb") as file:
        try:
            while True:
                file.write(b"\0" * 65536)
        except OSError:
            return


def _not_root() -> str:
    return "" if os.geteuid() == 0 else "mounting a small disk needs root"


DRILLS = [
    Drill("lost-disk", "the node gets everything from the others, and counts again", lost_disk, 6.0),
    Drill("cloned-node", "one identity runs once: the second is refused or unheard", cloned_node, 10.0, processes=True),
    Drill("torn-tail", "refused or recovered, never served", torn_tail, 8.0),
    Drill("flipped-bytes", "refused or recovered, never served", flipped_bytes, 8.0),
    Drill("full-disk", "another leads, or service waits for room; nothing breaks", full_disk, 12.0, why_not=_not_root),
]
