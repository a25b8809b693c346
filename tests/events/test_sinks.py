"""Sinks: each event once, in order, across crashes, retries and changes of writer."""

import asyncio
import gzip
import json
import os
import sqlite3
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from frontdoor.cluster_fixture import Cluster, Runner, until

from resourcelease import Client, v1
from resourcelease.cli import main
from resourcelease.events.object_sink import ObjectSink
from resourcelease.events.runner import Runner as Export
from resourcelease.events.sink import Checkpoint, GapRefused, Mark, NotKept, Sink, SinkError, StaleWriter, WrongSource
from resourcelease.events.sqlite_sink import SqliteSink

from .load import put

Made = Callable[[], Sink]


def events(first: int, last: int, term: int = 1) -> list[v1.Event]:
    return [
        v1.Event(
            sequence_number=number,
            occurred_at=1_000 * number,
            raft_index=number,
            raft_term=term,
            type=v1.EventType.EVENT_TYPE_ENQUEUE,
            handle=v1.Handle(sequence_id=number, attempt=1),
            payload=v1.ItemPayload(resource_type="table", resource_id=f"r{number}", body=b"\x00b"),
            metadata={"k": "v"},
        )
        for number in range(first, last + 1)
    ]


@pytest.fixture(params=["sqlite", "folder", "memory"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Opens the same sink anew, as a process does that starts again."""
    if request.param == "sqlite":
        return lambda: SqliteSink(tmp_path / "events.db")
    url = f"file://{tmp_path}/copy" if request.param == "folder" else f"memory://{tmp_path}"
    return lambda: ObjectSink(url)


def numbers_in(sink: Any) -> list[int]:
    if isinstance(sink, SqliteSink):
        db = sqlite3.connect(sink.path)
        found = [number for (number,) in db.execute("SELECT sequence_number FROM events ORDER BY 1")]
        db.close()
        return found
    found = []
    for name in sorted(sink._fs.ls(f"{sink._root}/events", detail=False)):
        lines = gzip.decompress(sink._fs.cat_file(name)).splitlines()
        found += [int(json.loads(line)["sequence_number"]) for line in lines[1:]]
    return found


def test_duplicates_are_dropped_and_gaps_refused(made: Made) -> None:
    sink = made()
    assert sink.open("c1", 1) == Checkpoint(0, 0)
    assert sink.apply(events(1, 10), 3) == Checkpoint(10, 3)
    assert sink.apply(events(5, 12), 3) == Checkpoint(12, 3)
    assert sink.apply(events(1, 12), 4).position == 12
    with pytest.raises(GapRefused, match="events 13 to 13 are missing"):
        sink.apply(events(14, 15), 4)
    sink.close()
    sink = made()
    assert sink.open("c1", 1).position == 12
    sink.apply(events(10, 20), 5)
    assert numbers_in(sink) == list(range(1, 21))
    sink.close()


def test_an_older_fence_and_another_cluster_are_turned_away(made: Made) -> None:
    sink = made()
    sink.open("c1", 100)
    sink.apply(events(100, 101), 7)
    old = made()
    assert old.open("c1", 1) == (101, 7, Mark(101, 1, 101_000))
    with pytest.raises(StaleWriter):
        old.apply(events(102, 103), 6)
    # One that was open all the time is found out as well.
    newer = made()
    newer.open("c1", 1)
    newer.apply(events(102, 104), 8)
    with pytest.raises(StaleWriter):
        sink.apply(events(102, 103), 7)
    with pytest.raises(WrongSource, match="of cluster c1, not of c2"):
        made().open("c2", 1)
    assert numbers_in(sink) == [100, 101, 102, 103, 104]
    for each in (sink, old, newer):
        each.close()


def test_what_is_no_sink_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("a letter to somebody, long enough to be no database at all" * 3)
    with pytest.raises(WrongSource, match="is no SQLite database"):
        SqliteSink(tmp_path / "x.db").open("c1", 1)
    with pytest.raises(SinkError, match="nothing"):
        ObjectSink("nothing://x")
    sink = ObjectSink(f"file://{tmp_path}/copy")
    sink.open("c1", 1)
    sink.apply(events(1, 5), 1)
    (path,) = (tmp_path / "copy" / "events").glob("*.gz")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(SinkError, match="is damaged"):
        sink.open("c1", 1)


def test_an_empty_sink_begins_where_it_is_told_to_now(made: Made) -> None:
    for start in (1, 50, 20):
        sink = made()
        assert sink.open("c1", start) == Checkpoint(start - 1, 0)
        sink.close()
    sink = made()
    sink.open("c1", 20)
    sink.apply(events(20, 29), 1)
    sink.close()
    sink = made()
    assert sink.open("c1", 1) == Checkpoint(29, 1, Mark(29, 1, 29_000))
    assert numbers_in(sink) == list(range(20, 30))
    sink.close()


@pytest.mark.parametrize(("own", "other"), [(1, 100), (100, 1)])
def test_who_only_looks_does_not_change_where_the_copy_begins(made: Made, own: int, other: int) -> None:
    working, standby = made(), made()
    assert standby.open("c1", other) == Checkpoint(other - 1)
    assert working.open("c1", own) == Checkpoint(own - 1)
    assert standby.open("c1", other) == Checkpoint(other - 1)
    working.apply(events(own, own + 9), 7)
    working.apply(events(own + 10, own + 19), 7)
    assert standby.open("c1", other)[:2] == (own + 19, 7)
    standby.close()
    working.close()
    assert numbers_in(made()) == list(range(own, own + 20))


async def nothing(first: int) -> AsyncGenerator[v1.SubscribeResponse, None]:
    await asyncio.Event().wait()
    yield v1.SubscribeResponse()


@pytest.mark.parametrize("kind", ["no directory", "a directory", "below a file"])
def test_a_path_that_leads_nowhere_ends_the_run(run: Runner, tmp_path: Path, kind: str) -> None:
    (tmp_path / "file").write_text("")
    sinks: dict[str, Callable[[], Sink]] = {
        "no directory": lambda: SqliteSink(tmp_path / "nowhere" / "events.db"),
        "a directory": lambda: SqliteSink(tmp_path),
        "below a file": lambda: ObjectSink(f"file://{tmp_path}/file/copy"),
    }

    async def scenario() -> None:
        export = Export(nothing, sinks[kind](), "c1")
        with pytest.raises(SinkError, match=f"there is no place for the copy: .*{tmp_path}"):
            await export.check()
        with pytest.raises(SinkError, match="there is no place for the copy"):
            await export.run(1)
        assert export.counters.retries == 0
        await export.close()

    run(scenario())


@contextmanager
def without_rights(paths: Sequence[Path]) -> Iterator[None]:
    """Nobody may write there, for a while; not root either, for whom rights do not count."""
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize("kind", ["a database", "a database's directory", "a folder"])
def test_a_copy_that_nobody_may_write_to_is_refused(run: Runner, kind: str) -> None:
    # Not below the tests' own directory, which nobody else may enter.
    with TemporaryDirectory() as directory:
        place = Path(directory)
        place.chmod(0o777)

        def made() -> Sink:
            return ObjectSink(f"file://{place}/copy") if kind == "a folder" else SqliteSink(place / "events.db")

        sink = made()
        sink.open("c1", 1)
        sink.apply(events(1, 10), 7)
        sink.close()
        paths = sorted(place.rglob("*"))
        export = Export(nothing, made(), "c1")
        with (
            without_rights(paths if kind == "a database" else [place, *paths]),
            pytest.raises(SinkError, match=f"there is no place for the copy: .*{place}"),
        ):
            run(export.check())
        run(export.close())
        if kind == "a folder":
            assert sorted(place.rglob("*")) == paths


def test_a_place_that_goes_away_later_is_waited_for(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resourcelease.events.runner._WAIT_MIN_S", 0.001)

    class Leaving(SqliteSink):
        opened = 0

        def open(self, cluster_id: str, start: int) -> Checkpoint:
            self.opened += 1
            if self.opened == 2:
                raise FileNotFoundError("the disk is not mounted")
            return super().open(cluster_id, start)

        def apply(self, events: Sequence[v1.Event], fence: int) -> Checkpoint:
            if self.opened == 1:
                raise OSError("the disk is gone")
            return super().apply(events, fence)

    async def source(first: int) -> AsyncGenerator[v1.SubscribeResponse, None]:
        yield v1.SubscribeResponse(events=events(first, 5), next_sequence=6, head_sequence=5)
        await asyncio.Event().wait()

    async def scenario() -> None:
        export = Export(source, Leaving(tmp_path / "events.db"), "c1", gather_s=0.0)
        await export.run(1, until=5)
        assert export.counters.retries == 2
        await export.close()

    run(scenario())


def test_a_copy_of_a_history_that_is_lost_ends_the_run(made: Made, run: Runner) -> None:
    sink = made()
    sink.open("c1", 1)
    sink.apply(events(1, 50), 7)
    sink.close()
    last = [49]

    async def head() -> int:
        return last[0]

    async def whole(first: int) -> AsyncGenerator[v1.SubscribeResponse, None]:
        yield v1.SubscribeResponse(events=events(first, 50), next_sequence=51, head_sequence=50)
        await asyncio.Event().wait()

    async def scenario() -> None:
        export = Export(whole, made(), "c1", head=head)
        with pytest.raises(WrongSource, match="goes up to event 50, and the cluster's history ends with 49"):
            await export.check()
        with pytest.raises(WrongSource):
            await export.run(8)
        last[0] = 50
        await export.check()
        # One whose lease is older is told before it has read anything.
        with pytest.raises(StaleWriter):
            await export.run(6)
        await export.run(8, until=50)
        await export.close()

    run(scenario())


@pytest.mark.parametrize("kept", ["all", "from the next on", "from a later one on"])
def test_two_histories_are_not_mixed_when_the_new_one_has_grown(made: Made, run: Runner, kept: str) -> None:
    sink = made()
    sink.open("c1", 1)
    sink.apply(events(1, 10), 7)
    sink.close()
    oldest = {"all": 1, "from the next on": 11, "from a later one on": 12}[kept]
    asked = []

    async def source(first: int) -> AsyncGenerator[v1.SubscribeResponse, None]:
        asked.append(first)
        if first < oldest:
            raise NotKept(f"event {first} is not kept")
        yield v1.SubscribeResponse(next_sequence=first, head_sequence=20)
        yield v1.SubscribeResponse(events=events(first, 20, term=9), next_sequence=21, head_sequence=20)
        await asyncio.Event().wait()

    async def head() -> int:
        return 20

    async def scenario() -> None:
        export = Export(source, made(), "c1", head=head, gather_s=0.0)
        if kept == "all":
            with pytest.raises(WrongSource, match="event 10, the copy's last, is not that of the cluster"):
                await export.check()
            with pytest.raises(WrongSource, match="event 10, the copy's last"):
                await export.run(8)
            assert not export.opened.is_set()
        elif kept == "from the next on":
            # What could tell is gone; nothing speaks against the copy.
            await export.check()
            await export.run(8, until=20)
            assert asked == [10, 10, 11]
        else:
            with pytest.raises(NotKept, match="event 11 is not kept"):
                await export.run(8)
        await export.close()

    run(scenario())
    assert numbers_in(made()) == list(range(1, 21 if kept == "from the next on" else 11))


def test_a_copy_of_this_history_is_gone_on_with(made: Made, run: Runner) -> None:
    sink = made()
    sink.open("c1", 1)
    sink.apply(events(1, 10), 7)
    sink.close()

    async def source(first: int) -> AsyncGenerator[v1.SubscribeResponse, None]:
        yield v1.SubscribeResponse(events=events(first, 20), next_sequence=21, head_sequence=20)
        await asyncio.Event().wait()

    async def scenario() -> None:
        export = Export(source, made(), "c1", gather_s=0.0)
        await export.run(8, until=20)
        assert export.counters.events == 10
        await export.close()

    run(scenario())
    assert numbers_in(made()) == list(range(1, 21))


def test_where_a_copy_stood_before_the_lease_is_not_told_under_it(made: Made, run: Runner) -> None:
    sink = made()
    sink.open("c1", 1)
    sink.apply(events(1, 10), 7)

    async def source(first: int) -> AsyncGenerator[v1.SubscribeResponse, None]:
        yield v1.SubscribeResponse(events=events(first, 40), next_sequence=41, head_sequence=40)
        await asyncio.Event().wait()

    class Slow:
        """Does not open before it is told to."""

        def __init__(self) -> None:
            self.sink, self.may = made(), threading.Event()
            self.may.set()

        def open(self, cluster_id: str, start: int) -> Checkpoint:
            self.may.wait()
            return self.sink.open(cluster_id, start)

        def apply(self, events: Sequence[v1.Event], fence: int) -> Checkpoint:
            return self.sink.apply(events, fence)

        def close(self) -> None:
            self.sink.close()

    async def scenario() -> None:
        slow = Slow()
        export = Export(source, slow, "c1", gather_s=0.0)
        await export.check()
        assert export.counters.position == 10
        assert not export.opened.is_set()
        # Meanwhile another one works.
        for fence, end in ((8, 20), (10, 30)):
            sink.apply(events(end - 9, end), fence)
            slow.may.clear()
            running = asyncio.ensure_future(export.run(fence + 1, until=end))
            await asyncio.sleep(0)
            assert not export.opened.is_set()
            assert not export.counters.opened
            slow.may.set()
            await running
            assert export.opened.is_set()
            assert export.counters.position == end
        await export.close()

    run(scenario())
    sink.close()


class Flaky(SqliteSink):
    """Fails now and then, before it has kept a batch or after."""

    calls = 0

    def apply(self, events: Sequence[v1.Event], fence: int) -> Checkpoint:
        self.calls += 1
        if self.calls % 3 == 1:
            raise OSError("not now")
        told = super().apply(events, fence)
        if self.calls % 3 == 2:
            raise OSError("was that all?")
        return told


def test_the_runner_tries_again_and_copies_each_event_once(
    run: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("resourcelease.events.runner._WAIT_MIN_S", 0.001)

    async def source(first: int) -> AsyncGenerator[v1.SubscribeResponse, None]:
        for begin in range(first, 1000, 10):
            end = min(begin + 9, 1000)
            yield v1.SubscribeResponse(events=events(begin, end), next_sequence=end + 1, head_sequence=1000)
        await asyncio.Event().wait()

    async def scenario() -> None:
        export = Export(source, Flaky(tmp_path / "events.db"), "c1", gather_s=0.0, batch_events=50)
        await export.run(1, until=900)
        counters = export.counters
        assert counters.retries > 3
        assert counters.lag == 1000 - counters.position <= 100
        await export.close()
        assert numbers_in(SqliteSink(tmp_path / "events.db")) == list(range(1, counters.position + 1))

    run(scenario())


def test_exporters_take_turns_and_the_copy_goes_on(trio: Cluster, run: Runner, tmp_path: Path) -> None:
    """The command, as two processes would run it; by its default it has one name in both."""
    from resourcelease.cli.export import _source, _under_lease
    from resourcelease.cli.output import Output
    from resourcelease.cli.session import Session

    path = tmp_path / "copy.db"

    async def exporter(exports: list[Export]) -> None:
        async with Client([node.grpc_address for node in trio.nodes.values()], peer_id="cli-user@host") as client:
            export = Export(_source(client, False), SqliteSink(path), "test", gather_s=0.05)
            exports.append(export)
            try:
                await _under_lease(Session(client, Output(as_json=True)), export, "resourcelease.system.x", 0)
            finally:
                await export.close()

    async def scenario() -> None:
        await put(trio, 40)
        exports: list[Export] = []
        first = asyncio.ensure_future(exporter(exports))
        await until(lambda: bool(exports) and exports[0].counters.position >= 80)
        second = asyncio.ensure_future(exporter(exports))
        await put(trio, 40)
        await until(lambda: exports[0].counters.position >= 160)
        assert not exports[1].counters.batches
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await put(trio, 40)
        head = (await trio.stubs["n1"].admin.Status(v1.StatusRequest(), timeout=5)).last_sequence
        await until(lambda: exports[1].counters.position >= head, 15)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        found = numbers_in(SqliteSink(path))
        assert found == list(range(1, found[-1] + 1))
        db = sqlite3.connect(path)
        assert db.execute("SELECT count(*) FROM events WHERE type = 'ENQUEUE' AND resource_id = 'a'").fetchone() == (
            120,
        )
        db.close()

    run(scenario())


def test_verify_of_a_directory(solo: Cluster, run: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    async def scenario() -> None:
        await solo.start("n1")
        await put(solo, 120)
        await solo.stop("n1")

    run(scenario())
    directory = solo.directory / "n1"
    assert main(["verify", str(directory)]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    # What is asked for and is not there is no good news.
    assert main(["verify", str(directory), "--to", "100000"]) == 1
    told = capsys.readouterr().out
    assert "and is known to go to 100000" in told
    assert told.rstrip().endswith(": 1 problem")
    assert main(["verify", str(directory), "--from", "5", "--to", "100"]) == 0
    # What `resourcelease dev` keeps of a node has the directory inside.
    capsys.readouterr()
    (directory.parent / "dev").mkdir()
    (directory.parent / "dev" / "data").symlink_to(directory)
    assert main(["verify", str(directory.parent / "dev")]) == 0
    files = sorted((directory / "segments").glob("*.rlseg"))
    empty = directory.parent / "empty" / "segments"
    empty.mkdir(parents=True)
    (empty / "register.json").write_bytes((directory / "segments" / "register.json").read_bytes())
    capsys.readouterr()
    assert main(["verify", str(empty.parent)]) == 0
    assert main(["verify", str(empty.parent), "--to", "3"]) == 1
    assert "1 problem" in capsys.readouterr().out
    beginning = files[0].rename(directory / "beginning")
    assert main(["verify", str(directory), "--from", "1", "--to", "3"]) == 0
    assert f"what is here begins with event {int(files[1].stem)}" in capsys.readouterr().out
    beginning.rename(files[0])
    victim = sorted((directory / "segments").glob("*.rlseg"))[1]
    victim.write_bytes(victim.read_bytes()[:-40])
    assert main(["verify", str(directory), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["path"] == str(victim)
    assert main(["verify", str(directory / "nowhere")]) == 2
    assert main(["verify", str(directory.parent)]) == 1
