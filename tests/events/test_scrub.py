"""Files that nobody reads are read all the same: what is wrong is found, named, and mended from another node."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest
from frontdoor.cluster_fixture import Cluster, Runner, until

from resourcelease import v1
from resourcelease.events.exchange import Holding
from resourcelease.events.lacking import Stretch, lacking, outvoted, strangers
from resourcelease.events.scrub import Scrubber
from resourcelease.storage.segments import Owner, segment_paths, verify

from .load import put, segments_of


def files(cluster: Cluster, name: str) -> list[Path]:
    return [path for _, path in segment_paths(segments_of(cluster, name))]


def flip(path: Path, offset: int) -> None:
    sound = path.read_bytes()
    path.write_bytes(sound[:offset] + bytes([sound[offset] ^ 1]) + sound[offset + 1 :])


async def grown(cluster: Cluster, count: int = 120) -> None:
    await put(cluster, count)
    await until(lambda: all(len(files(cluster, name)) > 3 for name in cluster.nodes))


def test_a_flipped_byte_is_found_without_a_reader(trio: Cluster, run: Runner, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        await grown(trio)
        node = trio.nodes["n2"]
        victim = files(trio, "n2")[1]
        sound = verify(segments_of(trio, "n2")).digests
        flip(victim, 700)
        assert node.upkeep.scrubber is not None
        node.upkeep.scrubber.hurry()
        await until(lambda: node.upkeep.repair.mended == 1, 60)
        assert verify(segments_of(trio, "n2")).ok
        # What was sealed since is no matter.
        assert sound.items() <= verify(segments_of(trio, "n2")).digests.items()
        assert f"damage was found: {victim}" in caplog.text
        status = await trio.stubs["n2"].admin.Status(v1.StatusRequest(), timeout=10)
        assert (status.history.files_damaged, status.history.segments_mended) == (1, 1)

    run(scenario())


@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "all missing"])
def test_damage_from_while_a_node_was_down_is_mended_at_its_start(trio: Cluster, run: Runner, how: str) -> None:
    async def scenario() -> None:
        await grown(trio)
        await trio.stop("n2")
        damaged = files(trio, "n2")
        before = verify(segments_of(trio, "n2")).digests
        assert len(before) > 2
        victim = damaged[1]
        if how == "flipped":
            flip(victim, 700)
        elif how == "cut":
            victim.write_bytes(victim.read_bytes()[:-100])
        else:
            for path in damaged[:-1] if how == "all missing" else [victim]:
                path.unlink()
        assert how == "all missing" or not verify(segments_of(trio, "n2")).ok
        await trio.start("n2")
        await until(lambda: before.items() <= verify(segments_of(trio, "n2")).digests.items(), 60)
        assert verify(segments_of(trio, "n2")).ok

    run(scenario())


def test_a_file_of_another_cluster_is_put_aside(trio: Cluster, run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        await grown(trio)
        other = Cluster(tmp_path / "other", 1, {"cluster.id": "other", "events.flush_ms": 20})
        await other.start_all()
        await put(other, 120)
        await until(lambda: len(files(other, "n1")) > 3)
        stranger = files(other, "n1")[0]
        await other.stop_all()
        await trio.stop("n2")
        victim = files(trio, "n2")[0]
        sound = verify(segments_of(trio, "n2")).digests
        shutil.copyfile(stranger, victim)
        report = verify(segments_of(trio, "n2"))
        assert next((problem.path, problem.kind) for problem in report.problems) == (victim, "stranger")
        await trio.start("n2")
        await until(lambda: sound.items() <= verify(segments_of(trio, "n2")).digests.items(), 60)
        assert victim.with_name(victim.name + ".damaged").read_bytes() == stranger.read_bytes()
        assert trio.nodes["n2"].upkeep.repair.put_aside == 1
        assert verify(segments_of(trio, "n2")).ok

    run(scenario())


def test_a_directory_of_another_node_is_refused(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await grown(trio)
        await trio.stop("n2")
        await trio.stop("n3")
        ours, theirs = segments_of(trio, "n2"), segments_of(trio, "n3")
        ours.rename(ours.with_name("kept"))
        shutil.copytree(theirs, ours)
        with pytest.raises(Exception, match="holds the log of node n3 of cluster test"):
            await trio.start("n2")
        trio.nodes.pop("n2", None)

    run(scenario())


def holding(first: int, last: int, digest: bytes) -> Holding:
    return Holding(first, last, digest, 1, 1, bodiless=False)


def test_only_a_majority_of_all_members_outvotes_a_file() -> None:
    own = [holding(1, 9, b"a"), holding(10, 19, b"b")]
    other = [holding(1, 9, b"a"), holding(10, 19, b"x")]
    assert outvoted(own, [other, other], 3) == [10]
    assert outvoted(own, [other], 3) == []
    assert outvoted(own, [other, own], 3) == []
    assert outvoted(own, [other, other], 5) == []


def test_what_is_lacking_at_the_end_is_seen(tmp_path: Path) -> None:
    assert lacking(tmp_path, 4, through=9) == [Stretch(5, 9)]
    assert lacking(tmp_path, 9, through=9) == []
    assert strangers(tmp_path, Owner("c", "n")) == []


def test_a_scrubber_keeps_to_its_pace_and_ends_at_once(tmp_path: Path, trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await grown(trio)
        found: list[Path] = []
        scrubber = Scrubber(segments_of(trio, "n1"), found.append, bytes_per_s=1)
        scrubber.start()
        # At a byte a second it is still at its first frame, and need not be waited for.
        await asyncio.to_thread(scrubber.stop)
        assert scrubber.found.rounds == 0
        ended = threading.Event()
        scrubber = Scrubber(segments_of(trio, "n1"), found.append, ended.set)
        scrubber.start()
        assert await asyncio.to_thread(ended.wait, 20)
        await asyncio.to_thread(scrubber.stop)
        assert (scrubber.found.rounds, found) == (1, [])
        assert scrubber.found.files >= 3

    run(scenario())
