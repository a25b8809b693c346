"""Conversations over real connections: the same calls, the same refusals, the same care for what a caller leaves."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import status_pb2

from frontdoor.cluster_fixture import Cluster, Runner, Stubs, ack, ended, eventually, fresh, info_of, items, until
from resourcelease import v1
from resourcelease.client import Client, Forbidden, Tls
from resourcelease.errands import Told
from resourcelease.model.ops import Op
from resourcelease.node.certs import make_authority, make_certificate

KINDS = v1.ConverseMethod
CONVERSE = "/resourcelease.v1.LeaseService/Converse"


class Talk:
    """A client's end of a conversation."""

    def __init__(self, stubs: Stubs, wire: str) -> None:
        self.stream: Any = stubs.stream("Converse", wire)
        self.answers: dict[int, v1.ConverseAnswer] = {}
        self.went_away = False
        self._number = 0

    async def say(self, *requests: Message, cancelled: Sequence[int] = (), **fields: Any) -> list[int]:
        """Makes calls, in one message; their numbers."""
        frame = v1.ConverseRequest(cancelled=cancelled)
        numbers = []
        for request in requests:
            self._number += 1
            numbers.append(self._number)
            kind = KINDS.Value(_constant(request))
            frame.calls.add(number=self._number, method=kind, request=request.SerializeToString(), **fields)
        await self.stream.write(frame)
        return numbers

    async def hear(self, number: int) -> v1.ConverseAnswer:
        """Reads until a call is answered."""
        async with asyncio.timeout(20):
            while number not in self.answers:
                message = await self.stream.read()
                assert message is not grpc.aio.EOF
                self.went_away |= message.HasField("go_away")
                self.answers |= {answer.number: answer for answer in message.answers}
        return self.answers[number]

    async def ask(self, request: Message, kind: Any, **fields: Any) -> Any:
        (number,) = await self.say(request, **fields)
        answer = await self.hear(number)
        assert answer.HasField("response"), status_pb2.Status.FromString(answer.status)
        return kind.FromString(answer.response)

    async def refused(self, request: Message, **fields: Any) -> bytes:
        (number,) = await self.say(request, **fields)
        answer = await self.hear(number)
        assert answer.HasField("status")
        return answer.status

    async def end(self) -> None:
        await self.stream.done_writing()
        assert (await ended(self.stream)).code() is grpc.StatusCode.OK


def _constant(request: Message) -> str:
    """EnqueueRequest is CONVERSE_METHOD_ENQUEUE."""
    name = type(request).__name__.removesuffix("Request")
    return "CONVERSE_METHOD" + "".join(f"_{letter}" if letter.isupper() else letter.upper() for letter in name)


def lease_of(namespace: str, peer: str, **fields: Any) -> v1.LeaseRequest:
    return v1.LeaseRequest(
        **{"namespace": namespace, "operation_id": fresh("op"), "peer_id": peer, "wait_ms": 10_000, **fields}
    )


def put(namespace: str, *names: str) -> v1.EnqueueRequest:
    return v1.EnqueueRequest(namespace=namespace, operation_id=fresh("op"), items=items(*names))


async def waiting(cluster: Cluster, count: int) -> None:
    await until(lambda: sum(node.door.waiting for node in cluster.nodes.values()) == count)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_every_method_of_the_service(trio: Cluster, run: Runner, wire: str, role: str) -> None:
    async def scenario() -> None:
        talk, namespace = Talk(await trio.via(role), wire), fresh()
        of: dict[str, Any] = {"namespace": namespace, "peer_id": "w"}
        done = await talk.ask(put(namespace, "a", "b", "c"), v1.EnqueueResponse)
        assert [result.enqueued.sequence_id for result in done.results] == [1, 2, 3]
        assert done.position.raft_index > 0
        granted = await talk.ask(lease_of(namespace, "w", max_items=3), v1.LeaseResponse)
        first, second, third = granted.leases
        beat = v1.HeartbeatRequest(**of, operation_id="h", all_of_peer=True)
        assert (await talk.ask(beat, v1.HeartbeatResponse)).remaining_ms > 0
        version = v1.RequireVersionRequest(**of, operation_id="v", change_id="c", max_version=3)
        assert (await talk.ask(version, v1.RequireVersionResponse)).version == 3
        begin = v1.BeginEffectRequest(**of, operation_id="b", effect_id="e", handle=third.handle)
        assert not (await talk.ask(begin, v1.BeginEffectResponse)).finished
        finish = v1.FinishEffectRequest(**of, operation_id="f", effect_id="e", handle=third.handle, result=b"r")
        assert (await talk.ask(finish, v1.FinishEffectResponse)).result == b"r"
        complete = v1.CompleteRequest(**of, operation_id="c", entries=ack(first, third))
        assert all(each.HasField("completed") for each in (await talk.ask(complete, v1.CompleteResponse)).results)
        fail = v1.FailRequest(**of, operation_id="d", entries=[v1.FailEntry(handle=second.handle)])
        assert (await talk.ask(fail, v1.FailResponse)).results[0].HasField("failed")
        drained = await talk.ask(v1.DrainRequest(**of, operation_id="g", bundle_id="x"), v1.DrainResponse)
        restore = v1.RestoreRequest(**of, operation_id="i", page=drained.page)
        assert (await talk.ask(restore, v1.RestoreResponse)).restored == 1
        await talk.end()

    run(scenario())


def test_a_call_that_waits_keeps_nobody_waiting(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        talk, namespace = Talk(await trio.via("follower"), wire), fresh()
        (asked,) = await talk.say(lease_of(namespace, "w"))
        await waiting(trio, 1)
        await talk.ask(put(namespace, "a"), v1.EnqueueResponse)
        answer = v1.LeaseResponse.FromString((await talk.hear(asked)).response)
        assert [each.payload.resource_id for each in answer.leases] == ["a"]
        await talk.end()

    run(scenario())


def test_a_refusal_is_that_of_the_call_by_itself_byte_for_byte(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, nowhere = await trio.via("follower"), fresh("nowhere")
        talk = Talk(stubs, wire)
        wrong: list[tuple[Any, Any]] = [
            (stubs.lease.Enqueue, v1.EnqueueRequest(operation_id="x")),
            (stubs.lease.Lease, v1.LeaseRequest(max_items=-1, peer_id="w")),
            (stubs.lease.Lease, v1.LeaseRequest()),
            (stubs.lease.Drain, v1.DrainRequest(namespace=nowhere, bundle_id="b", peer_id="w")),
        ]
        for method, request in wrong:
            with pytest.raises(grpc.aio.AioRpcError) as met:
                await method(request, timeout=10)
            trailer = dict(met.value.trailing_metadata() or ())["grpc-status-details-bin"]
            assert await talk.refused(request) == trailer
        await talk.end()

    run(scenario())


@pytest.mark.parametrize("data", [b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", b"\x10\x05" * 150_000])
def test_bytes_that_are_no_message(trio: Cluster, run: Runner, wire: str, data: bytes) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        raw: Any = stubs.channel.stream_stream(CONVERSE, request_serializer=None, response_deserializer=None)
        call = raw(timeout=10)
        await call.write(data)
        error = await ended(call)
        assert info_of(error)[:2] == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
        talk = Talk(stubs, wire)
        await talk.ask(put(namespace, "a"), v1.EnqueueResponse)
        await talk.end()

    run(scenario())


def test_a_number_that_is_under_way_ends_the_stream_and_its_calls(trio: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        talk = Talk(stubs, wire)
        await talk.say(lease_of(namespace, "w"))
        await waiting(trio, 1)
        again = v1.ConverseCall(number=1, method=KINDS.CONVERSE_METHOD_LEASE)
        await talk.stream.write(v1.ConverseRequest(calls=[again]))
        told = info_of(await ended(talk.stream))
        assert told == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", "calls[0].number", False)
        await waiting(trio, 0)

    run(scenario())


@pytest.mark.parametrize("how", ["cancelled", "deadline", "stream"])
@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_caller_that_has_gone_gets_nothing_and_loses_nothing(
    trio: Cluster, run: Runner, wire: str, role: str, how: str
) -> None:
    async def scenario() -> None:
        talk, stays, namespace = Talk(await trio.via(role), wire), Talk(await trio.via(role), wire), fresh()
        fields: dict[str, Any] = {"timeout_ms": 300} if how == "deadline" else {}
        # Of a wait that is longer than its deadline the node ends the wait first; so the deadline is met by force.
        numbers = await talk.say(*(lease_of(namespace, f"gone{i}") for i in range(5)), **fields)
        if how != "deadline":
            await waiting(trio, 5)
        if how == "cancelled":
            await talk.say(cancelled=numbers)
        elif how == "stream":
            talk.stream.cancel()
        else:
            for number in numbers:
                assert not v1.LeaseResponse.FromString((await talk.hear(number)).response).leases
        await waiting(trio, 0)
        await stays.ask(put(namespace, "a", "b", "c"), v1.EnqueueResponse)
        found = await stays.ask(lease_of(namespace, "stays", max_items=10), v1.LeaseResponse)
        assert [each.handle.sequence_id for each in found.leases] == [1, 2, 3]
        assert {each.handle.attempt for each in found.leases} == {1}
        await stays.end()
        if how == "cancelled":
            await talk.end()
            assert not talk.answers

    run(scenario())


@pytest.mark.parametrize("how", ["cancelled", "deadline", "stream"])
def test_a_grant_on_its_way_to_a_caller_that_has_gone_is_given_back(
    trio: Cluster, run: Runner, wire: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    async def scenario() -> None:
        leader, namespace = await trio.leader(), fresh()
        name = next(each for each in trio.nodes if each != leader)
        talk, other = Talk(trio.stubs[name], wire), Talk(trio.stubs[leader], wire)
        await other.ask(put(namespace, "a", "b"), v1.EnqueueResponse)
        release, later = asyncio.Event(), list[asyncio.Task[None]]()
        replica = trio.nodes[name]._replica
        assert replica is not None
        ask = replica.ask

        def held(op: Op) -> Told:
            told = Told()
            later.append(asyncio.ensure_future(hold_back(ask(op), told)))
            return told

        async def hold_back(done: Told, told: Told) -> None:
            result = await done
            await release.wait()
            told.set_result(result)

        async def stands(pending: int, active: int) -> bool:
            request = v1.QueuesRequest(namespaces=[namespace], linearizable=True)
            depth = (await trio.stubs[leader].admin.Queues(request, timeout=10)).queues[0].summary.depth
            return (depth.pending, depth.active) == (pending, active)

        with monkeypatch.context() as patched:
            patched.setattr(replica, "ask", held)
            fields: dict[str, Any] = {"timeout_ms": 500} if how == "deadline" else {}
            numbers = await talk.say(lease_of(namespace, "dying", max_items=2), **fields)
            await eventually(lambda: stands(0, 2))
            if how == "cancelled":
                await talk.say(cancelled=numbers)
                await talk.refused(put(namespace))
            elif how == "stream":
                there = trio.nodes[name].door._conversations
                others = len(there) - 1
                talk.stream.cancel()
                await until(lambda: len(there) == others)
            else:
                told = status_pb2.Status.FromString((await talk.hear(numbers[0])).status)
                assert told.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]
            release.set()
            await eventually(lambda: stands(2, 0))
        again = await other.ask(lease_of(namespace, "w", max_items=2), v1.LeaseResponse)
        assert [each.handle.attempt for each in again.leases] == [1, 1]
        await other.end()

    run(scenario())


def test_the_limits_of_a_client_count_for_its_conversations(solo: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        await solo.start("n1", **{"limits.calls_per_peer": 3, "limits.streams_per_peer": 1})
        stubs, namespace = solo.stubs["n1"], fresh()
        talk = Talk(stubs, wire)
        # The stream is one of the three.
        numbers = await talk.say(*(lease_of(namespace, "w", wait_ms=20_000) for _ in range(2)))
        await waiting(solo, 2)
        told = status_pb2.Status.FromString(await talk.refused(lease_of(namespace, "w")))
        assert told.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert len(told.details) == 2
        if wire == "grpc":
            # What is counted is a connection, which a direct stream has for itself.
            with pytest.raises(grpc.aio.AioRpcError) as met:
                await stubs.lease.Lease(lease_of(namespace, "w"), timeout=10)
            assert info_of(met.value)[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
            another = Talk(stubs, wire)
            assert info_of(await ended(another.stream))[:2] == (grpc.StatusCode.RESOURCE_EXHAUSTED, "QUEUE_FULL")
        await talk.say(cancelled=numbers)
        await waiting(solo, 0)
        await talk.ask(put(namespace, "a"), v1.EnqueueResponse)
        await talk.end()

    run(scenario())


def test_a_node_that_stops_says_so_and_answers_what_is_under_way(solo: Cluster, run: Runner, wire: str) -> None:
    async def scenario() -> None:
        await solo.start("n1")
        talk, namespace = Talk(solo.stubs["n1"], wire), fresh()
        (asked,) = await talk.say(lease_of(namespace, "w", wait_ms=30_000))
        await waiting(solo, 1)
        stopping = asyncio.ensure_future(solo.nodes["n1"].stop())
        told = status_pb2.Status.FromString((await talk.hear(asked)).status)
        assert told.code == grpc.StatusCode.UNAVAILABLE.value[0]
        late = status_pb2.Status.FromString(await talk.refused(put(namespace, "late")))
        assert late.code == grpc.StatusCode.UNAVAILABLE.value[0]
        assert "stopping" in late.message
        assert talk.went_away
        await talk.end()
        await stopping

    run(scenario())


def test_over_tls_the_certificate_says_who_calls(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        make_authority(tmp_path)
        for name in ("node", "alice"):
            make_certificate(tmp_path, name)
        files = {"tls.ca": "ca.pem", "tls.cert": "node.pem", "tls.key": "node-key.pem"}
        overrides: dict[str, object] = {key: tmp_path / file for key, file in files.items()}
        cluster = Cluster(tmp_path, 1, overrides | {"tls.require_client_cert": True})
        try:
            node = await cluster.start("n1")
            await cluster.leader()
            tls = Tls(tmp_path / "ca.pem", tmp_path / "alice.pem", tmp_path / "alice-key.pem")
            async with Client(node.grpc_address, tls=tls) as client:
                await client.enqueue("table", "orders")
                (held,) = await client.lease(1, wait=5, peer_id="alice/2")
                assert len(node.door._conversations) == 1
                with pytest.raises(Forbidden) as met:
                    await client.lease(1, peer_id="bob")
                assert met.value.field == "peer_id"
                await held.complete()
        finally:
            await cluster.stop_all()

    run(scenario())
