"""Those who call: the same operation, to one node after the other, until it is answered."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from chaos.checkers import Acknowledged, Violation
from chaos.simulation.world import World
from resourcelease.model.ops import Call, Op, pack_op

__all__ = ["Caller", "Door"]

# How often an answered operation is asked again, as if its answer had been lost.
_AGAIN_RATE = 0.08


class Door(Protocol):
    """A node as its callers see it."""

    def propose(self, ops: list[bytes], deadline_s: float, answer: Callable[[Any], None]) -> None:
        """Asks for operations, and is called back with their results or an exception."""


class Caller:
    """Calls one operation after the other; what it does is for its kinds to say."""

    def __init__(
        self, name: str, namespace: str, world: World, doors: Sequence[Door], judge: Acknowledged, think_s: float
    ) -> None:
        self.name = name
        self.namespace = namespace
        self.answered = 0
        self._world = world
        self._rng = world.rng
        self._doors = doors
        self._judge = judge
        self._think_s = think_s
        self._count = 0
        self._stopped = False

    def start(self) -> None:
        """Begins."""
        self._later(self._rng.uniform(0.0, 1.0), self.live)

    def stop(self) -> None:
        """No new operations; the one under way goes on until it is answered."""
        self._stopped = True

    def live(self) -> None:
        """The next thing to do, when nothing is under way."""
        raise NotImplementedError

    def _think(self) -> None:
        self._later(self._rng.uniform(0.0, self._think_s), self.live)

    def _later(self, delay_s: float, what: Callable[..., None], *args: Any) -> None:
        self._world.after(delay_s, self._unless_stopped, what, args)

    def _unless_stopped(self, what: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self._stopped:
            what(*args)

    def _signed(self, take: int = 0) -> Call:
        """The call of a new operation."""
        self._count += 1
        return Call(self.namespace, self.name, "", f"{self.name}-{self._count}", take)

    def _ask(self, op: Op, then: Callable[[Any], None]) -> None:
        """One operation until it is answered."""
        self._ask_all([op], lambda results: then(results[0]))

    def _ask_all(self, ops: Sequence[Op], then: Callable[[Sequence[Any]], None]) -> None:
        """Several in one proposal."""
        self._propose(ops, [pack_op(op) for op in ops], then)

    def _propose(self, ops: Sequence[Op], packed: list[bytes], then: Callable[[Sequence[Any]], None]) -> None:
        def answer(results: Any) -> None:
            if isinstance(results, Exception):
                self._world.after(self._rng.uniform(0.05, 0.3), self._propose, ops, packed, then)
                return
            self._hear(ops, results)
            self.answered += 1
            if self._rng.random() < _AGAIN_RATE:
                self._later(self._rng.uniform(0.0, 2.0), self._repeat, ops, packed)
            then(results)

        self._rng.choice(self._doors).propose(packed, self._rng.uniform(0.3, 2.5), answer)

    def _repeat(self, ops: Sequence[Op], packed: list[bytes]) -> None:
        def answer(results: Any) -> None:
            if not isinstance(results, Exception):
                self._hear(ops, results)

        self._rng.choice(self._doors).propose(packed, 2.0, answer)

    def _hear(self, ops: Sequence[Op], results: Sequence[Any]) -> None:
        if len(results) != len(ops):
            raise Violation(
                "answers belong to their calls", f"{self.name} has {len(results)} results for {len(ops)} operations"
            )
        for op, result in zip(ops, results, strict=True):
            self._judge.answered(op, result)
