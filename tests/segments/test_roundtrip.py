"""What is written is read again: whole, in part, on every node alike, whatever the files are made like."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resourcelease.machine import Machine, fold
from resourcelease.machine.pages import read_page
from resourcelease.model.eventdata import DrainData, EventType, ItemsData, RestoreData
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns
from resourcelease.storage.segments import (
    HistoryGone,
    Log,
    Query,
    Register,
    SegmentFile,
    log_directory,
    segment_paths,
    verify,
)

from .work import OWNER, Work, encoded, feed, resume, write

seeds = st.integers(0, 1 << 30)
EVENT_TYPES = st.lists(st.sampled_from(list(EventType)), max_size=3)


@settings(max_examples=20, deadline=None)
@given(
    seed=seeds,
    steps=st.integers(1, 60),
    compression=st.sampled_from(["none", "zlib"]),
    frame_bytes=st.sampled_from([1, 500, 1 << 20]),
)
def test_the_files_fold_into_the_live_machine(seed: int, steps: int, compression: str, frame_bytes: int) -> None:
    work = Work(seed)
    work.run(steps)
    work.finish()
    with TemporaryDirectory() as directory:
        write(Path(directory), work, compression=compression, frame_bytes=frame_bytes)
        log = Log(Path(directory))
        assert encoded(log.records()) == encoded(work.records)
        assert fold("c1", log.records()).digest() == work.machine.digest()
        assert (log.first_sequence, log.last_sequence) == (1, work.machine.sequence_number)
        report = verify(Path(directory), through=work.machine.sequence_number)
        assert report.ok
        assert not report.notes
        assert report.events == work.machine.sequence_number


@settings(max_examples=20, deadline=None)
@given(
    seed=seeds,
    bounds=st.tuples(st.integers(0, 300), st.integers(0, 300)),
    types=EVENT_TYPES,
    namespaces=st.none() | st.lists(st.sampled_from(["resourcelease", "billing", "nobody's"])),
    times=st.none() | st.tuples(st.integers(0, 700_000), st.integers(0, 400_000)),
)
def test_a_query_gives_what_a_look_at_everything_gives(
    seed: int,
    bounds: tuple[int, int],
    types: list[EventType],
    namespaces: list[str] | None,
    times: tuple[int, int] | None,
) -> None:
    work = Work(seed)
    work.run(50)
    first, last = bounds
    start = work.records[0].wall_ms if work.records else 0
    from_ms, until_ms = (0, -1) if times is None else (start + times[0], start + times[0] + times[1])
    query = Query.of(first=first, last=last, types=types, namespaces=namespaces, from_ms=from_ms, until_ms=until_ms)
    expected = [
        event
        for record in work.records
        for event in record.events()
        if event.sequence_number >= first
        and (not last or event.sequence_number <= last)
        and (not types or event.type in types)
        and (namespaces is None or event.namespace in namespaces)
        and event.occurred_at_ms >= from_ms
        and (until_ms < 0 or event.occurred_at_ms <= until_ms)
    ]
    with TemporaryDirectory() as directory:
        write(Path(directory), work)
        assert list(Log(Path(directory)).events(query)) == expected


def test_what_is_not_wanted_is_not_read(tmp_path: Path) -> None:
    work = Work(1)
    work.run(80)
    write(tmp_path, work)
    every = [frame.offset for frame in Log(tmp_path).frames()]
    some = Query.of(types=[EventType.COMPLETED])
    found = list(Log(tmp_path).frames(some))
    assert found
    assert len(found) < len(every) / 2
    late = list(Log(tmp_path).frames(Query(first=work.machine.sequence_number)))
    assert len(late) == 1


@settings(max_examples=10, deadline=None)
@given(seed=seeds)
def test_nodes_that_differ_in_everything_else_agree_on_digests(seed: int) -> None:
    work = Work(seed)
    work.run(60)
    reports = []
    with TemporaryDirectory() as directory:
        nodes: list[dict[str, Any]] = [
            {},
            {"compression": "zlib", "frame_bytes": 1},
            {"bodies": False, "frame_bytes": 1 << 20},
        ]
        for number, options in enumerate(nodes):
            path = Path(directory) / str(number)
            writer = resume(path, Machine("c1"), **options)
            # Each is handed its entries in batches of its own.
            for start in range(0, len(work.steps), 1 + number * 7):
                feed(writer, work.steps[start : start + 1 + number * 7])
            writer.close()
            reports.append(verify(path))
    assert all(report.ok for report in reports)
    assert reports[0].digests == reports[1].digests == reports[2].digests
    assert [file.digest for file in reports[0].files] == [file.digest for file in reports[2].files]
    assert reports[0].files[-1].digest == work.machine.chain()


def test_segments_end_where_the_machine_says(tmp_path: Path) -> None:
    work = Work(2)
    work.run(80)
    write(tmp_path, work)
    ends = [step.records[-1].sequence + step.records[-1].count - 1 for step in work.steps if step.applied.sealed]
    chains = [step.applied.chain for step in work.steps if step.applied.sealed]
    files = Log(tmp_path).segments()
    sealed = [file for file in files if file.footer is not None]
    assert [file.last for file in sealed] == ends
    assert [file.footer.digest for file in sealed if file.footer] == chains
    assert [file.header.chain for file in files[1:]] == chains[: len(files) - 1]
    assert work.machine.segment().first_sequence == ends[-1] + 1


def test_a_footer_counts_what_is_there(tmp_path: Path) -> None:
    work = Work(3)
    work.run(60)
    write(tmp_path, work)
    for file in Log(tmp_path).segments():
        if file.footer is None:
            continue
        span = file.footer.span
        events = list(Log(tmp_path).events(Query(span.first, span.last)))
        assert len(events) == span.last - span.first + 1
        counts = {
            (event.namespace, int(event.type)): sum(
                (other.namespace, other.type) == (event.namespace, event.type) for other in events
            )
            for event in events
        }
        assert {(name, number): size for name, by in span.counts.items() for number, size in by.items()} == counts
        assert span.least_wall_ms == min(event.occurred_at_ms for event in events)
        assert span.most_wall_ms == max(event.occurred_at_ms for event in events)
        assert span.first_clock_ms == events[0].lease_clock_ms
        assert span.last_entry == events[-1].raft_index


def test_bodies_left_out_leave_everything_else(tmp_path: Path) -> None:
    work = Work(4)
    while {type(record.data) for record in work.records} < {ItemsData, DrainData, RestoreData}:
        work.run(50)
    write(tmp_path / "with", work)
    write(tmp_path / "without", work, bodies=False)
    for path in (tmp_path / "without").iterdir():
        assert b"the same again" not in path.read_bytes()
    bodies = 0
    for full, bare in zip(Log(tmp_path / "with").records(), Log(tmp_path / "without").records(), strict=True):
        for one, other in zip(full.events(), bare.events(), strict=True):
            bodies += bool(one.payload and one.payload.body)
            payload = one.payload and one.payload._replace(body=None)
            assert one._replace(payload=payload) == other
        if isinstance(full.data, (DrainData, RestoreData)) and full.data.page:
            assert isinstance(bare.data, (DrainData, RestoreData))
            one_page, other_page = read_page(full.data.page), read_page(bare.data.page)
            assert not isinstance(one_page, str)
            assert not isinstance(other_page, str)
            assert other_page.rows == [(*row[:5], None, *row[6:]) for row in one_page.rows]
            assert other_page._replace(rows=[], histories=[]) == one_page._replace(rows=[], histories=[])
            histories = [[h and h.packed() for h in page.histories] for page in (one_page, other_page)]
            assert histories[0] == histories[1]
        if isinstance(bare.data, ItemsData):
            assert ItemColumns.unpacked(bare.data.columns).body is None
    assert bodies
    report = verify(tmp_path / "without")
    assert report.ok
    assert not any(file.recomputed for file in report.files)
    assert "could not be recomputed" in report.notes[0]


def test_a_log_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    work = Work(5)
    writer = resume(tmp_path, Machine("c1"))
    log, seen = Log(tmp_path), list[Record]()
    for _ in range(60):
        feed(writer, [work.step()])
        following = Query(first=1 + sum(record.count for record in seen))
        seen += list(log.records(following))
        assert encoded(seen) == encoded(work.records)
        assert log.last_sequence == work.machine.sequence_number
    writer.close()


def test_an_iterator_goes_on_into_files_that_were_made_since(tmp_path: Path) -> None:
    work = Work(6)
    writer = resume(tmp_path, Machine("c1"))
    while not work.records:
        feed(writer, [work.step()])
    records = Log(tmp_path).records()
    seen = [next(records)]
    feed(writer, work.run(60))
    assert len(segment_paths(tmp_path)) > 2
    seen += records
    assert encoded(seen) == encoded(work.records)
    writer.close()


def test_an_empty_log(tmp_path: Path) -> None:
    assert (Log(tmp_path).first_sequence, Log(tmp_path).last_sequence) == (0, 0)
    assert list(Log(tmp_path).records()) == list(Log(tmp_path).records(Query(first=1))) == []
    with pytest.raises(HistoryGone, match="event 5 is not kept"):
        list(Log(tmp_path).records(Query(first=5)))
    assert verify(tmp_path).ok


def test_a_file_by_itself(tmp_path: Path) -> None:
    work = Work(7)
    work.run(60)
    write(tmp_path, work)
    _, path = segment_paths(tmp_path)[1]
    with SegmentFile(path) as file:
        assert file.whole
        assert file.footer is not None
        span = file.footer.span
        assert encoded(file.records()) == encoded(Log(tmp_path).records(Query(span.first, span.last)))
    file.close()


@pytest.mark.parametrize("place", [".", "segments", "data/segments"])
def test_a_log_is_found_in_the_directory_of_a_node_and_around_it(tmp_path: Path, place: str) -> None:
    assert log_directory(tmp_path / "nowhere") is None
    there = tmp_path / place
    there.mkdir(parents=True, exist_ok=True)
    # By its name it is one from the beginning.
    assert log_directory(tmp_path) == (None if place == "." else there)
    Register.open(there, OWNER)
    assert log_directory(tmp_path) == log_directory(there) == there
    (there / "register.json").rename(there / "00000000000000000001.rlseg")
    assert log_directory(tmp_path) == there
