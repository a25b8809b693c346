"""Errands: work that waits for the cluster, gone on with where the answer comes."""

import asyncio
import gc
import logging
import socket
import threading
import weakref
from collections.abc import Awaitable
from typing import Any

import pytest

from frontdoor.trips import Play, Trip, passes
from resourcelease.errands import Errands, Told, here, in_a_task
from resourcelease.frontdoor.refusals import Refused
from resourcelease.model.errors import Reason


async def note(told: Told, into: list[Any]) -> None:
    into.append(await told)


async def collect(into: list[Any], *tolds: Told) -> None:
    for told in tolds:
        await note(told, into)


def test_it_goes_on_where_the_answer_comes(play: Play) -> None:
    async def scenario() -> None:
        first, second, seen = Told(), Told(), list[Any]()
        trip = Trip(collect(seen, first, second))
        assert (seen, trip.ends) == ([], [])
        first.set_result(1)
        assert (seen, trip.ends) == ([1], [])
        second.set_result(2)
        assert (seen, trip.ends) == ([1, 2], [None])
        assert not trip.in_a_task
        assert not here.running

    play(scenario())


def test_what_was_said_before_is_not_waited_for(play: Play) -> None:
    async def scenario() -> None:
        good, bad, seen = Told(), Told(), list[Any]()
        good.set_result("good")
        bad.set_exception(ZeroDivisionError("bad"))
        assert good.done()
        assert bad.done()
        assert isinstance(bad.exception(), ZeroDivisionError)
        trip = Trip(collect(seen, good, bad))
        assert seen == ["good"]
        assert trip.ended(ZeroDivisionError)
        heard: list[Any] = []
        good.then(lambda told: heard.append(told.result()))
        assert heard == ["good"]

    play(scenario())


def test_an_error_is_raised_where_it_is_waited_for(play: Play) -> None:
    async def scenario() -> None:
        caught, through, after, seen = Told(), Told(), Told(), list[Any]()

        async def work() -> None:
            try:
                await caught
            except Refused as refused:
                seen.append(refused.refusal.reason)
            seen.append(await after)
            await through

        trip = Trip(work())
        caught.set_exception(Refused(Reason.NO_LEADER, "nobody leads"))
        after.set_result("after")
        assert (seen, trip.ends) == ([Reason.NO_LEADER, "after"], [])
        through.set_exception(KeyError("through"))
        assert trip.ended(KeyError)

    play(scenario())


def test_an_error_of_its_own_ends_it(play: Play) -> None:
    async def scenario() -> None:
        async def given_up() -> None:
            raise asyncio.CancelledError

        async def broken() -> None:
            raise KeyError("broken")

        for work, kind in ((given_up(), asyncio.CancelledError), (broken(), KeyError)):
            trip = Trip(work)
            assert trip.ended(kind)
            assert not here.running
            await trip.errands.over()

    play(scenario())


def test_several_are_waited_for(play: Play) -> None:
    async def scenario() -> None:
        errands, seen = Errands(), list[Any]()
        await errands.over()
        tolds = [Told() for _ in range(3)]
        trips = [Trip(note(told, seen), errands) for told in tolds]
        over = asyncio.ensure_future(errands.over())
        for number in (1, 2):
            tolds[number].set_result(number)
            await passes()
            assert not over.done()
        later = Told()
        tolds[0].set_result(0)
        # Before whoever waits for all of them is woken, there is another.
        trips.append(Trip(note(later, seen), errands))
        await passes()
        assert not over.done()
        later.set_result(3)
        await over
        assert seen == [1, 2, 0, 3]
        assert [trip.ends for trip in trips] == [[None]] * 4

    play(scenario())


def test_all_are_ended_together(play: Play) -> None:
    async def scenario() -> None:
        errands, told, future = Errands(), Told(), asyncio.get_running_loop().create_future()

        async def wait(what: Awaitable[Any]) -> None:
            await what

        trips = [Trip(wait(told), errands), Trip(wait(future), errands)]
        errands.cancel()
        await errands.over()
        assert all(trip.ended(asyncio.CancelledError) for trip in trips)
        assert future.cancelled()

    play(scenario())


def test_one_that_waits_for_the_cluster_is_ended_at_once(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        told, seen = Told(), list[Any]()

        async def work() -> None:
            try:
                seen.append(await told)
                seen.append("went on")
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise
            finally:
                seen.append("finally")

        trip = Trip(work())
        assert not told.done()
        trip.errand.cancel()
        assert told.done()
        assert seen == ["cancelled", "finally"]
        assert trip.ended(asyncio.CancelledError)
        trip.errand.cancel()
        told.set_result("late")
        await passes()
        assert not caplog.records
        assert seen == ["cancelled", "finally"]
        assert trip.ended(asyncio.CancelledError)

    play(scenario())


def test_one_may_have_something_to_do_before_it_ends(play: Play) -> None:
    async def scenario() -> None:
        told, last, seen = Told(), Told(), list[Any]()

        async def work() -> None:
            try:
                await told
            finally:
                seen.append(await last)

        trip = Trip(work())
        trip.errand.cancel()
        assert trip.ends == []
        last.set_result("put away")
        assert seen == ["put away"]
        assert trip.ended(asyncio.CancelledError)

    play(scenario())


def test_one_that_shrugs_off_its_end_is_let_go_on(play: Play) -> None:
    async def scenario() -> None:
        told = Told()

        async def work() -> None:
            try:
                await told
            except asyncio.CancelledError:
                return

        trip = Trip(work())
        trip.errand.cancel()
        assert trip.ends == [None]

    play(scenario())


def test_one_that_waits_for_something_else_becomes_a_task(play: Play) -> None:
    async def scenario() -> None:
        future = asyncio.get_running_loop().create_future()
        before, after, seen = Told(), Told(), list[Any]()

        async def work() -> None:
            seen.append(await before)
            seen.append(await future)
            seen.append(await after)
            await asyncio.sleep(0.001)
            seen.append(here.running)

        trip = Trip(work())
        assert not trip.in_a_task
        before.set_result("before")
        assert trip.in_a_task
        # It may be there before the task has looked.
        future.set_result("future")
        await passes()
        assert seen == ["before", "future"]
        after.set_result("after")
        await trip.errands.over()
        assert seen == ["before", "future", "after", False]
        assert trip.ends == [None]

    play(scenario())


@pytest.mark.parametrize("where", ["future", "told"])
def test_a_task_of_it_ends_with_its_error(play: Play, where: str) -> None:
    async def scenario() -> None:
        future, told = asyncio.get_running_loop().create_future(), Told()

        async def work() -> None:
            await future
            await told

        trip = Trip(work())
        await passes()
        if where == "future":
            future.set_exception(KeyError("broken"))
        else:
            future.set_result(None)
            await passes()
            told.set_exception(KeyError("broken"))
        await trip.errands.over()
        assert trip.ended(KeyError)

    play(scenario())


# Cancelled before the task has begun, too.
@pytest.mark.parametrize("turns", [0, 1, 5])
def test_a_task_of_it_is_ended_as_any_task(play: Play, turns: int) -> None:
    async def scenario() -> None:
        future, seen = asyncio.get_running_loop().create_future(), list[Any]()

        async def work() -> None:
            try:
                await future
            except asyncio.CancelledError:
                seen.append("cancelled")
                # What it does for its end may take a while.
                await asyncio.sleep(0)
                seen.append("put away")
                raise

        trip = Trip(work())
        await passes(turns)
        trip.errand.cancel()
        await trip.errands.over()
        assert seen == ["cancelled", "put away"]
        assert future.cancelled()
        assert trip.ended(asyncio.CancelledError)

    play(scenario())


def test_a_task_of_it_that_waits_for_the_cluster_is_ended(play: Play) -> None:
    async def scenario() -> None:
        told, seen = Told(), list[Any]()

        async def work() -> None:
            await asyncio.sleep(0)
            seen.append(await told)

        trip = Trip(work())
        await passes()
        assert not told.done()
        trip.errand.cancel()
        await trip.errands.over()
        assert told.done()
        assert seen == []
        assert trip.ended(asyncio.CancelledError)

    play(scenario())


def test_a_plain_task_may_wait_for_the_cluster(play: Play) -> None:
    async def scenario() -> None:
        good, bad, given_up, seen = Told(), Told(), Told(), list[Any]()
        tasks = [asyncio.ensure_future(note(told, seen)) for told in (good, bad, given_up)]
        await passes()
        assert not any(told.done() for told in (good, bad, given_up))
        tasks[2].cancel()
        good.set_result("good")
        bad.set_exception(KeyError("bad"))
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(end) for end in ends] == [type(None), KeyError, asyncio.CancelledError]
        assert given_up.done()
        given_up.set_result("late")
        assert seen == ["good"]
        # What was said before is there at once.
        await note(good, seen)
        assert seen == ["good", "good"]

    play(scenario())


def test_in_a_task_there_can_be_a_time_limit(play: Play) -> None:
    async def scenario() -> None:
        seen: list[str] = []

        async def work() -> None:
            await in_a_task()
            try:
                async with asyncio.timeout(0.01):
                    await Told()
            except TimeoutError:
                seen.append("late")

        async def bystander() -> None:
            # Begins it as the reader of a stream does, whose own task the limit must not strike.
            Trip(work(), errands)
            await asyncio.sleep(0.05)
            seen.append("bystander")

        errands = Errands()
        await asyncio.ensure_future(bystander())
        await errands.over()
        assert seen == ["late", "bystander"]
        await asyncio.ensure_future(work())
        assert seen == ["late", "bystander", "late"]

    play(scenario())


def test_one_within_another(play: Play) -> None:
    async def scenario() -> None:
        outer, inner, seen = Told(), Told(), list[Any]()
        trips: list[Trip] = []

        async def second(how: str) -> None:
            seen.append((how, here.running))
            if how == "waits":
                await inner
            elif how == "fails":
                raise KeyError(how)

        async def first() -> None:
            for how in ("waits", "ends", "fails"):
                trips.append(Trip(second(how)))
                seen.append(here.running)
            # Goes on with the other one while this one is gone on with.
            inner.set_result(None)
            seen.append(here.running)
            seen.append(await outer)

        trip = Trip(first())
        assert seen == [("waits", True), True, ("ends", True), True, ("fails", True), True, True]
        assert not here.running
        outer.set_result("outer")
        assert seen[-1] == "outer"
        assert [type(each.ends[0]) for each in trips] == [type(None), type(None), KeyError]
        assert trip.ends == [None]
        assert not trip.in_a_task

    play(scenario())


def test_whoever_stumbles_over_an_answer_falls_alone(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        def stumble(told: Told) -> None:
            raise ZeroDivisionError

        told = Told()
        told.then(stumble)
        told.set_result(1)

    with caplog.at_level(logging.ERROR):
        play(scenario())
    assert "stumbled" in caplog.text


class Matter:
    """What a call holds while it is under way."""


@pytest.mark.parametrize("how", ["before", "errand", "task", "cancelled"])
def test_one_that_ends_badly_leaves_nothing_for_the_collector(play: Play, how: str) -> None:
    held: list[weakref.ref[Matter]] = []

    async def work(told: Told) -> None:
        matter = Matter()
        held.append(weakref.ref(matter))
        if how == "task":
            await asyncio.sleep(0)
        try:
            await told
        except Refused:
            return

    async def scenario() -> None:
        told = Told()
        if how == "before":
            told.set_exception(Refused(Reason.NO_LEADER, "nobody leads"))
        errands = Errands()
        errand = errands.begin(work(told), lambda _: None)
        if how == "task":
            await passes()
        if how == "cancelled":
            errand.cancel()
        elif how != "before":
            told.set_exception(Refused(Reason.NO_LEADER, "nobody leads"))
        await errands.over()
        del errand, told
        await passes()
        assert [each() for each in held] == [None]

    gc.collect()
    gc.disable()
    try:
        play(scenario())
    finally:
        gc.enable()


def test_threads_with_loops_of_their_own_do_not_see_each_others() -> None:
    """As clients without asyncio have them, each one."""
    met: list[BaseException] = []
    both = threading.Barrier(2)

    def thread() -> None:
        try:
            asyncio.run(scenario())
        except BaseException as error:
            met.append(error)

    async def scenario() -> None:
        near, far = socket.socketpair()

        async def send(told: Told) -> None:
            # Lets the other thread go on, as whatever is written to a connection does.
            near.send(b"x")
            far.recv(1)
            await told

        with near, far:
            both.wait()
            for _ in range(500):
                told, other = Told(), Told()
                Trip(send(told))
                waiting = asyncio.create_task(note(other, []))
                await asyncio.sleep(0)
                told.set_result(1)
                other.set_result(2)
                await waiting
                assert not here.running

    threads = [threading.Thread(target=thread) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert met == []
