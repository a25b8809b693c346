"""Looks at every node a few times a second: who leads in which term, how much memory, how many files."""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from chaos.checkers import OneLeaderATerm, Violation
from chaos.drills.cluster import Cluster
from chaos.drills.history import History
from resourcelease import v1
from resourcelease.client import Client, ResourceLeaseError

__all__ = ["Look", "Usage", "Watch", "usage", "waited_s"]

_PAUSE_S = 0.2
_PATIENCE_S = 0.5


@dataclass(frozen=True, slots=True)
class Look:
    """One node at one moment; ``role`` is leader, follower, silent or down."""

    at: float
    node: str
    role: str
    term: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process uses."""

    resident_mib: float
    files: int
    threads: int


@dataclass(slots=True)
class Watch:
    """The looks, and what was wrong about them."""

    cluster: Cluster
    client: Client
    history: History
    looks: list[Look] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    _judge: OneLeaderATerm = field(default_factory=OneLeaderATerm)
    _task: "asyncio.Task[None] | None" = None

    def start(self) -> None:
        """Begins to look."""
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Ends it; if it had ended by itself, nobody has watched since, and that is a problem."""
        task, self._task = self._task, None
        if task is not None:
            if task.done() and (error := task.exception()) is not None:
                self.problems.append(f"nobody watched the nodes any more after {error!r}")
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            await asyncio.gather(*(self._look(name) for name in self.cluster.names))
            await asyncio.sleep(_PAUSE_S)

    async def _look(self, name: str) -> None:
        node = self.cluster.nodes.get(name)
        if node is None:
            # Removed since the round began.
            return
        role, term = "down", 0
        if node.pid is not None:
            role = "silent"
            with contextlib.suppress(ResourceLeaseError, TimeoutError):
                async with asyncio.timeout(_PATIENCE_S):
                    status = await self.client.status(node=node.address)
                    term = status.term
                    leads = status.role == v1.NodeRole.NODE_ROLE_LEADER
                    role = "leader" if leads else "follower"
        if role == "leader":
            try:
                self._judge.leads(name, term)
            except Violation as violation:
                self.problems.append(str(violation))
        self.looks.append(Look(self.history.now(), name, role, term))


def waited_s() -> float:
    """How long this thread has been ready to go on and had no processor, since it began; 0 where nobody counts that."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def usage(pid: int) -> Usage:
    """What a process uses now, as the kernel says."""
    process = Path(f"/proc/{pid}")
    fields = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    files = sum(1 for _ in (process / "fd").iterdir())
    # Pages of mapped files, as LMDB has them, are the kernel's to take back.
    return Usage(int(fields["RssAnon"].split()[0]) / 1024, files, int(fields["Threads"]))
