"""What callers do all day: producers bring items, workers live with them, an operator turns the knobs."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from chaos.checkers import Acknowledged
from chaos.simulation.callers import Caller, Door
from chaos.simulation.world import World
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.items import Failure, ItemColumns
from resourcelease.model.ops import (
    BeginEffect,
    Complete,
    Configure,
    Drain,
    Enqueue,
    Fail,
    FinishEffect,
    GiveBack,
    Heartbeat,
    Lease,
    Pause,
    Redrive,
    Restore,
    Resume,
)
from resourcelease.model.results import Drained, EffectState, Enqueued, Granted

__all__ = ["Operator", "Producer", "Worker", "crew"]

NAMESPACES = ("resourcelease", "resourcelease.b")


class Producer(Caller):
    """Enqueues: one item or some, sometimes later, sometimes under a request id, sometimes under one it used before."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._requests: list[str] = []

    def live(self) -> None:
        """The next call; now and then two in one proposal."""
        ops = [self._enqueue() for _ in range(2 if self._rng.random() < 0.1 else 1)]
        self._ask_all(ops, lambda results: self._told(ops, results, 3))

    def _enqueue(self) -> Enqueue:
        rng = self._rng
        size = rng.choice((1, 1, 1, 2, 5))
        call = self._signed()
        names = [f"{call.operation_id}-{place}" for place in range(size)]
        columns = ItemColumns(size, "table", names)
        if rng.random() < 0.4:
            requests = [rng.choice(self._requests) if self._requests and rng.random() < 0.2 else name for name in names]
            self._requests = [*self._requests, *requests][-20:]
            columns = columns._replace(request_id=requests)
        if rng.random() < 0.15:
            columns = columns._replace(not_before_ms=rng.randint(1, 1500))
        if rng.random() < 0.2:
            columns = columns._replace(priority=[rng.randint(0, 9) for _ in names])
        return Enqueue(call, columns.packed())

    def _told(self, ops: Sequence[Enqueue], results: Sequence[Any], patience: int) -> None:
        full = all(isinstance(result, Enqueued) and not any(result.sequence_ids) for result in results)
        if full and patience:
            # As a node does for a caller that waits: the same operation, asked anew.
            again = [op._replace(call=op.call._replace(take=op.call.take + 1)) for op in ops]
            self._later(0.2, self._ask_all, again, lambda told: self._told(again, told, patience - 1))
        else:
            self._think()


class _Held(NamedTuple):
    sequence_ids: list[int]
    attempts: list[int]
    fences: list[int]
    # When the leases end at the earliest, as far as their holder can tell.
    ends_at: float


class Worker(Caller):
    """Leases, and then does well, badly, late or nothing at all."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._fates: dict[Callable[[_Held], None], float] = {
            self._in_time: 0.35,
            self._with_heartbeats: 0.15,
            self._at_the_last_moment: 0.12,
            self._too_late: 0.06,
            self._fail: 0.12,
            self._give_back: 0.05,
            self._complete_twice: 0.05,
            self._with_an_effect: 0.05,
            self._die: 0.05,
        }

    def live(self) -> None:
        """Asks for work."""
        if self._rng.random() < 0.05:
            self._ask(Heartbeat(self._signed()), lambda _: self._think())
            return
        self._ask(Lease(self._signed(), self._rng.choice((1, 1, 2, 4))), self._granted)

    def _granted(self, result: Any) -> None:
        if not isinstance(result, Granted) or not result.sequence_ids:
            if isinstance(result, Refusal) and result.reason is Reason.PEER_UNHEALTHY:
                self._ask(Heartbeat(self._signed()), lambda _: self._think())
            else:
                self._later(self._rng.uniform(0.05, 0.3), self.live)
            return
        ends_at = self._world.now + result.left_ms / 1000.0
        held = _Held(list(result.sequence_ids), list(result.attempts), list(result.fences), ends_at)
        (fate,) = self._rng.choices(list(self._fates), list(self._fates.values()))
        fate(held)

    def _left_s(self, held: _Held) -> float:
        return max(0.0, held.ends_at - self._world.now)

    def _complete(self, held: _Held, then: Callable[[Any], None] | None = None) -> None:
        self._ask(Complete(self._signed(), *held[:3]), then or (lambda _: self._think()))

    def _in_time(self, held: _Held) -> None:
        self._later(self._rng.uniform(0.0, min(self._think_s, 0.5 * self._left_s(held))), self._complete, held)

    def _with_heartbeats(self, held: _Held, beats: int = 3) -> None:
        if beats == 0:
            self._complete(held)
            return
        whole = self._rng.random() < 0.3
        wait_s = self._left_s(held) * 0.4

        def beat() -> None:
            op = Heartbeat(self._signed()) if whole else Heartbeat(self._signed(), *held[:3])
            self._ask(op, lambda result: self._with_heartbeats(self._extended(held, result), beats - 1))

        self._later(wait_s, beat)

    def _extended(self, held: _Held, result: Any) -> _Held:
        left_ms = getattr(result, "left_ms", 0)
        return held._replace(ends_at=max(held.ends_at, self._world.now + left_ms / 1000.0))

    def _at_the_last_moment(self, held: _Held) -> None:
        self._later(max(0.0, self._left_s(held) + self._rng.uniform(-0.05, 0.02)), self._complete, held)

    def _too_late(self, held: _Held) -> None:
        self._later(self._left_s(held) * self._rng.uniform(1.0, 1.5) + 0.02, self._complete, held)

    def _fail(self, held: _Held) -> None:
        rng = self._rng
        requeue = [rng.random() < 0.8 for _ in held.sequence_ids]
        delay_ms = rng.choice((None, 0, rng.randint(1, 800)))
        op = Fail(self._signed(), *held[:3], requeue, delay_ms, [Failure("E", "it broke", {"by": self.name})])
        self._later(rng.uniform(0.0, self._think_s), self._ask, op, lambda _: self._think())

    def _give_back(self, held: _Held) -> None:
        self._ask(GiveBack(self._signed(), *held[:3]), lambda _: self._think())

    def _complete_twice(self, held: _Held) -> None:
        """The second time under another operation id, as after a crash that took the first one with it."""

        def again(_: Any) -> None:
            self._later(self._rng.uniform(0.0, 2.0), self._complete, held)

        self._complete(held, again)

    def _with_an_effect(self, held: _Held) -> None:
        """Something that is to happen once, whoever comes by first; its result is everyone's."""
        effect = f"effect-{self._rng.randint(1, 8)}"
        handle = held.sequence_ids[0], held.attempts[0], held.fences[0]

        def begun(result: Any) -> None:
            if not isinstance(result, EffectState) or result.finished:
                self._complete(held)
                return
            op = FinishEffect(self._signed(), effect, *handle, self.name.encode())
            self._later(self._rng.uniform(0.0, 0.3), self._ask, op, lambda _: self._complete(held))

        self._ask(BeginEffect(self._signed(), effect, *handle), begun)

    def _die(self, held: _Held) -> None:
        self._world.faults["worker died"] += 1
        self._later(self._rng.uniform(0.5, 3.0), self.live)


class Operator(Caller):
    """Sets a namespace up, and then interferes with it."""

    def live(self) -> None:
        """First the options, so that leases are short enough to end within a run."""
        rng = self._rng
        high = rng.choice((None, None, 16))
        options = {
            "lease_duration_ms": rng.choice((300, 800, 2000)),
            "max_attempts": rng.choice((2, 3, 5)),
            "requeue_delay_ms": rng.choice((0, 0, 150)),
            "requeue_multiplier": 2,
            "capacity": rng.choice((20, 100, 100)),
            "high_watermark": high,
            "low_watermark": None if high is None else high // 2,
            "dedup_window_ms": rng.choice((1500, 3_600_000)),
            "dead_letter_limit": rng.choice((3, 100)),
            "enforce_peer_health": rng.random() < 0.2,
        }
        self._ask(Configure(self._signed(), options), lambda _: self._rest())

    def _rest(self) -> None:
        deeds = (self._pause, self._redrive, self._drain)
        self._later(self._rng.uniform(0.5, 2.5), self._rng.choice(deeds))

    def _pause(self) -> None:
        def resume() -> None:
            self._ask(Resume(self._signed()), lambda _: self._rest())

        self._ask(Pause(self._signed()), lambda _: self._world.after(self._rng.uniform(0.0, 0.3), resume))

    def _redrive(self) -> None:
        self._ask(Redrive(self._signed(), limit=5, delay_ms=self._rng.choice((0, 200))), lambda _: self._rest())

    def _drain(self) -> None:
        call = self._signed()
        op = Drain(call, f"bundle-{call.operation_id}", 0, self._rng.randint(1, 5), 10_000, self._rng.random() < 0.5)
        self._ask(op, self._restore)

    def _restore(self, drained: Any) -> None:
        if not isinstance(drained, Drained) or not drained.size:
            self._rest()
            return

        def told(result: Any) -> None:
            # Full, perhaps: a page that was drained must come back, whenever that is.
            if isinstance(result, Refusal):
                self._later(0.5, put_back)
            else:
                self._rest()

        def put_back() -> None:
            self._ask(Restore(self._signed(), drained.page), told)

        self._world.after(self._rng.uniform(0.0, 1.0), put_back)


def crew(world: World, doors: Sequence[Door], judge: Acknowledged, clients: int, think_s: float) -> list[Caller]:
    """So many producers and workers, in one namespace or two, and an operator for each."""
    spaces = NAMESPACES if clients > 5 and world.rng.random() < 0.3 else NAMESPACES[:1]
    people: list[Caller] = [
        Operator(f"operator-{number}", space, world, doors, judge, think_s) for number, space in enumerate(spaces)
    ]
    for number in range(clients):
        kind = Worker if number % 3 else Producer
        space = spaces[number // 3 % len(spaces)]
        people.append(kind(f"{kind.__name__.lower()}-{number}", space, world, doors, judge, think_s))
    return people
