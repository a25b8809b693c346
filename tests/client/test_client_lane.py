"""Lanes: what is joined into one call, and when it leaves."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from fake_cluster import until

from resourcelease.client import lane as lane_module
from resourcelease.client.lane import LONE_CALLS, WORTH_A_FLIGHT, Lane, Runway

Names = Lane[str, str]


class Flight:
    """A call under way: its entries, and the moment that it is answered."""

    def __init__(self, lane: str, entries: list[str]) -> None:
        self.lane = lane
        self.entries = entries
        # Whether nothing else was about to leave.
        self.last = False
        self.landing: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def land(self) -> None:
        self.landing.set_result(None)


class Airport:
    """Notes what leaves, in order."""

    def __init__(self) -> None:
        self.flights: list[Flight] = []
        self.runway = Runway()

    def lane(self, name: str) -> Names:
        async def send(entries: list[str], oldest: float) -> list[str]:
            flight = Flight(name, entries)
            flight.last = self.runway.last_to_leave()
            self.flights.append(flight)
            await flight.landing
            return [entry.upper() for entry in entries]

        return Lane(send, self.runway)

    @property
    def left(self) -> list[tuple[str, list[str]]]:
        return [(flight.lane, flight.entries) for flight in self.flights]

    def land(self, *numbers: int) -> None:
        for number in numbers:
            self.flights[number].land()


async def two_lanes(airport: Airport) -> tuple[Names, Names]:
    """The first has a call under way."""
    a, b = airport.lane("a"), airport.lane("b")
    a.put("one")
    await some_turns()
    return a, b


async def some_turns() -> None:
    """As many turns of the loop as anything here takes that waits for nothing else."""
    for _ in range(10):
        await asyncio.sleep(0)


Story = Callable[[Airport], Awaitable[None]]


def patient(tell: Story) -> Callable[[], None]:
    """A story in which nobody gets tired of waiting for another lane, however slow the machine is."""
    return story(tell, 3600.0)


def story(tell: Story, patience: float = lane_module.PATIENCE_SECONDS) -> Callable[[], None]:
    def test() -> None:
        async def run() -> None:
            await tell(Airport())

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lane_module, "PATIENCE_SECONDS", patience)
            asyncio.run(run())

    test.__name__, test.__doc__ = tell.__name__, tell.__doc__
    return test


@patient
async def test_a_turn_brings_one_call_and_the_next_gathers_while_it_is_under_way(airport: Airport) -> None:
    lane = airport.lane("a")
    first, second = lane.put("one"), lane.put("two")
    await some_turns()
    third = lane.put("three")
    await some_turns()
    assert airport.left == [("a", ["one", "two"])]
    airport.land(0)
    assert await first == "ONE"
    assert await second == "TWO"
    fourth = lane.put("four")
    await some_turns()
    assert airport.left[1:] == [("a", ["three", "four"])]
    airport.land(1)
    assert await third == "THREE"
    assert await fourth == "FOUR"
    await some_turns()
    assert lane.idle


@patient
async def test_lanes_of_one_runway_wait_for_each_other_and_leave_together(airport: Airport) -> None:
    a, b = await two_lanes(airport)
    b.put("two")
    a.put("three")
    await some_turns()
    assert airport.left == [("a", ["one"])]
    airport.land(0)
    await some_turns()
    assert sorted(airport.left[1:]) == [("a", ["three"]), ("b", ["two"])]
    # Each waits for both, whichever lands first.
    a.put("four")
    b.put("five")
    airport.land(1)
    await some_turns()
    assert len(airport.flights) == 3
    airport.land(2)
    await some_turns()
    assert sorted(airport.left[3:]) == [("a", ["four"]), ("b", ["five"])]


@patient
async def test_what_lanes_are_given_in_one_turn_leaves_in_one_turn(airport: Airport) -> None:
    a, b = airport.lane("a"), airport.lane("b")
    a.put("one")
    b.put("two")
    await some_turns()
    assert airport.left == [("a", ["one"]), ("b", ["two"])]


@story
async def test_a_call_that_lasts_does_not_hold_back_other_lanes(airport: Airport) -> None:
    """An enqueue that waits for room in a queue must not keep those away whose verdicts make room."""
    full, verdicts = airport.lane("full"), airport.lane("verdicts")
    blocked = full.put("wait for room")
    await some_turns()
    done = verdicts.put("done")
    await until(lambda: len(airport.flights) == 2)
    # From now on that one is not waited for at all.
    airport.land(1)
    assert await done == "DONE"
    verdicts.put("done again")
    await some_turns()
    assert airport.left[2:] == [("verdicts", ["done again"])]
    # Its own lane gathers on, and goes when it is over.
    full.put("next")
    await some_turns()
    assert len(airport.flights) == 3
    airport.land(0, 2)
    assert await blocked == "WAIT FOR ROOM"
    await some_turns()
    assert airport.left[3:] == [("full", ["next"])]


@patient
async def test_what_is_worth_a_call_leaves_and_takes_the_others_along(airport: Airport) -> None:
    a, b = await two_lanes(airport)
    b.put("two")
    many = [f"{number}" for number in range(WORTH_A_FLIGHT)]
    for entry in many:
        a.put(entry)
    await some_turns()
    assert sorted(airport.left[1:]) == [("a", many), ("b", ["two"])]


@patient
async def test_a_lane_that_is_closed_while_it_waits_holds_up_nobody(airport: Airport) -> None:
    a, b, c = airport.lane("a"), airport.lane("b"), airport.lane("c")
    a.put("one")
    await some_turns()
    given_up, kept = b.put("two"), c.put("three")
    await some_turns()
    await b.close()
    with pytest.raises(RuntimeError, match="closed"):
        await given_up
    airport.land(0)
    await some_turns()
    assert airport.left[1:] == [("c", ["three"])]
    airport.land(1)
    assert await kept == "THREE"


@patient
async def test_an_error_ends_a_call_like_an_answer_does(airport: Airport) -> None:
    a, b = airport.lane("a"), airport.lane("b")
    failed = a.put("one")
    await some_turns()
    b.put("two")
    await some_turns()
    airport.flights[0].landing.set_exception(OSError("no such luck"))
    with pytest.raises(OSError, match="no such luck"):
        await failed
    await some_turns()
    assert airport.left[1:] == [("b", ["two"])]


@patient
async def test_a_lone_callers_next_call_leaves_in_the_next_turn(airport: Airport) -> None:
    lane = airport.lane("a")

    async def caller() -> None:
        await lane.put("one")
        lane.put("two")

    task = asyncio.create_task(caller())
    await some_turns()
    airport.land(0)
    await task
    assert airport.left == [("a", ["one"]), ("a", ["two"])]


async def alone_for_a_while(airport: Airport, lane: Names, calls: int = LONE_CALLS) -> None:
    """One caller, who comes again when it has been answered."""
    for _ in range(calls):
        waiting = lane.put("again")
        await some_turns()
        airport.land(-1)
        await waiting


@patient
async def test_who_has_been_alone_for_a_while_leaves_at_once(airport: Airport) -> None:
    lane, other = airport.lane("a"), airport.lane("b")
    await alone_for_a_while(airport, lane, LONE_CALLS - 1)
    waiting = lane.put("one")
    assert len(airport.flights) == LONE_CALLS - 1
    await some_turns()
    airport.land(-1)
    await waiting
    before = len(airport.flights)
    waiting = lane.put("two")
    assert airport.left[before:] == [("a", ["two"])]
    assert airport.flights[-1].last
    airport.land(-1)
    await waiting
    # By whichever lane.
    other.put("three")
    assert airport.left[before + 1 :] == [("b", ["three"])]


@patient
async def test_who_finds_company_waits_for_the_end_of_the_turn_again(airport: Airport) -> None:
    lane = airport.lane("a")
    await alone_for_a_while(airport, lane)
    before = len(airport.flights)
    first, second, third = (lane.put(name) for name in ("first", "second", "third"))
    await some_turns()
    airport.land(-1)
    await first
    await some_turns()
    assert airport.left[before:] == [("a", ["first"]), ("a", ["second", "third"])]
    airport.land(-1)
    await asyncio.gather(second, third)
    waiting = [lane.put("fourth"), lane.put("fifth")]
    await some_turns()
    assert airport.left[before + 2 :] == [("a", ["fourth", "fifth"])]
    airport.land(-1)
    await asyncio.gather(*waiting)


@patient
async def test_a_list_that_one_caller_brings_is_alone_as_well(airport: Airport) -> None:
    lane = airport.lane("a")
    for _ in range(LONE_CALLS):
        many = lane.put_many(["one", "two"])
        await some_turns()
        airport.land(-1)
        assert await many == ["ONE", "TWO"]
    lane.put_many(["three", "four"])
    assert airport.left[-1] == ("a", ["three", "four"])


@patient
async def test_a_caller_who_gives_up_does_not_take_back_what_has_left(airport: Airport) -> None:
    lane = airport.lane("a")
    await alone_for_a_while(airport, lane)
    task = asyncio.create_task(asyncio.wait_for(lane.put("one"), 3600))
    await some_turns()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not airport.flights[-1].landing.done()
    airport.land(-1)
    await some_turns()
    assert lane.idle


@patient
async def test_a_lane_that_was_closed_before_its_call_left_can_be_used_again(airport: Airport) -> None:
    lane = airport.lane("a")
    never = lane.put("never")
    await lane.close()
    with pytest.raises(RuntimeError, match="closed"):
        await never
    assert lane.idle
    again = lane.put("again")
    await some_turns()
    airport.land(0)
    assert await again == "AGAIN"
    assert airport.left == [("a", ["again"])]


@patient
async def test_a_lane_that_is_closed_ends_the_call_that_is_under_way(airport: Airport) -> None:
    lane = airport.lane("a")
    await alone_for_a_while(airport, lane)
    waiting = lane.put("one")
    await lane.close()
    with pytest.raises(RuntimeError, match="closed"):
        await waiting
    assert airport.flights[-1].landing.cancelled()
    assert lane.idle


@patient
async def test_of_several_who_were_answered_the_first_to_come_again_waits_for_the_others(airport: Airport) -> None:
    lane = airport.lane("a")

    async def caller(name: str, turns: int) -> None:
        await lane.put(name)
        for _ in range(turns):
            await asyncio.sleep(0)
        lane.put(name)

    tasks = [asyncio.create_task(caller(name, turns)) for turns, name in enumerate(["quick", "slower"])]
    await some_turns()
    airport.land(0)
    await asyncio.gather(*tasks)
    await some_turns()
    assert airport.left == [("a", ["quick", "slower"]), ("a", ["quick", "slower"])]


def test_the_last_that_leaves_in_a_turn_knows_it() -> None:
    async def scenario() -> None:
        airport = Airport()
        a, b = airport.lane("a"), airport.lane("b")
        assert not airport.runway.last_to_leave()
        a.put("lone")
        await some_turns()
        airport.land(0)
        await some_turns()
        a.put("one")
        b.put("two")
        assert not airport.runway.last_to_leave()
        await some_turns()
        assert [flight.last for flight in airport.flights] == [True, False, True]
        # Who is on no lane does not leave with them.
        assert not airport.runway.last_to_leave()
        airport.land(1, 2)
        await some_turns()

    asyncio.run(scenario())


def test_a_call_that_is_cancelled_before_it_left_is_waited_for_by_none() -> None:
    async def scenario() -> None:
        airport = Airport()
        a, b = airport.lane("a"), airport.lane("b")
        waiting = a.put("never")
        await a.close()
        assert isinstance(waiting.exception(), RuntimeError)
        b.put("one")
        await some_turns()
        assert [(flight.lane, flight.last) for flight in airport.flights] == [("b", True)]
        airport.land(0)
        await some_turns()

    asyncio.run(scenario())
