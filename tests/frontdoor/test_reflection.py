"""A client that was never told of our files: it asks the node what there is, and lives an item's whole life."""

from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc  # type: ignore[import-untyped]

from frontdoor.cluster_fixture import Cluster, Runner, eventually, fresh


class Stranger:
    """Knows the reflection protocol, and nothing else."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._pool = descriptor_pool.DescriptorPool()
        self._known: set[str] = set()

    async def _ask(self, **question: str) -> Any:
        stub = reflection_pb2_grpc.ServerReflectionStub(self._channel)
        call = stub.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(**question)]), timeout=10)
        async for answer in call:
            return answer
        raise AssertionError("no answer")

    async def services(self) -> list[str]:
        answer = await self._ask(list_services="")
        return [service.name for service in answer.list_services_response.service]

    async def learn(self, symbol: str) -> None:
        answer = await self._ask(file_containing_symbol=symbol)
        await self._take(answer)

    async def _take(self, answer: Any) -> None:
        for data in answer.file_descriptor_response.file_descriptor_proto:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
            if file.name in self._known:
                continue
            self._known.add(file.name)
            for name in file.dependency:
                await self._take(await self._ask(file_by_filename=name))
            self._pool.Add(file)

    async def call(self, service: str, method: str, **fields: Any) -> dict[str, Any]:
        found = self._pool.FindServiceByName(service).methods_by_name[method]
        request = message_factory.GetMessageClass(found.input_type)()
        json_format.ParseDict(fields, request)
        send: Any = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
        )
        return json_format.MessageToDict(await send(request, timeout=10), preserving_proto_field_name=True)


def test_a_generic_client_lives_an_items_life(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stranger = Stranger((await trio.via("follower")).channel)
        names = await stranger.services()
        assert {"grpc.health.v1.Health", "resourcelease.v1.LeaseService", "resourcelease.v1.AdminService"} <= set(names)
        service = next(name for name in names if name.endswith("LeaseService"))
        await stranger.learn(service)
        common = {"namespace": fresh(), "peer_id": "stranger"}
        item = {"resource_type": "table", "resource_id": "orders", "body": "eA=="}
        put = await stranger.call(service, "Enqueue", operation_id="1", items=[item], **common)
        assert put["results"] == [{"enqueued": {"sequence_id": "1"}}]
        [lease] = (await stranger.call(service, "Lease", operation_id="2", max_items=1, **common))["leases"]
        assert lease["payload"]["body"] == "eA=="
        beat = await stranger.call(service, "Heartbeat", operation_id="3", handles=[lease["handle"]], **common)
        assert int(beat["remaining_ms"]) > 0
        back = [{"handle": lease["handle"], "give_back": True}]
        assert (await stranger.call(service, "Fail", operation_id="4", entries=back, **common))["results"] == [
            {"failed": {}}
        ]
        [lease] = (await stranger.call(service, "Lease", operation_id="5", max_items=1, **common))["leases"]
        assert lease["last_outcome"] == "LEASE_OUTCOME_GIVEN_BACK"
        done = await stranger.call(
            service, "Complete", operation_id="6", entries=[{"handle": lease["handle"]}], **common
        )
        assert done["results"] == [{"completed": {}}]

    run(scenario())


def test_health_tells_who_has_a_leader(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        for stubs in trio.stubs.values():
            health = health_pb2_grpc.HealthStub(stubs.channel)
            for service in ("", "resourcelease.v1.LeaseService", "resourcelease.v1.EventService"):
                request = health_pb2.HealthCheckRequest(service=service)

                async def serves(health: Any = health, request: Any = request) -> bool:
                    told = await health.Check(request, timeout=5)
                    return bool(told.status == health_pb2.HealthCheckResponse.SERVING)

                await eventually(serves)

    run(scenario())
