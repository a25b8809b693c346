"""A loop stays awake between entries that come one right after the other, and only then."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from resourcelease.node import awake as awake_module
from resourcelease.node import run as run_module
from resourcelease.node.awake import Awake, is_rationed
from resourcelease.node.config import load
from resourcelease.node.run import _stirred

AT_ONCE, LATE = 0.0005, 0.005


class Watched:
    """A loop that is kept awake, with a clock that is told how late it is, and with looks that are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.looks = 0
        # What passes while others are let through.
        self.away = 0.0
        monkeypatch.setattr(awake_module, "give_way", self._let_through)
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


def test_a_loop_looks_again_for_a_moment_after_an_entry_and_then_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.entries(100, AT_ONCE)
        assert await watched.passes(0.00001) == 10
        # The moment is a millisecond and a half, from the last entry on.
        assert 3 <= await watched.passes(0.0004) <= 4
        assert await watched.passes(0.0004) == 0
        watched.entries(1, 0.0)
        assert await watched.passes(0.00001) == 10, "and the next entry wakes it for another one"

    asyncio.run(scenario())


def test_entries_that_come_one_by_one_let_it_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.entries(7, AT_ONCE)
        assert await watched.passes(0.0) == 0, "seven are not many"
        for _ in range(100):
            watched.entries(1, LATE)
            assert await watched.passes(0.0) == 0

    asyncio.run(scenario())


@pytest.mark.parametrize("warm", [0, 1_000])
def test_a_few_at_a_time_let_it_sleep_whatever_was_before(monkeypatch: pytest.MonkeyPatch, warm: int) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.entries(warm, AT_ONCE)
        await watched.passes(LATE)
        for burst in range(20):
            watched.entries(1, LATE)
            watched.entries(4, AT_ONCE)
            looks = await watched.passes(LATE)
            assert burst < 3 or looks == 0

    asyncio.run(scenario())


def test_one_that_is_late_is_forgiven_and_several_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.entries(1_000, AT_ONCE)
        watched.entries(1, LATE)
        assert await watched.passes(0.00001) == 10
        await watched.passes(LATE)
        watched.entries(5, LATE)
        assert await watched.passes(0.00001) == 0

    asyncio.run(scenario())


def test_whoever_wants_the_processor_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.away = 0.0001
        watched.entries(20, AT_ONCE)
        assert await watched.passes(0.0) == 1, "somebody else ran, so this loop sleeps"
        watched.away = 0.000002
        watched.entries(1, AT_ONCE)
        assert await watched.passes(0.0) == 10

    asyncio.run(scenario())


def test_two_loops_that_only_look_do_not_keep_each_other_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        watched = Watched(monkeypatch)
        watched.away = 0.000005
        watched.entries(20, AT_ONCE)
        assert await watched.passes(0.0) == 4

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("groups", "files", "rationed"),
    [
        ("0::/\n", {}, False),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, True),
        ("0::/a/b\n", {"cpu.max": "max 100000\n", "a/cpu.max": "max 100000\n", "a/b/cpu.max": "max 100000\n"}, False),
        ("0::/a/b\n", {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}, True),
        ("4:cpu,cpuacct:/x\n1:cpuset:/\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "-1\n"}, False),
        ("4:cpu,cpuacct:/x\n1:cpuset:/\n", {"cpu,cpuacct/x/cpu.cfs_quota_us": "20000\n"}, True),
        # In a container, what is mounted may begin at the container's own group.
        ("4:cpu,cpuacct:/docker/x\n", {"cpu/cpu.cfs_quota_us": "20000\n"}, True),
        ("3:memory:/x\n", {"memory/x/cpu.cfs_quota_us": "20000\n"}, False),
    ],
)
def test_a_quota_of_processor_time_is_found(tmp_path: Path, groups: str, files: dict[str, str], rationed: bool) -> None:
    (tmp_path / "cgroup").write_text(groups)
    for name, text in files.items():
        file = tmp_path / "fs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert is_rationed(tmp_path / "cgroup", tmp_path / "fs") is rationed
    assert not is_rationed(tmp_path / "none", tmp_path / "fs")


def test_a_node_stays_awake_if_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        def stirred(awake: str) -> Callable[[], None] | None:
            return _stirred(load(None, {}, {"node.id": "n1", "node.dir": "d", "cluster.id": "c", "node.awake": awake}))

        monkeypatch.setattr(run_module, "is_rationed", lambda: False)
        assert stirred("auto") is not None
        assert stirred("never") is None
        monkeypatch.setattr(run_module, "is_rationed", lambda: True)
        assert stirred("auto") is None

    asyncio.run(scenario())
