"""Files whose bytes are others than were written: segments of the log, rows, the log ahead."""

import random
from collections.abc import Callable
from pathlib import Path

import lmdb

from chaos.drills.catalog.refusal import refused_or_well
from chaos.drills.node import Node
from chaos.drills.scene import Broken, Drill, Scene
from resourcelease import v1
from resourcelease.client import Client, ResourceLeaseError

__all__ = ["DRILLS"]

# A namespace for what fills segments, so that the workload's own promises stay exact.
_AWAY = "ballast"
_BODY_BYTES = 1 << 20
# A segment is sealed at 64 MiB of events.
_BODIES = 70
_MEND_S = 60.0
# Until any node has rows on its disk.
_ROWS_S = 8.0

Damage = Callable[[Path, random.Random], str]


async def segment_damage(scene: Scene) -> None:
    """Sealed segments of a stopped node, then of a running one: bytes flipped, and a file gone.

    The node is found out, by name and file, and fetches what it lacks from another one.
    """
    await _seal(scene, 2)
    victim = scene.cluster.nodes[scene.chance.choice(await scene.followers())]
    fault = scene.fault(f"{victim.name} is stopped; a sealed segment is changed, another is gone")
    await scene.cluster.kill(victim.name)
    flipped, gone = _sealed(victim)[:2]
    _flip(flipped, scene.chance)
    gone.unlink()
    await scene.cluster.start(victim.name)
    await scene.cluster.ready(scene.client)
    await _mended(scene, victim, {flipped.name, gone.name})
    scene.over(fault, f"{victim.name} has whole files again")
    await scene.work(scene.seconds * 0.1)
    fault = scene.fault(f"{victim.name} runs; a sealed segment is changed, another is gone")
    flipped, gone = reversed(_sealed(victim)[:2])
    _flip(flipped, scene.chance)
    gone.unlink()
    await _mended(scene, victim, {flipped.name, gone.name})
    scene.over(fault, f"{victim.name} has whole files again")
    await scene.recovered("the damage", scene.history.now())
    await scene.work(scene.seconds * 0.1)


async def _seal(scene: Scene, count: int) -> None:
    """Fills so many segments on every node."""
    async with Client(scene.cluster.endpoints, namespace=_AWAY, peer_id="ballast", timeout=60) as client:
        for _ in range(count * _BODIES):
            await client.enqueue("row", "heavy", scene.chance.randbytes(_BODY_BYTES // 2) * 2)
            if all(len(_sealed(node)) >= count for node in scene.cluster.nodes.values()):
                break
        else:
            raise Broken(f"{count * _BODIES} MiB of events have not sealed {count} segments on every node")
        await client.configure(lease_duration_ms=60_000)
        while leases := await client.lease(8, wait=0.2):
            await client.complete_many([lease.handle for lease in leases])


def _sealed(node: Node) -> list[Path]:
    """All segments but the last, which is still written to."""
    return sorted((node.data / "segments").glob("*.rlseg"))[:-1]


def _flip(path: Path, chance: random.Random) -> None:
    """Changes some bytes in the middle of a file."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        for _ in range(8):
            at = chance.randrange(size // 4, 3 * size // 4)
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))


async def _mended(scene: Scene, victim: Node, names: set[str]) -> None:
    """``verify`` names the node and the files, or finds them mended already; in the end nothing is wrong."""
    said: list[str] = []
    until = scene.history.now() + _MEND_S
    while True:
        try:
            answer = await scene.client.verify(timeout=40)
        except ResourceLeaseError as error:
            said.append(str(error))
        else:
            if answer.ok and all((victim.data / "segments" / name).exists() for name in names):
                break
            said += _complaints(answer)
        if scene.history.now() > until:
            raise Broken(f"{victim.name} has not mended {sorted(names)} in {_MEND_S:g} s: {said[-3:]}")
        await scene.work(0.3)
    scene.notes += [f"verify said: {words}" for words in dict.fromkeys(said)]
    blamed = [words for words in said if words.startswith(f"{victim.name}: ")]
    if not any(name in words for words in blamed for name in names):
        raise Broken(f"verify has named none of {sorted(names)} of {victim.name}: {said}")


def _complaints(answer: v1.VerifyResponse) -> list[str]:
    return [f"{node.node_id}: {problem}" for node in answer.nodes for problem in node.problems]


async def flipped_rows(scene: Scene) -> None:
    """A bit of the log ahead, of a journal entry or of a row of a killed node is another, or that log has no tail."""
    # Rows are written behind, so they come last.
    troubles: list[tuple[str, Damage]] = [
        ("the log ahead", _flip_ahead),
        ("the tail of the log ahead", _tear_ahead),
        ("the journal", _flip_entry),
        ("a row", _flip_row),
    ]
    for what, damage in troubles:
        await scene.work(_ROWS_S if damage is _flip_row else scene.seconds * 0.15)
        victim = scene.cluster.nodes[scene.chance.choice(await scene.followers())]
        fault = scene.fault(f"kill -9 {victim.name}; {what} is damaged")
        await scene.cluster.kill(victim.name)
        scene.notes.append(f"{victim.name}: {damage(victim.data, scene.chance)}")
        await refused_or_well(scene, victim, f"the damage to {what}", 1.0)
        scene.over(fault, f"{victim.name} is whole again")


def _flip_row(data: Path, chance: random.Random) -> str:
    return _flip_value(data, b"rows", chance)


def _flip_entry(data: Path, chance: random.Random) -> str:
    return _flip_value(data, b"journal", chance)


def _flip_value(data: Path, table: bytes, chance: random.Random) -> str:
    """Changes a bit of one value in place: everywhere in the file where its bytes stand."""
    with lmdb.open(str(data / "lmdb"), readonly=True, lock=False, max_dbs=8) as environment:
        database = environment.open_db(table, create=False)
        with environment.begin() as transaction:
            values = [(bytes(key), bytes(value)) for key, value in transaction.cursor(database) if len(value) >= 8]
    if not values:
        raise Broken(f"there was nothing in {table.decode()} to change")
    key, value = chance.choice(values)
    changed = bytearray(value)
    changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    path = data / "lmdb" / "data.mdb"
    content = path.read_bytes()
    # A long value may lie on several pages in one run; copies that are no longer in use do no harm.
    path.write_bytes(content.replace(value, bytes(changed)))
    return f"the value of {key!r} in {table.decode()} is changed in {content.count(value)} places"


def _flip_ahead(data: Path, chance: random.Random) -> str:
    files = [path for path in sorted((data / "ahead").glob("*")) if path.is_file() and any(path.read_bytes()[:64])]
    if not files:
        raise Broken("there was no log ahead to change")
    path = chance.choice(files)
    content = path.read_bytes().rstrip(b"\0")
    at = chance.randrange(len(content) // 2 or 1)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1 << chance.randrange(8)]))
    return f"byte {at} of {path.name} of the log ahead, which has {len(content)}"


def _tear_ahead(data: Path, chance: random.Random) -> str:
    files = [path for path in (data / "ahead").glob("*") if path.is_file() and any(path.read_bytes()[:64])]
    if not files:
        raise Broken("there was no log ahead to tear")
    path = max(files, key=lambda path: path.stat().st_mtime_ns)
    written = len(path.read_bytes().rstrip(b"\0"))
    lost = min(chance.randrange(1, 400), written // 2)
    with path.open("r+b") as file:
        file.seek(written - lost)
        file.write(bytes(lost))
    return f"the last {lost} of {written} bytes of {path.name} of the log ahead are zeros"


DRILLS = [
    Drill("segment-damage", "found, named, and fetched from another node", segment_damage, 8.0, more_mib=900.0),
    Drill("flipped-rows", "refused or recovered, never served", flipped_rows, 8.0),
]
