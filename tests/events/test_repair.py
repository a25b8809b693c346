"""Damage on one node: found, named, and mended from another."""

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import grpc
import pytest
from frontdoor import cluster_fixture
from frontdoor.cluster_fixture import Cluster, Runner, until

from resourcelease import v1
from resourcelease.node.statewatch import judged
from resourcelease.node.takeout import TakenOut
from resourcelease.node.upkeep import Upkeep
from resourcelease.storage.segments import segment_paths, verify

from .load import Load, put, segments_of


def files(cluster: Cluster, name: str) -> list[Path]:
    return [path for _, path in segment_paths(segments_of(cluster, name))]


async def check(cluster: Cluster, name: str, **fields: Any) -> v1.VerifyResponse:
    return await cluster.stubs[name].admin.Verify(v1.VerifyRequest(linearizable=True, **fields), timeout=20)


def test_a_flipped_byte_is_found_named_and_mended(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await put(trio, 120)
        await until(lambda: len(files(trio, "n2")) > 3)
        assert (await check(trio, "n1")).ok
        victim = files(trio, "n2")[1]
        sound = victim.read_bytes()
        victim.write_bytes(sound[:500] + bytes([sound[500] ^ 1]) + sound[501:])
        told = await check(trio, "n1")
        assert not told.ok
        (problem,) = [problem for node in told.nodes for problem in node.problems]
        assert problem.startswith(f"n2: {victim} at byte ")
        await until(lambda: trio.nodes["n2"].upkeep.repair.mended == 1)
        assert verify(segments_of(trio, "n2")).ok
        told = await check(trio, "n3")
        assert told.ok
        assert len({node.events_digest for node in told.nodes}) == 1
        first = int(files(trio, "n2")[1].stem)
        told = await check(trio, "n1", from_sequence=first, to_sequence=first)
        assert {(node.first_sequence, node.events_digest) for node in told.nodes} == {
            (first, told.nodes[0].events_digest)
        }

    run(scenario())


def test_damage_that_a_reader_meets_is_mended(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await put(trio, 120)
        await until(lambda: len(files(trio, "n2")) > 3)
        victim = files(trio, "n2")[1]
        sound = victim.read_bytes()
        victim.write_bytes(sound[:500] + bytes([sound[500] ^ 1]) + sound[501:])
        request = v1.SubscribeRequest(from_sequence=1, to_sequence=240)
        with pytest.raises(grpc.aio.AioRpcError, match="subscribe again at the same place"):
            async for _ in trio.stubs["n2"].event.Subscribe(request):
                pass
        await until(lambda: verify(segments_of(trio, "n2")).ok)

    run(scenario())


def test_a_missing_file_is_fetched_while_readers_go_elsewhere(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await put(trio, 120)
        await until(lambda: len(files(trio, "n2")) > 3)
        files(trio, "n2")[1].unlink()
        with pytest.raises(grpc.aio.AioRpcError, match="subscribe again at the same place"):
            async for _ in trio.stubs["n2"].event.Subscribe(v1.SubscribeRequest(from_sequence=1, to_sequence=240)):
                pass
        await until(lambda: verify(segments_of(trio, "n2")).ok)
        numbers = [
            event.sequence_number
            async for answer in trio.stubs["n2"].event.Subscribe(v1.SubscribeRequest(from_sequence=1, to_sequence=240))
            for event in answer.events
        ]
        assert numbers == list(range(1, 241))

    run(scenario())


def test_a_node_that_joined_fetches_the_history(run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(
        cluster_fixture.QUICK, flush_entries=5, flush_s=0.05, keep_entries=2, keep_bytes=1, chunk_bytes=4096
    )
    monkeypatch.setattr(cluster_fixture, "QUICK", small)

    async def scenario() -> None:
        cluster = Cluster(tmp_path, 3, {"events.flush_ms": 20})
        joining = cluster.members.pop("n3")
        await cluster.start_all()
        await put(cluster, 150)
        # A snapshot is of what has settled, and is to leave out most of this.
        stores: list[Any] = [node._store for node in cluster.nodes.values()]
        await until(lambda: all(store.settled_rows_index > 130 for store in stores))
        cluster.members["n3"] = joining
        await cluster.start("n3", **{"cluster.members": None, "cluster.join": True})
        stubs = await cluster.via("leader")
        add = v1.AddMember(node_id="n3", raft_address=joining, client_address=cluster.nodes["n3"].grpc_address)
        await stubs.admin.Members(v1.MembersRequest(add=add), timeout=20)
        await put(cluster, 60)
        cluster.nodes["n3"].upkeep.repair.look()
        await until(lambda: [path.name for path in files(cluster, "n3")] == [p.name for p in files(cluster, "n1")], 20)
        report = verify(segments_of(cluster, "n3"))
        assert report.ok
        assert not [note for note in report.notes if "never here" in note or "middle" in note]
        await until(lambda: cluster.nodes["n3"].upkeep.repair.mended > 2)
        assert (await check(cluster, "n1")).ok
        await cluster.stop_all()

    run(scenario(), 60)


def test_a_node_with_another_history_takes_itself_out(
    trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        await put(trio, 3)
        machine: Any = trio.nodes["n2"].consensus.machine
        machine._state.chain = b"\1" * 32
        await put(trio, 3)
        told = await check(trio, "n1")
        assert "n2: its events up to index" in next(node for node in told.nodes if node.node_id == "n2").problems[0]
        told_of = await trio.nodes["n2"].upkeep._differs()
        assert "not those of the majority (2 of 3 nodes)" in told_of
        assert not await trio.nodes["n1"].upkeep._differs()
        monkeypatch.setattr(Upkeep, "compare_every_s", 0.05)
        upkeep = trio.nodes["n2"].upkeep
        await upkeep.stop()
        upkeep.start()
        error = await trio.nodes["n2"].failed
        assert "until it has taken over the state of a majority" in str(error)
        await trio.stop("n2")
        with pytest.raises(TakenOut, match="took itself out"):
            await trio.start("n2")

    run(scenario())


def test_a_node_with_another_state_under_the_same_history_takes_itself_out(
    trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Upkeep, "state_every_s", 0.1)

    async def scenario() -> None:
        await put(trio, 3)
        leader = await trio.leader()
        victim = next(name for name in trio.nodes if name != leader)
        consensus: Any = trio.nodes[victim].consensus
        await until(lambda: "resourcelease" in consensus.machine._state.namespaces)
        # No event tells of this number, so the histories stay the same.
        consensus.machine._state.namespaces["resourcelease"].enqueued += 1
        for node in trio.nodes.values():
            await node.upkeep.stop()
            node.upkeep.start()
        async with Load(trio) as load:
            await load.more(20)
            error = await trio.nodes[victim].failed
            assert "is not that of the majority (2 of 3 nodes), although its events are" in str(error)
            await load.more(20)
        assert not any(node.failed.done() for name, node in trio.nodes.items() if name != victim)

    run(scenario())


def test_a_state_that_is_the_same_is_left_alone(trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Upkeep, "state_every_s", 0.05)
    seen: list[tuple[str, dict[str, str]]] = []

    def noting(own: str, digests: dict[str, str]) -> int:
        seen.append((own, digests))
        return judged(own, digests)

    monkeypatch.setattr("resourcelease.node.statecare.judged", noting)

    async def scenario() -> None:
        for node in trio.nodes.values():
            await node.upkeep.stop()
            node.upkeep.start()
        async with Load(trio):
            await until(lambda: sum(len(set(told.values())) == 1 and len(told) == 3 for _, told in seen) >= 6, 30)
        assert not any(node.failed.done() for node in trio.nodes.values())
        assert all(len(set(told.values()) - {""}) == 1 for _, told in seen)

    run(scenario())


async def never(peer: str, body: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


@pytest.mark.parametrize("how", ["hangs", "is down"])
def test_verify_says_which_node_is_away_and_compares_the_others(trio: Cluster, run: Runner, how: str) -> None:
    async def scenario() -> None:
        await put(trio, 5)
        if how == "hangs":
            trio.nodes["n2"].consensus.questions.on_asked = never
        else:
            await trio.stop("n2")
            status = trio.nodes["n1"].consensus.status
            await until(lambda: "n2" not in status().connected and status().leader in ("n1", "n3"), 20)
        told = await trio.stubs["n1"].admin.Verify(v1.VerifyRequest(), timeout=8)
        assert not told.ok
        by_name = {node.node_id: node for node in told.nodes}
        assert [*by_name] == ["n1", "n2", "n3"]
        assert not by_name["n2"].reachable
        assert list(by_name["n2"].problems) == ["n2 did not answer"]
        for name in ("n1", "n3"):
            assert by_name[name].reachable
            assert not by_name[name].problems
            assert by_name[name].state_digest

    run(scenario(), 60)


def test_nobody_who_is_not_asked_is_waited_for(trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these waits would be without an end."""

    async def scenario() -> None:
        await put(trio, 5)
        upkeep = trio.nodes["n1"].upkeep
        neighbours: Any = upkeep.states._neighbours
        ask = neighbours.ask
        asked = []

        async def asking(peer: str, question: dict[str, Any], timeout_s: float) -> Any:
            if peer != "n2":
                return await ask(peer, question, timeout_s)
            asked.append(question["what"])
            return await never(peer, b"")

        monkeypatch.setattr(neighbours, "ask", asking)
        index, states = await upkeep.states.digests_at(["n1", "n3"], 30)
        assert index
        assert states["n1"] == states["n3"] != ""
        # It takes part in the comparison that each node makes for itself.
        assert asked[0] == "watch"
        asked.clear()
        await trio.stop("n2")
        await until(lambda: "n2" not in trio.nodes["n1"].consensus.status().connected)
        assert await neighbours.digest_of("n2", index) is None
        assert "digest" not in asked

    run(scenario(), 60)
