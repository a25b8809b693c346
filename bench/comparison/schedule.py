"""What is run after what, and what becomes of the figures: rounds outside, shapes in them, peers in turn."""

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from bench.comparison.runs import Bench
from bench.comparison.shapes import LOADS, Effort
from bench.peers import PEERS

__all__ = ["Schedule", "rivals"]

OURS = "ours"
# The rates of the steady shapes come from this one.
_BASE = "32x1"


def rivals(peers: Sequence[str]) -> list[str]:
    """Those that promise what ours does: an answer means on several nodes, and on disk there."""
    return [name for name in peers if name != OURS and PEERS[name].replicated and PEERS[name].fsyncs]


class Schedule:
    """All runs of all peers. What fails is written down, and the rest goes on."""

    def __init__(self, bench: Bench, peers: Sequence[str], shapes: Sequence[str], effort: Effort) -> None:
        self._bench = bench
        self._peers = list(peers)
        self._shapes = shapes
        self._effort = effort
        self.failures: list[dict[str, Any]] = []
        # Peer and shape: what each round gave.
        self.runs: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def run(self) -> None:
        """Everything."""
        for turn in range(self._effort.rounds):
            for shape in self._shapes:
                if shape in LOADS:
                    self._each(shape, turn, lambda name, shape=shape: self._bench.load(name, shape))  # type: ignore[misc]
                elif shape in ("half", "even"):
                    self._steady(shape, turn)
        for turn in range(self._effort.depth_rounds if "depth" in self._shapes else 0):
            self._each("depth", turn, self._bench.depth)
        if "failover" in self._shapes:
            able = [name for name in self._peers if PEERS[name].fails_over]
            self._each("failover", 0, self._bench.failover, able)

    def _turns(self, turn: int, peers: Sequence[str] | None = None) -> Iterator[str]:
        """Each round begins with another peer, so that none always runs on what another left behind."""
        order = self._peers if peers is None else list(peers)
        at = turn % max(len(order), 1)
        yield from order[at:] + order[:at]

    def _each(
        self, shape: str, turn: int, run: Callable[[str], dict[str, Any]], peers: Sequence[str] | None = None
    ) -> None:
        for name in self._turns(turn, peers):
            self._once(name, shape, turn, run)

    def _once(self, name: str, shape: str, turn: int, run: Callable[[str], dict[str, Any]]) -> None:
        begun = time.monotonic()
        try:
            result = run(name)
        except Exception as error:
            self.failures.append(
                {"peer": name, "shape": shape, "round": turn, "error": f"{type(error).__name__}: {error}"}
            )
            said = f"failed: {type(error).__name__}: {error}"
        else:
            self.runs.setdefault((name, shape), []).append(result)
            said = _gist(result)
        print(f"  {shape:9} {name:15} {said}  [{time.monotonic() - begun:.1f} s]", file=sys.stderr, flush=True)

    def _base_rate(self, name: str, turn: int) -> float:
        """What the peer does under full load; measured now if it was not before."""
        if not self.runs.get((name, _BASE)):
            self._once(name, _BASE, turn, lambda peer: self._bench.load(peer, _BASE))
        return float(statistics.median([run["rate"] for run in self.runs.get((name, _BASE), ())] or [0.0]))

    def _steady(self, shape: str, turn: int) -> None:
        bases = {name: self._base_rate(name, turn) for name in self._peers}
        alike = [bases[name] for name in (OURS, *rivals(self._peers)) if bases.get(name)]
        for name in self._turns(turn):
            rate = bases[name] / 2 if shape == "half" else min(alike, default=0.0) / 2
            if rate > 0:
                self._once(name, shape, turn, lambda peer, rate=rate: self._bench.steady(peer, rate))  # type: ignore[misc]


def _gist(result: dict[str, Any]) -> str:
    if "levels" in result:
        return ", ".join(f"{level['filled']:,}: {level['rate']:,.0f}/s" for level in result["levels"])
    if "step_s" in result:
        return f"first answer after {statistics.median(result['step_s']) * 1000:,.0f} ms"
    return f"{result['rate']:,.0f} lives/s"
