"""Callers that mean harm, or are broken: a typed error or a closed connection, and the next call is fine."""

import asyncio
import os
import resource
from typing import Any

import grpc
import pytest

from frontdoor.cluster_fixture import Cluster, Runner, Stubs, fresh, info_of, items, refusal
from resourcelease import v1

ENQUEUE = "/resourcelease.v1.LeaseService/Enqueue"


async def all_is_well(stubs: Stubs) -> None:
    put = v1.EnqueueRequest(namespace=fresh(), operation_id=fresh("op"), items=items("a"))
    assert (await stubs.lease.Enqueue(put, timeout=10)).results[0].enqueued.sequence_id == 1


async def raw(stubs: Stubs, data: bytes, method: str = ENQUEUE) -> tuple[grpc.StatusCode, str]:
    call: Any = stubs.channel.unary_unary(method, request_serializer=None, response_deserializer=None)
    try:
        await call(data, timeout=20)
    except grpc.aio.AioRpcError as error:
        return info_of(error)[0], info_of(error)[1]
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("data", [b"\xff" * 100, b"\x22\xff\xff\xff\xff\x0f", os.urandom(5000), b"\x0a\x02\xc3\x28"])
def test_bytes_that_are_no_message(trio: Cluster, run: Runner, data: bytes) -> None:
    async def scenario() -> None:
        stubs = await trio.via("follower")
        assert await raw(stubs, data) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
        call: Any = stubs.channel.stream_stream(
            "/resourcelease.v1.LeaseService/Work", request_serializer=None, response_deserializer=None
        )(timeout=10)
        await call.write(data)
        assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
        await all_is_well(stubs)

    run(scenario())


def test_a_method_that_is_not_there(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs = await trio.via("leader")
        code, _ = await raw(stubs, b"", "/resourcelease.v1.LeaseService/Steal")
        assert code is grpc.StatusCode.UNIMPLEMENTED

    run(scenario())


def test_huge_requests(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        code, _ = await raw(stubs, bytes(17 << 20))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED

        big = v1.EnqueueRequest(namespace=namespace, items=items("a", "b", body=bytes(2 << 20)))
        results = (await stubs.lease.Enqueue(big, timeout=20)).results
        assert [each.error.field for each in results] == ["items[0].body", "items[1].body"]

        options = v1.QueueOptions(max_body_bytes=8 << 20)
        await stubs.admin.Configure(v1.ConfigureRequest(namespace=namespace, options=options), timeout=10)
        large = v1.EnqueueRequest(namespace=namespace, items=items("a", body=bytes(8 << 20)))
        assert (await stubs.lease.Enqueue(large, timeout=30)).results[0].enqueued.sequence_id == 1
        await all_is_well(stubs)

    run(scenario())


def test_a_million_items_cost_nothing(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs = await trio.via("follower")
        flood = b"\x22\x00" * 1_000_000
        assert await raw(stubs, flood) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(5):
            assert await raw(stubs, flood) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
        # Read as a message, each of them would take a hundred megabytes.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30 * 1024
        for method, tag in (("Complete", b"\x22"), ("Fail", b"\x22"), ("Heartbeat", b"\x22")):
            told = await raw(
                stubs, tag + b"\x00" + (tag + b"\x00") * 300_000, f"/resourcelease.v1.LeaseService/{method}"
            )
            assert told == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
        await all_is_well(stubs)

    run(scenario(), timeout_s=60)


def test_handles_of_another_cluster(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        await stubs.lease.Enqueue(v1.EnqueueRequest(namespace=namespace, items=items("a")), timeout=10)
        foreign = v1.Handle(sequence_id=77, attempt=3, lease_id=1 << 60)
        request = v1.CompleteRequest(
            namespace=namespace, peer_id="w", entries=[v1.CompleteEntry(handle=foreign)], operation_id="x"
        )
        assert (await stubs.lease.Complete(request, timeout=10)).results[0].error.reason == "NOT_FOUND"
        top = v1.Handle(sequence_id=(1 << 63) - 1, attempt=1, lease_id=(1 << 63) - 1)
        request.entries[0].handle.CopyFrom(top)
        told = await refusal(stubs.lease.Complete(request, timeout=10))
        assert told[1] in ("INVALID_ARGUMENT", "NOT_FOUND")
        begin = v1.BeginEffectRequest(namespace=namespace, peer_id="w", effect_id="e", handle=foreign)
        assert (await refusal(stubs.lease.BeginEffect(begin, timeout=10)))[1] == "LEASE_LOST"
        await all_is_well(stubs)

    run(scenario())


@pytest.mark.parametrize("port", ["grpc", "peers"])
def test_garbage_on_a_port(trio: Cluster, run: Runner, port: str) -> None:
    async def scenario() -> None:
        leader = await trio.leader()
        node = trio.nodes[leader]
        address = node.grpc_address if port == "grpc" else node.peer_address
        host, _, number = address.rpartition(":")
        for data in (b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096), b"\xff" * 64, b""):
            reader, writer = await asyncio.open_connection(host, int(number))
            writer.write(data)
            if not data:
                writer.write_eof()
            async with asyncio.timeout(15):
                try:
                    while await reader.read(4096):
                        pass
                except ConnectionError:
                    pass
            writer.close()
        await all_is_well(trio.stubs[leader])
        await all_is_well(await trio.via("follower"))

    run(scenario(), timeout_s=80)
