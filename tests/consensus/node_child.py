"""One real node in a process of its own, told by lines of JSON what to do; see ``processes.py`` for who tells it."""

import asyncio
import errno
import json
import os
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

from bench.processes import die_with_parent
from resourcelease.consensus import Consensus, Machines, NoLeader, OutcomeUnknown, Settings
from resourcelease.machine import Machine
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Enqueue, pack_op
from resourcelease.storage import LmdbStore, StoreOptions, points

# Quick enough for a test, slow enough for a machine that others use too.
SETTINGS = Settings(heartbeat_s=0.05, election_min_s=0.4, election_max_s=0.8, fallback_s=1.0, retry_s=0.3)
OPTIONS = StoreOptions(ballast_bytes=0, map_size_bytes=16 << 20, full_retry_s=0.05)


class Child:
    """What can be asked; each answer is sent back as JSON."""

    def __init__(self, name: str, directory: Path, node: Consensus) -> None:
        self._name = name
        self._node = node
        # Written without a buffer: what is in it was answered, whatever becomes of this process.
        self._acked = os.open(directory / f"{name}.acked", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._answers = asyncio.Condition()
        self._count = 0
        self._callers: list[asyncio.Task[None]] = []

    async def status(self) -> dict[str, Any]:
        status = self._node.status()
        return {
            "leader": status.leader,
            "leads": self._node.is_leader,
            "term": status.term,
            "applied": status.applied_index,
            "members": dict(status.members),
        }

    async def load(self, callers: int = 4) -> None:
        """Enqueues without an end, each item under an operation id that is asked again until it is answered."""
        run = os.urandom(4).hex()
        numbers = count()
        self._callers = [asyncio.create_task(self._call(run, numbers)) for _ in range(callers)]

    async def _call(self, run: str, numbers: "count[int]") -> None:
        for number in numbers:
            name = f"{self._name}-{run}-{number}"
            # A peer of its own, as the front door gives each caller: answers are kept for each, so many.
            call = Call("jobs", self._name, operation_id=name)
            op = pack_op(Enqueue(call, ItemColumns(1, "table", [name], body=[bytes(50)]).packed()))
            while True:
                try:
                    (result,) = await self._node.propose([op], 1.0)
                except (NoLeader, OutcomeUnknown):
                    await asyncio.sleep(0.01)
                    continue
                break
            os.write(self._acked, f"{name} {result.sequence_ids[0]}\n".encode())
            self._count += 1
            async with self._answers:
                self._answers.notify_all()

    async def answers(self, more: int, timeout_s: float = 30.0) -> int:
        """Waits until so many more calls of this node's have been answered."""
        wanted = self._count + more
        async with asyncio.timeout(timeout_s), self._answers:
            await self._answers.wait_for(lambda: self._count >= wanted)
        return self._count

    async def rest(self) -> None:
        for caller in self._callers:
            caller.cancel()
        await asyncio.gather(*self._callers, return_exceptions=True)

    async def leader(self, but: str = "", timeout_s: float = 20.0) -> str:
        """Waits until a leader is known here, other than ``but``."""
        async with asyncio.timeout(timeout_s):
            while (leader := self._node.leader) is None or leader == but:  # noqa: ASYNC110 nobody tells of it
                await asyncio.sleep(0.01)
        return leader

    async def applied(self, index: int, timeout_s: float = 20.0) -> int:
        """Waits until the node has applied an entry."""
        async with asyncio.timeout(timeout_s):
            while self._node.status().applied_index < index:  # noqa: ASYNC110 a snapshot may be what brings it
                await asyncio.sleep(0.01)
        return self._node.status().applied_index

    async def barrier(self) -> int:
        return await self._node.barrier(20.0)

    async def state(self) -> dict[str, Any]:
        """All items by sequence id, and digests of state and history."""
        machine = self._node.machine
        assert isinstance(machine, Machine)
        ids = machine.pending_ids("jobs")
        items = {str(number): item.item.resource_id for number in ids if (item := machine.item("jobs", number))}
        return {"items": items, "digest": machine.digest().hex(), "chain": machine.chain().hex()}

    async def add(self, node: str, address: str) -> None:
        await self._node.add_member(node, address, 20.0)

    async def remove(self, node: str) -> None:
        await self._node.remove_member(node, 20.0)

    async def transfer(self, node: str = "") -> None:
        await self._node.transfer_leadership(node, 10.0)

    async def fill_disk(self) -> None:
        """From here on nothing that is written finds space."""

        def hook(point: str) -> None:
            if point in ("ahead.begun", "commit.applied", "compaction.applied"):
                raise OSError(errno.ENOSPC, "no space left on device")

        points.set_hook(hook)

    async def free_disk(self) -> None:
        points.set_hook(None)


async def run(name: str, directory: Path, address: str, bootstrap: dict[str, str], how: dict[str, Any]) -> None:
    store = LmdbStore(directory / name, cluster_id="test", node_id=name, options=OPTIONS)
    machines = Machines(lambda: Machine("test"), Machine.load_rows)
    node = Consensus(
        store=store,
        machines=machines,
        listen=address,
        bootstrap=bootstrap,
        settings=replace(SETTINGS, **how["settings"]),
        founding=how["founding"],
    )
    await node.start()
    child = Child(name, directory, node)
    print("0", flush=True)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        order = json.loads(line)
        try:
            answer = await getattr(child, order.pop("do"))(**order)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    die_with_parent()
    name, directory, address, bootstrap, how = sys.argv[1:]
    asyncio.run(run(name, Path(directory), address, json.loads(bootstrap), json.loads(how)))
    os._exit(0)
