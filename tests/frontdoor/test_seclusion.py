"""A node that has lost the others lets its callers go on elsewhere."""

import asyncio
from typing import Any, cast

import grpc
import pytest

from frontdoor.cluster_fixture import Cluster, Runner, ended, fresh, info_of, items, refusal, until
from frontdoor.silent import Silent
from resourcelease import v1
from resourcelease.consensus import Consensus, OutcomeUnknown
from resourcelease.frontdoor import seclusion
from resourcelease.frontdoor.refusals import Refused
from resourcelease.frontdoor.relief import Relief
from resourcelease.frontdoor.replica import Replica
from resourcelease.model.errors import Reason
from resourcelease.model.ops import Call, Heartbeat

# Enough of them for anything to be given up.
MANY = 20


def beat() -> Heartbeat:
    return Heartbeat(Call("jobs", peer="w"))


class Stage:
    """A replica on such a consensus, which has applied something before."""

    def __init__(self) -> None:
        self.consensus = Silent()
        self.replica = Replica(cast(Consensus, self.consensus), 5.0)

    def look(self, times: int = MANY) -> None:
        for _ in range(times):
            self.replica.look()

    def apply(self) -> None:
        self.consensus.applied += 1
        self.look(1)

    async def submit(self) -> "asyncio.Future[Any]":
        future = self.replica.submit(beat())
        await asyncio.sleep(0)
        return future


def reason_of(future: "asyncio.Future[Any]") -> Reason:
    error = future.exception()
    assert isinstance(error, Refused)
    return error.refusal.reason


def test_what_was_begun_is_given_up_when_nothing_is_applied_any_more() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.apply()
        first = await stage.submit()
        stage.look(12)
        second = await stage.submit()
        assert not first.done()
        stage.look(1)
        assert reason_of(first) is Reason.OUTCOME_UNKNOWN
        assert not second.done()
        stage.look()
        assert reason_of(second) is Reason.OUTCOME_UNKNOWN

    asyncio.run(scenario())


def test_an_answer_that_comes_after_all_is_counted_once() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.apply()
        given_up = await stage.submit()
        stage.look()
        waiting = await stage.submit()
        assert reason_of(given_up) is Reason.OUTCOME_UNKNOWN
        (_, late), (_, tell) = stage.consensus.begun
        late(["late"])
        closing = asyncio.ensure_future(stage.replica.close())
        await asyncio.sleep(0)
        assert not closing.done()
        tell(["in time"])
        assert await waiting == "in time"
        await closing

    asyncio.run(scenario())


def test_as_long_as_something_is_applied_callers_wait() -> None:
    async def scenario() -> None:
        stage = Stage()
        waiting = await stage.submit()
        for _ in range(10):
            stage.apply()
            stage.look(11)
        assert not waiting.done()
        stage.look()
        assert waiting.done()

    asyncio.run(scenario())


def test_before_the_first_entry_of_a_run_callers_wait_for_a_leader() -> None:
    async def scenario() -> None:
        stage = Stage()
        waiting = await stage.submit()
        stage.look(100)
        assert not waiting.done()

    asyncio.run(scenario())


def test_once_something_was_given_up_consensus_keeps_what_follows_no_longer_than_its_callers_wait() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.apply()
        await stage.submit()
        stage.look()
        await stage.submit()
        stage.apply()
        await stage.submit()
        assert [timeout for timeout, _ in stage.consensus.begun] == [5.0, stage.replica.patience_s, 5.0]

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [["late"], OutcomeUnknown("never")])
def test_a_cluster_that_is_only_slow_is_given_the_whole_time(answer: Any) -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.apply()
        await stage.submit()
        stage.look()
        stage.consensus.begun[0][1](answer)
        stage.apply()
        next_one = await stage.submit()
        stage.look()
        assert next_one.done() == isinstance(answer, Exception)
        # Not for good.
        stage.look(1000)
        assert next_one.done()

    asyncio.run(scenario())


def test_calls_with_little_time_and_reads_are_given_up_too() -> None:
    async def scenario() -> None:
        stage = Stage()
        stage.apply()
        calls = [
            asyncio.ensure_future(stage.replica.run(beat(), 4.0)),
            asyncio.ensure_future(stage.replica.run_together([beat(), beat()])),
            asyncio.ensure_future(stage.replica.linearize(wanted=True, remaining_s=None)),
        ]
        await asyncio.sleep(0)
        stage.look()
        await asyncio.wait(calls)
        assert [reason_of(call) for call in calls] == [Reason.OUTCOME_UNKNOWN] * 3
        await stage.replica.close()

    asyncio.run(scenario())


def test_who_waited_long_for_relief_tries_again() -> None:
    async def scenario() -> None:
        relief, loop = Relief(), asyncio.get_running_loop()
        early = asyncio.ensure_future(relief.wait("jobs", 60))
        await until(lambda: relief.waiting == 1)
        between = loop.time()
        await until(lambda: loop.time() > between)
        late = asyncio.ensure_future(relief.wait("jobs", 60))
        await until(lambda: relief.waiting == 2)
        relief.wake_older(between)
        assert await early
        assert relief.waiting == 1
        relief.wake_all()
        assert await late

    asyncio.run(scenario())


def test_who_waits_on_a_node_that_has_lost_the_others_is_sent_away(
    run: Runner, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    monkeypatch.setattr(seclusion, "_ALONE_S", 0.3)
    monkeypatch.setattr(seclusion, "_LEAVE_S", 0.3)

    async def next_of(call: Any, kind: str) -> None:
        async with asyncio.timeout(10):
            while (await call.read()).WhichOneof("frame") != kind:
                pass

    async def scenario() -> None:
        cluster = Cluster(tmp_path_factory.mktemp("secluded"), 3)
        try:
            await cluster.start_all()
            stubs, namespace = cluster.stubs["n1"], fresh()
            opening = v1.WorkRequest(namespace=namespace, peer_id="w", credit=1, open=v1.WorkOpen())
            polite, deaf = stubs.stream("Work", wire), stubs.stream("Work", wire)
            for stream in (polite, deaf):
                await stream.write(opening)
                await next_of(stream, "opened")
            subscriber = stubs.event.Subscribe(v1.SubscribeRequest(from_sequence=1))
            await subscriber.read()
            request = v1.LeaseRequest(namespace=namespace, operation_id=fresh("op"), peer_id="v", wait_ms=60_000)
            waiter = asyncio.ensure_future(refusal(stubs.lease.Lease(request, timeout=70)))
            await until(lambda: cluster.nodes["n1"].door.waiting == 3)
            for other in ("n2", "n3"):
                await cluster.stop(other)
            no_leader = (grpc.StatusCode.UNAVAILABLE, "NO_LEADER", "", True)
            assert await waiter == no_leader
            assert info_of(await ended(subscriber)) == no_leader
            await next_of(polite, "go_away")
            await polite.done_writing()
            assert (await ended(polite)).code() is grpc.StatusCode.OK
            # Whoever does not go is not left to wait for ever.
            await next_of(deaf, "go_away")
            assert info_of(await ended(deaf))[:2] == no_leader[:2]
            put = v1.EnqueueRequest(namespace=namespace, operation_id=fresh("op"), items=items("a"))
            told = [await refusal(stubs.lease.Enqueue(put, timeout=20)) for _ in range(2)]
            assert {reason for _, reason, _, _ in told} <= {"NO_LEADER", "OUTCOME_UNKNOWN"}
            # With a majority again everybody is served here.
            await cluster.start("n2")
            while await refusal_or_none(stubs.lease.Enqueue(put, timeout=20)):
                pass
            again = stubs.stream("Work", wire)
            await again.write(opening)
            await next_of(again, "leases")
            again.cancel()
        finally:
            await cluster.stop_all()

    run(scenario(), 60)


async def refusal_or_none(call: Any) -> str:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return info_of(error)[1]
    return ""
