"""A leader's loop stays on its processor, and followers beside it keep off that, as long as it is good for them."""

import asyncio
import os
import threading
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

from resourcelease.node import processor, run
from resourcelease.node.config import load
from resourcelease.node.processor import HERE, LOOK_S, Keeper, Place, ThisThread, Times, keep_still
from resourcelease.node.run import _place

LOOK_NS = int(LOOK_S * 1e9)


class Fake:
    """A processor that is told what to say."""

    def __init__(self) -> None:
        self.now = Times(0, 0)
        self.did: list[str] = []

    def times(self) -> Times:
        return self.now

    def keep(self, place: Place) -> None:
        self.did.append("keep" if place == HERE else f"off {place.off}")

    def let_go(self) -> None:
        self.did.append("let go")

    def tidy(self) -> None:
        pass


class Watched:
    """A keeper, and looks at it."""

    def __init__(self) -> None:
        self.fake = Fake()
        self.keeper = Keeper(self.fake)

    def looks(self, count: int, *, run: float, waited: float, place: Place | None = HERE) -> None:
        """So many, each after the thread ran and waited for these parts of the time."""
        for _ in range(count):
            before = self.fake.now
            self.fake.now = Times(before.run + int(run * LOOK_NS), before.waited + int(waited * LOOK_NS))
            self.keeper.look(place)

    def looks_until_kept(self) -> int:
        """How many it takes at this load."""
        for count in range(1, 10_000):
            self.looks(1, run=0.5, waited=0.1)
            if self.keeper.kept:
                return count
        raise AssertionError("it is never kept")


def test_a_thread_is_kept_once_it_is_known_what_it_is_like_to_be_free() -> None:
    watched = Watched()
    watched.looks(1, run=0.5, waited=0.2)
    assert watched.fake.did == []
    watched.looks(1, run=0.5, waited=0.2)
    assert watched.fake.did == ["keep"]


def test_a_thread_that_does_little_is_left_alone() -> None:
    watched = Watched()
    watched.looks(50, run=0.01, waited=0.005)
    assert watched.fake.did == []


def test_a_thread_that_is_wanted_nowhere_is_free() -> None:
    watched = Watched()
    watched.looks(50, run=0.5, waited=0.1, place=None)
    assert watched.fake.did == []
    watched.looks_until_kept()
    watched.looks(1, run=0.5, waited=0.1, place=None)
    assert watched.fake.did == ["keep", "let go"]


def test_a_thread_that_waits_longer_than_it_did_free_is_let_go() -> None:
    watched = Watched()
    watched.looks_until_kept()
    watched.looks(1, run=0.5, waited=0.5)
    assert watched.keeper.kept, "once may be chance"
    watched.looks(1, run=0.5, waited=0.1)
    watched.looks(2, run=0.5, waited=0.5)
    assert watched.fake.did == ["keep", "let go"]


def test_a_thread_that_waited_as_long_when_it_was_free_stays() -> None:
    watched = Watched()
    watched.looks(40, run=0.4, waited=0.4)
    assert watched.fake.did == ["keep"]


def test_a_thread_that_had_to_be_let_go_is_free_for_longer_each_time_and_not_for_ever() -> None:
    watched = Watched()
    rests = []
    for _ in range(9):
        rests.append(watched.looks_until_kept())
        watched.looks(2, run=0.5, waited=0.5)
        assert not watched.keeper.kept
    assert rests[:3] == [2, 4, 8]
    assert rests[-2:] == [256, 256]


def test_a_thread_that_was_in_its_place_for_long_rests_as_at_first() -> None:
    watched = Watched()
    watched.looks_until_kept()
    watched.looks(2, run=0.5, waited=0.5)
    assert watched.looks_until_kept() == 4
    watched.looks(300, run=0.5, waited=0.1)
    watched.looks(2, run=0.5, waited=0.5)
    assert watched.looks_until_kept() == 2


def test_a_thread_whose_place_is_another_one_is_let_go_and_kept_there_once_that_is_sure() -> None:
    watched = Watched()
    watched.looks(2, run=0.5, waited=0.1, place=Place(off=3))
    # From looks at which it moves each time nobody learns where to be.
    for off in (1, 0, 1, 0):
        watched.looks(1, run=0.5, waited=0.1, place=Place(off))
    assert watched.fake.did == ["off 3", "let go"]
    watched.looks(3, run=0.5, waited=0.1, place=Place(off=0))
    watched.looks(2, run=0.5, waited=0.1, place=HERE)
    assert watched.fake.did == ["off 3", "let go", "off 0", "let go", "keep"]


def test_a_place_that_changes_all_the_time_is_kept_less_and_less() -> None:
    watched = Watched()
    for place in range(1_000):
        # Each is the same for long enough to be kept at first.
        watched.looks(4, run=0.5, waited=0.1, place=Place(off=place % 2))
    assert watched.fake.did.count("let go") < 10


def test_who_begins_to_lead_is_kept_as_soon_as_anybody() -> None:
    watched = Watched()
    for _ in range(9):
        watched.looks(300, run=0.5, waited=0.1, place=Place(off=1))
        watched.looks(2, run=0.5, waited=0.5, place=Place(off=1))
    watched.fake.did.clear()
    watched.looks(2, run=0.5, waited=0.1, place=HERE)
    assert watched.fake.did == ["keep"]


def in_a_thread(work: Any) -> Any:
    """Its result; what it does to its processors ends with it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture
def two_processors() -> None:
    if not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("there is one processor")


@pytest.mark.usefixtures("two_processors")
def test_a_kept_thread_stays_on_one_processor_and_those_that_it_begins_do_not() -> None:
    def work() -> tuple[int, int, int, int, int]:
        allowed = len(os.sched_getaffinity(0))
        mine = ThisThread()
        mine.keep(HERE)
        kept, done = len(os.sched_getaffinity(0)), threading.Event()
        child = threading.Thread(target=done.wait)
        child.start()
        assert child.native_id is not None
        inherited = len(os.sched_getaffinity(child.native_id))
        mine.tidy()
        tidied = len(os.sched_getaffinity(child.native_id))
        done.set()
        child.join()
        mine.let_go()
        return allowed, kept, inherited, tidied, len(os.sched_getaffinity(0))

    allowed, kept, inherited, tidied, after = in_a_thread(work)
    assert (kept, inherited) == (1, 1)
    assert tidied == after == allowed


@pytest.mark.usefixtures("two_processors")
def test_a_thread_that_keeps_off_a_processor_has_all_others() -> None:
    def work() -> list[set[int]]:
        allowed = os.sched_getaffinity(0)
        mine = ThisThread()
        found = [allowed]
        for off in (min(allowed), max(allowed) + 1):
            mine.keep(Place(off))
            found.append(os.sched_getaffinity(0))
            mine.let_go()
            found.append(os.sched_getaffinity(0))
        return found

    allowed, without, after, *foreign = in_a_thread(work)
    assert without == allowed - {min(allowed)}
    assert after == allowed
    assert foreign == [allowed, allowed], "one that it never runs on is no reason to hold it"


@pytest.mark.usefixtures("two_processors")
def test_where_a_thread_may_run_is_said_by_others_first() -> None:
    def work() -> set[int]:
        mine, only = ThisThread(), max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {only})
        mine.keep(Place(off=only))
        mine.let_go()
        return os.sched_getaffinity(0)

    assert in_a_thread(work) == {max(os.sched_getaffinity(0))}


@pytest.mark.parametrize("choice", ["keep", "any"])
def test_a_node_keeps_to_a_processor_if_it_is_to(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    places: list[Place | None] = []

    async def keep_still(place: Callable[[], Place | None]) -> None:
        places.append(place())

    monkeypatch.setattr(run, "keep_still", keep_still)
    node = mock.Mock()
    node.consensus.is_leader = True
    config = load(None, {}, {"node.id": "n1", "node.dir": "d", "cluster.id": "c", "node.processor": choice})
    asyncio.run(run._keep_still(config, node))
    assert places == ([HERE] if choice == "keep" else [])


@pytest.mark.usefixtures("two_processors")
def test_a_busy_loop_is_kept_and_is_free_again_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "LOOK_S", 0.02)

    async def scenario() -> tuple[int, int]:
        loop, me = asyncio.get_running_loop(), threading.get_native_id()
        keeping = asyncio.ensure_future(keep_still(lambda: HERE))
        until = loop.time() + 20.0
        # It is to be busy.
        while len(os.sched_getaffinity(me)) > 1 and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(0)
        kept = len(os.sched_getaffinity(me))
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)
        return kept, len(os.sched_getaffinity(me))

    kept, after = in_a_thread(lambda: asyncio.run(scenario()))
    assert kept == 1
    assert after > 1


def test_one_processor_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    with pytest.raises(OSError, match="one processor"):
        ThisThread()
    asyncio.run(asyncio.wait_for(keep_still(lambda: HERE), 5.0))


def test_a_leader_is_wanted_where_it_is_and_a_follower_off_its_leaders_processor() -> None:
    def place(**facts: Any) -> Place | None:
        return _place(mock.Mock(**facts))

    assert place(is_leader=True, leaders_processor=None) == HERE
    assert place(is_leader=False, leaders_processor=0) == Place(off=0)
    assert place(is_leader=False, leaders_processor=None) is None
