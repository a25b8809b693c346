"""Calls on their way from gRPC to the code that answers them, and back."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import pytest
import uvloop

from frontdoor.cluster_fixture import until
from resourcelease import v1
from resourcelease.frontdoor.callers import Callers
from resourcelease.frontdoor.dispatch import Dispatch
from resourcelease.frontdoor.gate import Gate
from resourcelease.frontdoor.refusals import Refused
from resourcelease.model.errors import Reason
from resourcelease.v1 import event_service_pb2, event_service_pb2_grpc


class Matter:
    """What a call holds while it is under way."""


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_refused_call_leaves_nothing_for_the_collector(factory: Any) -> None:
    """Nobody looks for circles among what has grown old, and a call that waits long before it is refused has."""
    held: list[weakref.ref[Matter]] = []

    def refuse() -> Refused:
        return Refused(Reason.NO_LEADER, "nobody leads")

    async def publish(caller: Any, request: Any) -> Any:
        matter = Matter()
        held.append(weakref.ref(matter))
        await asyncio.sleep(0)
        raise refuse()

    async def subscribe(caller: Any, request: Any) -> AsyncGenerator[Any, None]:
        matter = Matter()
        held.append(weakref.ref(matter))
        yield v1.SubscribeResponse()
        raise refuse()

    async def story() -> None:
        callers = Callers(run="~1", trust_principal_header=False, authenticated=False)
        dispatch = Dispatch(callers, Gate(calls=10, calls_per_peer=10, streams_per_peer=10))
        described = event_service_pb2.DESCRIPTOR.services_by_name["EventService"]
        server = grpc.aio.server()
        handlers = dispatch.service(described, {"Publish": publish, "Subscribe": subscribe})
        server.add_generic_rpc_handlers((handlers,))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            events = event_service_pb2_grpc.EventServiceStub(channel)
            for _ in range(3):
                with pytest.raises(grpc.aio.AioRpcError, match="nobody leads"):
                    await events.Publish(v1.PublishRequest())
                with pytest.raises(grpc.aio.AioRpcError, match="nobody leads"):
                    _ = [each async for each in events.Subscribe(v1.SubscribeRequest())]
            await until(lambda: not any(ref() for ref in held))
        await server.stop(None)
        assert len(held) == 6

    gc.collect()
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(story())
    finally:
        gc.enable()
