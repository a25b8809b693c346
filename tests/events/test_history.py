"""History on disk and Subscribe over it: the same on all nodes, each event once, whatever nodes do."""

import asyncio
import json
from collections.abc import AsyncIterator

import grpc
import pytest
from frontdoor.cluster_fixture import Cluster, Runner, ended, info_of, items, refusal, until

from resourcelease import Client, v1
from resourcelease.cli import main
from resourcelease.machine import fold
from resourcelease.storage.segments import Log, SegmentsStopped, verify

from .load import Load, put, segments_of


def test_each_event_once_in_order_while_nodes_go_and_come(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        seen: list[int] = []

        async def follow() -> None:
            async with Client([node.grpc_address for node in trio.nodes.values()], timeout=20) as client:
                async for event in client.events(1):
                    seen.append(event.sequence_number)  # noqa: PERF401 looked at meanwhile

        ports = {name: node.grpc_address for name, node in trio.nodes.items()}
        async with Load(trio) as load:
            await load.more(30)
            following = asyncio.ensure_future(follow())
            for name in (await trio.leader(), "n2", await trio.leader()):
                if name in trio.nodes:
                    await trio.stop(name)
                await load.more(30)
                await trio.start(name, **{"grpc.listen": ports[name]})
                await load.more(30)
        await trio.leader()
        await put(trio, 1)
        machines = [node.consensus.machine for node in trio.nodes.values()]
        await until(lambda: len({machine.applied_index for machine in machines}) == 1)
        states = {name: node.consensus.machine.digest() for name, node in trio.nodes.items()}
        last = (await trio.stubs["n1"].admin.Status(v1.StatusRequest(), timeout=5)).last_sequence
        await until(lambda: following.done() or (bool(seen) and seen[-1] >= last))
        following.cancel()
        assert seen == list(range(1, seen[-1] + 1))

        digests = {}
        for name, state in states.items():
            await trio.stop(name)
            report = verify(segments_of(trio, name))
            assert report.ok, report.problems
            digests[name] = report.digests
            assert fold("test", Log(segments_of(trio, name)).records()).digest() == state
        assert digests["n1"] == digests["n2"] == digests["n3"]
        assert len(digests["n1"]) > 3

    run(scenario(), 60)


def test_filters_over_history(solo: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await solo.start("n1")
        stubs = solo.stubs["n1"]
        await put(solo, 60)
        for name in ("other", "third"):
            request = v1.EnqueueRequest(namespace=name, items=items("z", body=b"body") * 3)
            await stubs.lease.Enqueue(request, timeout=10)
        await put(solo, 61)
        end = (await stubs.admin.Status(v1.StatusRequest(), timeout=10)).last_sequence
        everything = [event async for event in _read(solo, v1.SubscribeRequest(from_sequence=1, to_sequence=end))]
        assert [event.sequence_number for event in everything] == list(range(1, end + 1))
        chosen = v1.SubscribeRequest(
            from_sequence=1,
            to_sequence=end,
            namespaces=["other", "third"],
            types=[v1.EventType.EVENT_TYPE_ENQUEUE],
            resource_types=["table"],
            include_bodies=True,
        )
        found = [event async for event in _read(solo, chosen)]
        assert [(event.namespace, event.payload.body) for event in found] == [
            *[("other", b"body")] * 3,
            *[("third", b"body")] * 3,
        ]
        nothing = v1.SubscribeRequest(from_sequence=1, to_sequence=end, types=[77])  # type: ignore[list-item]
        assert [event async for event in _read(solo, nothing)] == []

    run(scenario())


async def _read(cluster: Cluster, request: v1.SubscribeRequest, name: str = "n1") -> AsyncIterator[v1.Event]:
    async with asyncio.timeout(20):
        async for answer in cluster.stubs[name].event.Subscribe(request):
            for event in answer.events:
                yield event


def test_history_that_was_retired_is_an_error_that_names_the_first(solo: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await solo.start("n1", **{"events.retention_bytes": 40_000})
        await put(solo, 300)
        stubs = solo.stubs["n1"]
        await until(lambda: Log(segments_of(solo, "n1")).first_sequence > 1)
        error = await ended(stubs.event.Subscribe(v1.SubscribeRequest(from_sequence=1)))
        assert info_of(error)[:3] == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND", "from_sequence")
        first = int((error.details() or "").split("the first that is available is ")[1].split(".")[0])
        assert first == Log(segments_of(solo, "n1")).first_sequence
        async for event in _read(solo, v1.SubscribeRequest(from_sequence=first, to_sequence=first + 100)):
            assert event.sequence_number == first
            first += 1

    run(scenario())


def test_thirty_readers_share_what_is_new(solo: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await solo.start("n1")
        await put(solo, 10)
        request = v1.SubscribeRequest(from_sequence=1, to_sequence=81)

        async def one() -> list[int]:
            return [event.sequence_number async for event in _read(solo, request)]

        readers = [asyncio.ensure_future(one()) for _ in range(30)]
        await put(solo, 30)
        for numbers in await asyncio.gather(*readers):
            assert numbers == list(range(1, 82))

    run(scenario())


def test_a_log_that_cannot_be_written(solo: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        node = await solo.start("n1")
        assert node._log is not None
        writer = node._log.writer
        with monkeypatch.context() as patch:
            patch.setattr(type(writer), "has_room", False)
            told = await refusal(solo.stubs["n1"].lease.Enqueue(v1.EnqueueRequest(items=items("a")), timeout=5))
            assert told == (grpc.StatusCode.UNAVAILABLE, "NO_LEADER", "", True)
        await put(solo, 1)
        writer._fail(SegmentsStopped("the disk is gone"))
        async with asyncio.timeout(5):
            assert "the disk is gone" in str(await node.failed)

    run(scenario())


def test_the_command_shows_what_is_kept(solo: Cluster, run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        await solo.start("n1", **{"events.retention_bytes": 10_000})
        await put(solo, 200)
        log = solo.nodes["n1"].log
        await until(lambda: log.writer.register.retired > 0)
        await log.archive.settle()
        endpoint = ["--endpoints", solo.nodes["n1"].grpc_address, "--json"]

        async def shown(code: int, *options: str) -> str:
            assert await asyncio.to_thread(main, ["events", *options, *endpoint]) == code
            said = capsys.readouterr()
            return said.err if code else said.out

        def kept() -> int:
            return int(log.writer.register.retired) + 1

        for options in ((), ("--last", "100000")):
            before = kept()
            numbers = [json.loads(line)["sequence_number"] for line in (await shown(0, *options)).splitlines()]
            assert numbers == list(range(numbers[0], numbers[-1] + 1))
            assert 1 < before <= numbers[0] <= kept()
        assert len(numbers) > 10
        assert "the first that is available is" in await shown(1, "--from", "1")
        assert "--from 9 lies behind --to 8" in await shown(2, "--from", "9", "--to", "8")
        for options in (("--to", "0"), ("--from", "0")):
            assert "is not in the range" in await shown(2, *options)

    run(scenario(), 60)
