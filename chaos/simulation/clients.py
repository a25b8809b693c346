"""Callers that do not give up: the same operation, to another node, until it is answered."""

from typing import Any

from chaos.checkers import Acknowledged
from chaos.simulation.node import Node
from chaos.simulation.world import World

__all__ = ["Client"]


class Client:
    """Calls one operation after the other; never the next before the last is answered."""

    def __init__(self, name: str, world: World, nodes: list[Node], acknowledged: Acknowledged, think_s: float) -> None:
        self.name = name
        self._world = world
        self._nodes = nodes
        self._acknowledged = acknowledged
        self._think_s = think_s
        self._count = 0
        self._stopped = False
        self.answered = 0

    def start(self) -> None:
        """Begins."""
        self._world.after(self._world.rng.uniform(0.0, 1.0), self._next)

    def stop(self) -> None:
        """No new operations; the one under way goes on until it is answered."""
        self._stopped = True

    def _next(self) -> None:
        if self._stopped:
            return
        self._count += 1
        rng = self._world.rng
        names = [
            f"{self.name}-{self._count}-{part}{'!' if rng.random() < 0.2 else ''}".encode()
            for part in range(rng.choice((1, 1, 1, 3)))
        ]
        self._call(names)

    def _call(self, names: list[bytes]) -> None:
        node = self._world.rng.choice(self._nodes)
        node.propose(names, self._world.rng.uniform(0.3, 2.5), lambda answer: self._answered(names, answer))

    def _answered(self, names: list[bytes], answer: Any) -> None:
        if isinstance(answer, Exception):
            self._world.after(self._world.rng.uniform(0.05, 0.3), self._call, names)
            return
        assert len(answer) == len(names), f"{len(answer)} results for {len(names)} ops"
        for name, result in zip(names, answer, strict=True):
            self._acknowledged.acknowledged(name, result)
        self.answered += 1
        self._world.after(self._world.rng.uniform(0.0, self._think_s), self._next)
