"""Sinks: each event once, in order, across crashes, retries and changes of writer."""

import asyncio
import gzip
import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from frontdoor.cluster_fixture import Cluster, Runner, until

from resourcelease import Client, v1
from resourcelease.cli import main
from resourcelease.events.object_sink import ObjectSink
from resourcelease.events.runner import Runner as Export
from resourcelease.events.sink import Checkpoint, GapRefused, Sink, SinkError, StaleWriter, WrongSource
from resourcelease.events.sqlite_sink import SqliteSink

from .load import put

Made = Callable[[], Sink]


def events(first: int, last: int) -> list[v1.Event]:
    return [
        v1.Event(
            sequence_number=number,
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
    assert sink.apply(events(1, 10), 3) == (10, 3)
    assert sink.apply(events(5, 12), 3) == (12, 3)
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
    assert old.open("c1", 1) == (101, 7)
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
    """The command, as two processes would run it."""
    from resourcelease.cli.export import _source, _under_lease
    from resourcelease.cli.output import Output
    from resourcelease.cli.session import Session

    path = tmp_path / "copy.db"

    async def exporter(name: str, exports: list[Export]) -> None:
        async with Client([node.grpc_address for node in trio.nodes.values()], peer_id=name) as client:
            export = Export(_source(client, False), SqliteSink(path), "test", gather_s=0.05)
            exports.append(export)
            try:
                await _under_lease(Session(client, Output(as_json=True)), export, "resourcelease.system.x", 0)
            finally:
                await export.close()

    async def scenario() -> None:
        await put(trio, 40)
        exports: list[Export] = []
        first = asyncio.ensure_future(exporter("e1", exports))
        await until(lambda: bool(exports) and exports[0].counters.position >= 80)
        second = asyncio.ensure_future(exporter("e2", exports))
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
    victim = sorted((directory / "segments").glob("*.rlseg"))[1]
    victim.write_bytes(victim.read_bytes()[:-40])
    assert main(["verify", str(directory), "--json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["path"] == str(victim)
    assert main(["verify", str(directory / "nowhere")]) == 2
    assert main(["verify", str(directory.parent)]) == 1
