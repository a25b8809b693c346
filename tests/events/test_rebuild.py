"""A node that is out takes over the state of a majority; or it waits, or says why it cannot."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from frontdoor.cluster_fixture import QUICK, SMALL, Cluster, Runner, eventually, until

from resourcelease import v1
from resourcelease.cli import main
from resourcelease.node.config import NodeConfig, load
from resourcelease.node.pictures import Picture
from resourcelease.node.rebuild import CannotRebuild, rebuild
from resourcelease.node.takeout import Mark, Rebuilt, check_not_out, mark_out, note_rebuilt, put_aside, read_mark
from resourcelease.node.takeout import rebuilds as rebuilds_of
from resourcelease.node.upkeep import Upkeep
from resourcelease.storage import LmdbStore, WriteBatch
from resourcelease.storage.segments import segment_paths, verify

from .load import Load, put, segments_of

WRONG = Mark("its state is wrong", False, {})


def config_of(cluster: Cluster, name: str) -> NodeConfig:
    return load(
        None,
        {},
        {
            "node.id": name,
            "node.dir": cluster.directory / name,
            "cluster.id": "test",
            "cluster.members": cluster.members,
            "peers.listen": cluster.members[name],
        },
    )


def rebuilding(cluster: Cluster, name: str, mark: Mark = WRONG) -> "asyncio.Future[Rebuilt]":
    return asyncio.ensure_future(rebuild(config_of(cluster, name), QUICK, mark, SMALL))


def opened(cluster: Cluster, name: str) -> LmdbStore:
    return LmdbStore(cluster.directory / name, cluster_id="test", node_id=name, options=SMALL)


async def follower_of(cluster: Cluster) -> str:
    leader = await cluster.leader()
    return next(name for name in cluster.nodes if name != leader)


def digest_of(cluster: Cluster, name: str) -> str:
    machine: Any = cluster.nodes[name].consensus.machine
    return f"{machine.applied_index}:{machine.digest().hex()}"


async def same_states(cluster: Cluster) -> None:
    await until(lambda: len({digest_of(cluster, name) for name in cluster.nodes}) == 1)


def test_the_state_covers_the_log_and_the_vote_stays(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await put(trio, 40)
        victim = await follower_of(trio)
        await trio.stop(victim)
        store = opened(trio, victim)
        before = store.load()
        store.close()
        rebuilt = await rebuilding(trio, victim)
        # Nothing that it ever acknowledged is behind the state, though nothing has happened meanwhile.
        assert rebuilt.index > before.last_index
        store = opened(trio, victim)
        after = store.load()
        assert (after.rows_index, after.first_index, after.last_index) == (
            rebuilt.index,
            rebuilt.index - 1,
            rebuilt.index,
        )
        assert (after.term, after.voted_for) == (before.term, before.voted_for)
        store.close()
        (written,) = rebuilds_of(trio.directory / victim)
        assert written == rebuilt
        aside = trio.directory / victim / rebuilt.aside
        assert (aside / "data.mdb").stat().st_size > 0
        assert json.loads((aside / "reason.json").read_text()) == {"reason": "its state is wrong"}
        await trio.start(victim)
        await same_states(trio)

    run(scenario())


def test_a_term_that_was_missed_is_taken_over_without_a_vote(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await put(trio, 5)
        victim = await follower_of(trio)
        await trio.stop(victim)
        store = opened(trio, victim)
        before = store.load()
        store.close()
        other = await follower_of(trio)
        await trio.nodes[other].consensus.transfer_leadership(other)
        await until(lambda: trio.nodes[other].consensus.is_leader)
        await put(trio, 5, other)
        rebuilt = await rebuilding(trio, victim)
        assert rebuilt.term > before.term
        store = opened(trio, victim)
        after = store.load()
        store.close()
        assert (after.term, after.voted_for, after.rows_term) == (rebuilt.term, "", rebuilt.term)
        await trio.start(victim)
        await same_states(trio)

    run(scenario())


def test_a_node_waits_until_a_majority_is_there(trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resourcelease.node.rebuild._PICTURE_S", 1.0)

    async def scenario() -> None:
        await put(trio, 20)
        victim = await follower_of(trio)
        await trio.stop(victim)
        other = await follower_of(trio)
        await trio.stop(other)
        work = rebuilding(trio, victim)
        done, _ = await asyncio.wait([work], timeout=4.0)
        assert not done
        await trio.start(other)
        rebuilt = await work
        assert rebuilt.source in trio.nodes
        await trio.start(victim)
        await same_states(trio)

    run(scenario())


def test_two_that_differ_are_no_majority(
    trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("resourcelease.node.rebuild._TELL_EVERY_S", 0.0)

    async def scenario() -> None:
        await put(trio, 20)
        victim = await follower_of(trio)
        await trio.stop(victim)
        machine: Any = trio.nodes[next(iter(trio.nodes))].consensus.machine
        machine._state.namespaces["resourcelease"].enqueued += 1
        machine._state.touched_namespaces["resourcelease"] = None
        work = rebuilding(trio, victim)
        await until(lambda: "1 of 3 nodes tell one state" in caplog.text)
        assert not work.done()
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        # It is as it was, and nothing is left of the attempt.
        assert not rebuilds_of(trio.directory / victim)
        assert not (trio.directory / victim / "install").exists()

    run(scenario())


def test_what_is_sent_is_proven_by_its_digest(
    trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("resourcelease.node.rebuild._TELL_EVERY_S", 0.0)
    honest = Picture.piece
    lies = [True]

    def lying(picture: Picture, number: int) -> tuple[list[tuple[bytes, bytes]], bool]:
        rows, last = honest(picture, number)
        return [(key, value + b"\0") if lies[0] and key[:1] == b"g" else (key, value) for key, value in rows], last

    monkeypatch.setattr(Picture, "piece", lying)

    async def scenario() -> None:
        await put(trio, 20)
        victim = await follower_of(trio)
        await trio.stop(victim)
        work = rebuilding(trio, victim)
        await until(lambda: "sent has the digest" in caplog.text)
        lies[0] = False
        await work
        await trio.start(victim)
        await same_states(trio)

    run(scenario())


def test_a_node_whose_history_differs_too_fetches_that_again(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await put(trio, 120)
        victim = await follower_of(trio)
        await until(lambda: len(segment_paths(segments_of(trio, victim))) > 3)
        await trio.stop(victim)
        mark_out(trio.directory / victim, Mark("its events are wrong", True, trio.members))
        mark = read_mark(trio.directory / victim)
        assert mark is not None
        opened_file = segment_paths(segments_of(trio, victim))[-1][1]
        rebuilt = await rebuilding(trio, victim, mark)
        # The open file cannot be proven, so it is put aside with the rows.
        assert not opened_file.exists()
        assert (trio.directory / victim / rebuilt.aside / opened_file.name).exists()
        check_not_out(trio.directory / victim)
        await trio.start(victim)
        async with Load(trio) as load:

            async def whole() -> bool:
                # What its open file lacks is fetched once that file is sealed.
                await load.more(30)
                trio.nodes[victim].upkeep.repair.look()
                return bool(verify(segments_of(trio, victim)).ok)

            await eventually(whole, 40)
        await same_states(trio)

    run(scenario(), 80)


def test_damaged_rows_are_found_while_the_node_runs(
    trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Upkeep, "state_every_s", 0.2)

    async def scenario() -> None:
        await put(trio, 10)
        victim = await follower_of(trio)
        store: Any = trio.nodes[victim]._store
        await until(lambda: store.settled_rows_index > 1)
        txn = store._env._opened().begin(write=True)
        txn.put(b"p" + bytes(8), b"no row of ours", db=store._env.rows)
        txn.commit()
        for node in trio.nodes.values():
            await node.upkeep.stop()
            node.upkeep.start()
        error = await trio.nodes[victim].failed
        assert "does not match its checksum" in str(error)
        await trio.stop(victim)
        mark = read_mark(trio.directory / victim)
        assert mark is not None
        assert mark.members.keys() == trio.members.keys()
        rebuilt = await rebuilding(trio, victim, mark)
        address = trio.nodes[rebuilt.source].grpc_address
        await asyncio.to_thread(main, ["status", "--endpoints", address, "--timeout", "5"])
        assert f"{victim}: it is out, and takes over the state of the others" in capsys.readouterr().out
        await trio.start(victim)
        await same_states(trio)
        said = f"ago it took over the state at index {rebuilt.index} from {rebuilt.source} (1 times so far), because"

        async def told() -> bool:
            # The victim has a new address, which the others hear of in a moment.
            await asyncio.to_thread(main, ["status", "--endpoints", address])
            return said in capsys.readouterr().out

        await eventually(told, 20)

    run(scenario())


def test_verify_names_a_node_with_another_state_while_work_goes_on(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await put(trio, 5)
        victim = await follower_of(trio)
        asked = next(name for name in trio.nodes if name != victim)
        request = v1.VerifyRequest(linearizable=True)
        async with Load(trio) as load:
            await load.more(5)
            good = await trio.stubs[asked].admin.Verify(request, timeout=20)
            assert len({node.state_digest for node in good.nodes}) == 1
            assert good.ok
            assert good.state_index > 0
            machine: Any = trio.nodes[victim].consensus.machine
            machine._state.namespaces["resourcelease"].enqueued += 1
            await load.more(5)
            told = await trio.stubs[asked].admin.Verify(request, timeout=20)
        assert not told.ok
        problems = [problem for node in told.nodes for problem in node.problems]
        assert f"{victim}: its state at index {told.state_index} differs from the majority's" in problems

    run(scenario())


def test_a_node_that_was_removed_does_not_come_back(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await put(trio, 5)
        victim = await follower_of(trio)
        await trio.stop(victim)
        await trio.nodes[await trio.leader()].consensus.remove_member(victim)
        with pytest.raises(CannotRebuild, match="was removed"):
            await rebuilding(trio, victim)

    run(scenario())


def test_a_node_that_is_alone_has_nobody_to_ask(solo: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await solo.start_all()
        await put(solo, 5)
        await solo.stop("n1")
        with pytest.raises(CannotRebuild, match="the only one"):
            await rebuilding(solo, "n1")
        # Its disk is what it was.
        await solo.start("n1")

    run(scenario())


def test_a_node_that_goes_on_to_differ_stays_out(tmp_path: Path, run: Runner) -> None:
    config = load(None, {}, {"node.id": "n1", "node.dir": tmp_path, "cluster.id": "test"})
    now = time.time_ns() // 1_000_000
    for ago_ms in (2 * 86_400_000, 3_000, 2_000, 1_000):
        note_rebuilt(tmp_path, Rebuilt(now - ago_ms, 7, 1, "d", "n2", "a broken memory", "put-aside/1"))

    async def scenario() -> None:
        with pytest.raises(CannotRebuild, match=r"3 times within a day.*a broken memory"):
            await rebuild(config, QUICK, WRONG)

    run(scenario())


def test_what_was_put_aside_is_bounded_and_so_is_the_record(tmp_path: Path) -> None:
    data = tmp_path / "data.mdb"
    data.write_bytes(b"rows")
    places = []
    for number in range(4):
        places.append(put_aside(tmp_path, data, f"reason {number}"))
        time.sleep(0.002)
    assert [place.exists() for place in places] == [False, False, True, True]
    data.unlink()
    assert (places[-1] / "data.mdb").read_bytes() == b"rows"
    for number in range(12):
        note_rebuilt(tmp_path, Rebuilt(number, 7, 1, "d", "n2", "r", "a"))
    assert [each.at_ms for each in rebuilds_of(tmp_path)] == list(range(2, 12))


def test_a_mark_that_cannot_be_read_is_a_mark(tmp_path: Path) -> None:
    assert read_mark(tmp_path) is None
    (tmp_path / "taken-out.json").write_text("{")
    mark = read_mark(tmp_path)
    assert mark is not None
    assert mark.history


def test_rows_that_come_out_of_order_are_refused(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        victim = await follower_of(trio)
        await trio.stop(victim)
        store = opened(trio, victim)
        intake = store.take_in()
        intake.add([(b"b", b"1"), (b"c", b"1")])
        with pytest.raises(Exception, match="order of their keys"):
            intake.add([(b"a", b"1")])
        assert [key for key, _ in intake.rows()] == [b"b", b"c"]
        intake.abandon()
        store.write(WriteBatch()).result()
        store.close()
        await trio.start(victim)

    run(scenario())
