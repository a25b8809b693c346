"""Errands that ask the cluster: given up, ended and answered in every order."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from frontdoor.silent import Silent
from frontdoor.trips import Play, Trip, passes
from resourcelease.consensus import Consensus, NoLeader, OutcomeUnknown
from resourcelease.frontdoor import replica as replica_module
from resourcelease.frontdoor.departures import Departures
from resourcelease.frontdoor.granter import Granter
from resourcelease.frontdoor.leasing import NOTHING, LeaseWaiter
from resourcelease.frontdoor.refusals import Refused
from resourcelease.frontdoor.replica import Replica
from resourcelease.frontdoor.replies import Replies
from resourcelease.model.errors import Reason
from resourcelease.model.ops import Call, Heartbeat, Lease


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked in one pass of the loop is proposed together, however busy the machine is."""
    monkeypatch.setattr(replica_module, "GATHER_S", 60.0)


def stage() -> tuple[Silent, Replica]:
    consensus = Silent()
    return consensus, Replica(cast(Consensus, consensus), 5.0)


def beat() -> Heartbeat:
    return Heartbeat(Call("jobs", peer="w"))


def test_an_op_whose_caller_has_gone_is_not_proposed(play: Play) -> None:
    async def scenario() -> None:
        consensus, replica = stage()
        seen: list[Any] = []

        async def work() -> None:
            seen.append(await replica.run(beat()))

        task = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        trips = [Trip(work()) for _ in range(3)]
        trips[1].errand.cancel()
        task.cancel()
        await passes()
        ((_, tell),) = consensus.begun
        # One for each op that was proposed.
        tell(["first", "third"])
        assert seen == ["first", "third"]

    play(scenario())


def test_all_of_a_batch_hear_why_there_is_no_answer(play: Play) -> None:
    """Also those that ask again on the spot, as all do when a node stops."""

    async def scenario() -> None:
        consensus, replica = stage()
        heard: list[Any] = []

        async def work() -> None:
            for _ in range(2):
                try:
                    await replica.run(beat())
                except Refused as refused:
                    heard.append(refused.refusal.reason)

        def refuse(*_: Any, **__: Any) -> None:
            raise NoLeader("this node is not running")

        trips = [Trip(work()) for _ in range(3)]
        await passes()
        ((_, tell),) = consensus.begun
        consensus.begin = refuse  # type: ignore[method-assign]
        tell(OutcomeUnknown("this node has stopped"))
        await passes()
        assert heard == [Reason.OUTCOME_UNKNOWN] * 3 + [Reason.NO_LEADER] * 3
        assert [trip.ends for trip in trips] == [[None]] * 3
        await replica.close()
        assert not replica._under_way

    play(scenario())


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
@pytest.mark.parametrize("how", ["together", "linearize", "short"])
def test_one_who_asks_by_itself_can_be_ended_anywhere(play: Play, turns: int, how: str) -> None:
    async def scenario() -> None:
        _, replica = stage()
        asks: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "together": lambda: replica.run_together([beat()]),
            "linearize": lambda: replica.linearize(True, None),
            "short": lambda: replica.run(beat(), 0.5),
        }

        async def work() -> None:
            await asks[how]()

        trip = Trip(work())
        await passes(turns)
        trip.errand.cancel()
        await trip.errands.over()
        assert trip.ended(asyncio.CancelledError)
        assert not replica._under_way

    play(scenario())


@pytest.mark.parametrize("turns", [0, 1, 5])
def test_one_that_waits_in_line_leaves_it_wherever_it_is_ended(play: Play, turns: int) -> None:
    async def scenario() -> None:
        consensus, replica = stage()
        granter = Granter(replica)
        waiter = LeaseWaiter(granter, Lease(Call("jobs", peer="w", operation_id="op"), 1, 1000))
        trip = Trip(waiter.wait(10.0))
        await passes(turns)
        trip.errand.cancel()
        await trip.errands.over()
        assert trip.ended(asyncio.CancelledError)
        await passes()
        for _, tell in consensus.begun:
            tell([NOTHING])
        await passes()
        # Whoever were still in there would take the next leases, and nobody would have them.
        assert granter.waiting == 0
        assert waiter.wish(1) is None

    play(scenario())


@pytest.mark.parametrize("how", ["together", "linearize"])
def test_one_who_asks_by_itself_is_given_up_and_nobody_else(play: Play, how: str) -> None:
    async def scenario() -> None:
        consensus, replica = stage()
        consensus.applied = 1
        replica.look()

        async def work() -> None:
            await (replica.run_together([beat()]) if how == "together" else replica.linearize(True, None))

        async def reader() -> Trip:
            # Begins it as the reader of a stream does, and reads on.
            trip = Trip(work())
            await passes()
            for _ in range(20):
                replica.look()
            await asyncio.sleep(0.01)
            return trip

        trip = await asyncio.ensure_future(reader())
        (end,) = trip.ends
        assert isinstance(end, Refused)
        assert end.refusal.reason is Reason.OUTCOME_UNKNOWN

    play(scenario())


class Line:
    """The node's end of a stream, which has room."""

    has_room = True

    def __init__(self) -> None:
        self.sent: list[int] = []

    def write_now(self, message: Any) -> None:
        self.sent += [answer.number for answer in message.answers]


def test_an_answer_leaves_in_the_turn_that_brings_it(play: Play) -> None:
    async def scenario() -> None:
        consensus, replica = stage()
        line, replies = Line(), Replies(replica.leaving)
        writer = asyncio.ensure_future(cast(Departures, replies).write(line))

        async def work(number: int) -> None:
            await replica.run(beat())
            replies.add(number, b"")

        for number in (1, 2):
            Trip(work(number))
        await passes()
        ((_, tell),) = consensus.begun
        tell(["first", "second"])
        assert line.sent == [1, 2]
        writer.cancel()

    play(scenario())
