"""One peer, one shape, once: started fresh, loaded, checked, stopped. What comes back are plain figures."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.comparison.driver import FILL_CLIENT
from bench.comparison.ledger import Wrong, judge, numbers
from bench.comparison.shapes import DEPTH_BATCH, DEPTH_WORKERS, LOADS, Effort
from bench.peers import PEERS, Peer
from bench.peers.servers import bytes_in_memory, bytes_on_disk, touch_memory
from bench.processes import Process

__all__ = ["Bench"]

_POLL_SECONDS = 0.05
_FAILOVER_SECONDS = 30.0
_COUNT_SECONDS = 5.0
# Between two kills, and for the cluster to settle after a start.
_SETTLE_SECONDS = 1.0


class Bench:
    """Runs peers in a directory of its own, which is gone afterwards."""

    def __init__(self, home: Path, effort: Effort, *, uvloop: bool = False) -> None:
        self._effort = effort
        self._flags = ["--uvloop"] if uvloop else []
        self.home = Path(tempfile.mkdtemp(prefix="resourcelease-bench-", dir=home))
        # Servers that may not be root have to come through.
        self.home.chmod(0o711)

    def close(self) -> None:
        """Removes everything."""
        shutil.rmtree(self.home, ignore_errors=True)

    @contextmanager
    def _peer(self, name: str) -> Iterator[Peer]:
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.home))
        peer = PEERS[name](directory)
        try:
            peer.start()
            yield peer
        finally:
            peer.stop()
            shutil.rmtree(directory, ignore_errors=True)
            # What it left for the kernel to write is not the next one's to wait for.
            os.sync()

    @contextmanager
    def _drivers(self, peer: Peer, processes: int, workers: int, batch: int) -> Iterator[list[Process]]:
        with ExitStack() as stack:
            drivers = []
            for _ in range(processes):
                driver = Process(
                    ["-m", "bench.comparison.driver"], [peer.name, *self._flags], self.home / "drivers.log"
                )
                stack.callback(driver.kill)
                drivers.append(driver)
            connect = peer.connect()
            for client, driver in enumerate(drivers, 1):
                driver.tell("open", connect=connect, client=client, workers=workers, batch=batch)
            for driver in drivers:
                driver.answer()
            yield drivers

    def load(self, name: str, shape: str) -> dict[str, Any]:
        """Workers in a closed loop."""
        load, effort = LOADS[shape], self._effort
        order = {"workers": load.workers, "batch": load.batch, "warm": effort.warm, "seconds": effort.seconds}
        with self._peer(name) as peer, self._drivers(peer, load.processes, load.workers, load.batch) as drivers:
            answers = _all(drivers, "closed", **order)
            _check(drivers)
        return _joined(answers)

    def steady(self, name: str, rate: float, workers: int = 32) -> dict[str, Any]:
        """Arrivals at a rate."""
        effort = self._effort
        order = {"workers": workers, "rate": rate, "warm": effort.warm, "seconds": effort.steady_seconds}
        with self._peer(name) as peer, self._drivers(peer, 1, workers, 1) as drivers:
            answers = _all(drivers, "steady", **order)
            _check(drivers)
        return _joined(answers) | {"asked_rate": rate}

    def depth(self, name: str) -> dict[str, Any]:
        """The same load on a longer and longer backlog; and what an item of the longest takes."""
        effort, levels = self._effort, []
        order = {"workers": DEPTH_WORKERS, "batch": DEPTH_BATCH, "warm": effort.warm, "seconds": effort.seconds}
        with self._peer(name) as peer, self._drivers(peer, 1, DEPTH_WORKERS, DEPTH_BATCH) as drivers:
            driver = drivers[0]
            driver.ask("closed", **order | {"seconds": effort.depth_seasoning})
            # What the load itself leaves behind in logs is not the backlog's.
            memory, disk = _footprint(peer)
            size: dict[str, Any] = {}
            for depth in effort.depths:
                filled = driver.ask("fill", items=depth, seconds=effort.fill_seconds)
                if depth == effort.depths[-1] and filled["items"] > effort.depths[0]:
                    now_memory, now_disk = _footprint(peer)
                    grown = filled["items"] - (effort.depths[-2] if len(effort.depths) > 1 else 0)
                    size = {
                        "items": filled["items"],
                        "memory_bytes_per_item": round((now_memory - memory) / max(grown, 1)),
                        "disk_bytes_per_item": round((now_disk - disk) / max(grown, 1)),
                    }
                touch_memory()
                # The load is measured, not the fill: what that left for the kernel to write is written.
                os.sync()
                answer = driver.ask("closed", **order)
                levels.append(
                    {"depth": depth, "filled": filled["items"], "fill_s": round(filled["seconds"], 2), **answer}
                )
                memory, disk = _footprint(peer)
            _check(drivers, [numbers(FILL_CLIENT, 0, int(levels[-1]["filled"]))])
        return {"levels": levels, "size": size}

    def failover(self, name: str) -> dict[str, Any]:
        """The leader killed with -9 again and again, each time from a settled cluster."""
        effort, steps, lives = self._effort, [], []
        with self._peer(name) as peer, self._drivers(peer, 1, 32, 1) as drivers:
            driver = drivers[0]
            driver.ask("hammer")
            for _ in range(effort.failovers):
                time.sleep(_SETTLE_SECONDS)
                leader = peer.leader()
                killed_at = time.monotonic()
                leader.kill()
                first = _first(driver, killed_at)
                steps.append(first["step"] - killed_at)
                lives.append(first["life"] - killed_at)
                peer.revive(leader)
            errors = driver.ask("rest", drain=effort.drain_seconds)["errors"]
            left = driver.ask("depth")["depth"]
            judge([driver.ask("books")], left=left, lax=True)
        return {"step_s": steps, "life_s": lives, "errors": errors, "left": left}


def _first(driver: Process, moment: float) -> dict[str, float]:
    while time.monotonic() < moment + _FAILOVER_SECONDS:
        first: dict[str, float] = driver.ask("first_after", moment=moment)
        if first["life"] is not None:
            return first
        time.sleep(_POLL_SECONDS)
    raise TimeoutError(f"nothing succeeded within {_FAILOVER_SECONDS:g} s of the leader's end")


def _all(drivers: Sequence[Process], do: str, **order: Any) -> list[dict[str, Any]]:
    """The same order to all at once."""
    for driver in drivers:
        driver.tell(do, **order)
    return [driver.answer() for driver in drivers]


def _joined(answers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    times: dict[str, list[float]] = {}
    for answer in answers:
        for step, kept in answer["times_us"].items():
            times.setdefault(step, []).extend(kept)
    return {"rate": sum(answer["rate"] for answer in answers), "times_us": times}


def _check(drivers: Sequence[Process], backlog: Sequence[range] = ()) -> None:
    """Judges the books; what the peer counts may lag behind what it has confirmed, for a while."""
    books = [driver.ask("books") for driver in drivers]
    end = time.monotonic() + _COUNT_SECONDS
    while True:
        left = drivers[0].ask("depth")["depth"]
        try:
            judge(books, backlog=backlog, left=left)
        except Wrong:
            if time.monotonic() > end:
                raise
            time.sleep(_POLL_SECONDS * 4)
        else:
            return


def _footprint(peer: Peer) -> tuple[int, int]:
    pids = [server.pid for server in peer.servers if server.pid is not None]
    return bytes_in_memory(pids), bytes_on_disk(peer.data())
