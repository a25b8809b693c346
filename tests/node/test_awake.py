"""A loop stays awake between entries that come one right after the other, and only then."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from resourcelease.node import awake as awake_module
from resourcelease.node.awake import Awake

AT_ONCE, LATE = 0.0005, 0.005


class Watched:
    """A loop that is kept awake, with a clock that is told how late it is, and with looks that are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.looks = 0
        # What passes while others are let through.
        self.away = 0.0
        monkeypatch.setattr(awake_module, "_let_others_through", self._let_through)
        self.awake = Awake(lambda: self.now)

    def _let_through(self) -> None:
        self.looks += 1
        self.now += self.away

    def entries(self, count: int, after: float) -> None:
        for _ in range(count):
            self.now += after
            self.awake.stirred()

    async def passes(self, after: float) -> int:
        """How many looks there are in ten passes of the loop, of which each takes so long."""
        before = self.looks
        for _ in range(10):
            await asyncio.sleep(0)
            self.now += after
        return self.looks - before


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scenario())


def test_a_loop_looks_again_for_a_moment_after_an_entry_and_then_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.entries(20, AT_ONCE)
        assert await watched.passes(0.00001) == 10
        # The moment is a millisecond and a half, from the last entry on.
        assert 3 <= await watched.passes(0.0004) <= 4
        assert await watched.passes(0.0004) == 0
        watched.entries(1, 0.0)
        assert await watched.passes(0.00001) == 10, "and the next entry wakes it for another one"

    run(scenario)


def test_entries_that_come_one_by_one_let_it_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.entries(3, AT_ONCE)
        assert await watched.passes(0.0) == 0, "three are not many"
        for _ in range(100):
            watched.entries(1, LATE)
            assert await watched.passes(0.0) == 0

    run(scenario)


def test_one_that_is_late_is_forgiven_and_several_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.entries(1_000, AT_ONCE)
        watched.entries(1, LATE)
        assert await watched.passes(0.00001) == 10
        await watched.passes(LATE)
        watched.entries(5, LATE)
        assert await watched.passes(0.00001) == 0

    run(scenario)


def test_whoever_wants_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.away = 0.0001
        watched.entries(20, AT_ONCE)
        assert await watched.passes(0.0) == 1, "somebody else ran, so this loop sleeps"
        watched.away = 0.000002
        watched.entries(1, AT_ONCE)
        assert await watched.passes(0.0) == 10

    run(scenario)
