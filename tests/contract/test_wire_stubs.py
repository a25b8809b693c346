"""The generated stubs carry calls of every kind, on asyncio and with types that a strict checker accepts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from resourcelease.v1 import (
    Enqueued,
    EnqueueRequest,
    EnqueueResponse,
    EnqueueResult,
    Event,
    Handle,
    ItemPayload,
    Lease,
    PublishRequest,
    SubscribeRequest,
    SubscribeResponse,
    WorkLeases,
    WorkOpen,
    WorkOpened,
    WorkRequest,
    WorkResponse,
)
from resourcelease.v1.event_service_pb2_grpc import (
    EventServiceServicer,
    EventServiceStub,
    add_EventServiceServicer_to_server,
)
from resourcelease.v1.lease_service_pb2_grpc import (
    LeaseServiceServicer,
    LeaseServiceStub,
    add_LeaseServiceServicer_to_server,
)

Context = grpc.aio.ServicerContext[Any, Any]


class Leases(LeaseServiceServicer):
    async def Enqueue(self, request: EnqueueRequest, context: Context) -> EnqueueResponse:
        results = [EnqueueResult(enqueued=Enqueued(sequence_id=number)) for number, _ in enumerate(request.items, 1)]
        return EnqueueResponse(results=results)

    async def Work(self, request_iterator: AsyncIterator[WorkRequest], context: Context) -> AsyncIterator[WorkResponse]:
        fence = 0
        async for request in request_iterator:
            if request.WhichOneof("frame") == "open":
                yield WorkResponse(opened=WorkOpened(node_id="n1"))
            for _ in range(request.credit):
                fence += 1
                lease = Lease(handle=Handle(sequence_id=fence, attempt=1, lease_id=fence))
                yield WorkResponse(leases=WorkLeases(leases=[lease]))


class Events(EventServiceServicer):
    async def Subscribe(self, request: SubscribeRequest, context: Context) -> AsyncIterator[SubscribeResponse]:
        for number in range(request.from_sequence, request.to_sequence + 1):
            yield SubscribeResponse(events=[Event(sequence_number=number)], next_sequence=number + 1)


def with_server(call: Callable[[grpc.aio.Channel], Awaitable[None]]) -> None:
    async def run() -> None:
        server = grpc.aio.server()
        # The methods that these leave out are what gRPC makes of them: unimplemented.
        add_LeaseServiceServicer_to_server(Leases(), server)  # type: ignore[abstract]
        add_EventServiceServicer_to_server(Events(), server)  # type: ignore[abstract]
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                await call(channel)
        finally:
            await server.stop(None)

    asyncio.run(run())


def test_unary() -> None:
    async def call(channel: grpc.aio.Channel) -> None:
        items = [ItemPayload(resource_type="table", resource_id=name) for name in ("orders", "users")]
        response = await LeaseServiceStub(channel).Enqueue(EnqueueRequest(items=items))
        assert [result.enqueued.sequence_id for result in response.results] == [1, 2]

    with_server(call)


def test_server_stream() -> None:
    async def call(channel: grpc.aio.Channel) -> None:
        stream = EventServiceStub(channel).Subscribe(SubscribeRequest(from_sequence=3, to_sequence=5))
        assert [event.sequence_number async for response in stream for event in response.events] == [3, 4, 5]

    with_server(call)


def test_bidirectional_stream() -> None:
    async def asked() -> AsyncIterator[WorkRequest]:
        yield WorkRequest(peer_id="worker-1", open=WorkOpen(), credit=1)
        yield WorkRequest(credit=2)

    async def call(channel: grpc.aio.Channel) -> None:
        answers = [answer async for answer in LeaseServiceStub(channel).Work(asked())]
        assert [answer.WhichOneof("frame") for answer in answers] == ["opened", "leases", "leases", "leases"]
        assert [lease.handle.lease_id for answer in answers for lease in answer.leases.leases] == [1, 2, 3]

    with_server(call)


def test_a_method_that_a_node_does_not_have_is_unimplemented() -> None:
    async def call(channel: grpc.aio.Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await EventServiceStub(channel).Publish(PublishRequest())
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    with_server(call)
