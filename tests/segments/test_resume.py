"""A node that starts again goes on where its files end, and a file always says what it lacks."""

import logging
import os
from pathlib import Path

import pytest

from resourcelease.machine import Machine, fold
from resourcelease.model import limits
from resourcelease.storage import WrongIdentity
from resourcelease.storage.segments import (
    Damage,
    HistoryGone,
    HistoryMissing,
    Log,
    Owner,
    Query,
    SegmentFile,
    SegmentsDiverged,
    SegmentsStopped,
    SegmentWriter,
    segment_paths,
    tail,
    verify,
)
from resourcelease.storage.segments.resume import find_ending

from .work import OWNER, Work, again, encoded, feed, resume, write


@pytest.fixture(scope="module")
def work() -> Work:
    patch = pytest.MonkeyPatch()
    patch.setattr(limits, "SEGMENT_BYTES", 3_000)
    work = Work(11)
    work.run(70)
    work.finish()
    patch.undo()
    return work


def loaded(machine: Machine) -> Machine:
    """The machine of a node that starts from its rows."""
    return Machine.load_rows(machine.dump_rows())


def check_all(directory: Path, work: Work) -> None:
    assert encoded(Log(directory).records()) == encoded(work.records)
    assert fold("c1", Log(directory).records()).digest() == work.machine.digest()
    report = verify(directory, owner=OWNER, through=work.machine.sequence_number)
    assert report.ok, report.problems
    assert not report.notes


@pytest.mark.parametrize("back", [0, 1, 7, 30, 200])
def test_a_restart_at_any_entry(tmp_path: Path, work: Work, back: int) -> None:
    """Stops after so many entries; the rows stand for some entries before, and these come again."""
    for stop in range(0, len(work.steps), 6):
        directory = tmp_path / str(stop)
        writer = resume(directory, Machine("c1"))
        feed(writer, work.steps[:stop])
        writer.close()
        rows_at = max(0, stop - back)
        writer = resume(directory, loaded(again(work, rows_at)) if rows_at else Machine("c1"))
        assert writer.durable_index == (work.steps[rows_at - 1].index if rows_at else 0)
        feed(writer, work.steps[rows_at:])
        assert writer.durable_index == work.steps[-1].index
        writer.close()
        check_all(directory, work)


def test_a_tail_torn_at_every_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the open file and of one that was sealed: what is whole stays, and what is not goes."""
    monkeypatch.setattr(limits, "SEGMENT_BYTES", 900)
    work = Work(12)
    work.run(30)
    write(tmp_path / "whole", work.finish())
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    # What is cut is logged, and here that is thousands of times.
    monkeypatch.setattr(tail, "logger", logging.Logger("nobody"))
    paths = segment_paths(tmp_path / "whole")
    for path in (paths[-2][1], paths[-1][1]):
        with SegmentFile(path) as file:
            frames = {frame.end: frame.meta.span.last for frame in file.scan()}
            start = file.start
        content = path.read_bytes()
        directory = tmp_path / path.stem
        directory.mkdir()
        for _, other in paths:
            if other < path:
                (directory / other.name).hardlink_to(other)
        (directory / path.name).write_bytes(content)
        for cut in reversed(range(len(content))):
            # Added to or cut in place, as to write a file anew takes a disk much longer.
            with (directory / path.name).open("ab") as there:
                there.truncate(min(there.tell(), cut))
                there.write(content[min(there.tell(), cut) : cut])
            ending = find_ending(directory, OWNER)
            assert ending is not None
            end = max((end for end in frames if end <= cut), default=0)
            if not end:
                assert ending.last == int(path.stem) - 1
                assert not (directory / path.name).exists()
                continue
            assert ending.tail is not None
            ending.tail.close()
            assert (ending.last, end > start) == (frames[end], True)
            assert (directory / path.name).read_bytes() == content[:end]


def test_what_was_torn_off_is_derived_again(tmp_path: Path, work: Work) -> None:
    write(tmp_path / "whole", work)
    paths = segment_paths(tmp_path / "whole")
    for path in (paths[-2][1], paths[-1][1]):
        size = path.stat().st_size
        for cut in (0, 1, 50, 200, size // 3, size // 2, size - 300, size - 30, size - 1):
            directory = tmp_path / f"{path.stem}-{cut}"
            directory.mkdir()
            for _, other in paths:
                if other < path:
                    (directory / other.name).hardlink_to(other)
            (directory / path.name).write_bytes(path.read_bytes()[:cut])
            # Before anybody cuts anything, readers see what is whole and no more.
            seen = encoded(Log(directory).records())
            assert seen == encoded(work.records)[: len(seen)]
            assert verify(directory).ok
            writer = resume(directory, Machine("c1"))
            feed(writer, work.steps)
            writer.close()
            check_all(directory, work)


@pytest.mark.parametrize("garbage", [b"\0" * 5000, b"RLSF" + b"x" * 300, b"\xff" * 24])
def test_what_a_power_cut_left_behind_the_last_frame(tmp_path: Path, work: Work, garbage: bytes) -> None:
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps[:40])
    writer.close()
    _, path = segment_paths(tmp_path)[-1]
    with path.open("ab") as file:
        file.write(garbage)
    writer = resume(tmp_path, loaded(again(work, 35)))
    feed(writer, work.steps[35:])
    writer.close()
    check_all(tmp_path, work)


def test_the_end_of_a_segment_is_made_up_for(tmp_path: Path, work: Work) -> None:
    """The machine has ended the segment and its rows say so; the node died before the file was sealed."""
    ends = [place + 1 for place, step in enumerate(work.steps) if step.applied.sealed]
    write(tmp_path, work)
    _, path = segment_paths(tmp_path)[1]
    whole = path.read_bytes()
    for _, later in segment_paths(tmp_path)[2:]:
        later.unlink()
    for cut in (1, 30, 100):
        path.write_bytes(whole[:-cut])
        writer = resume(tmp_path, loaded(again(work, ends[1])))
        writer.close()
        assert path.read_bytes() == whole
    # The same when the last entry comes again.
    path.write_bytes(whole[:-1])
    writer = resume(tmp_path, loaded(again(work, ends[1] - 1)))
    feed(writer, work.steps[ends[1] - 1 :])
    writer.close()
    check_all(tmp_path, work)


def test_a_node_that_joins_has_its_segment_from_the_middle_on(tmp_path: Path, work: Work) -> None:
    write(tmp_path / "theirs", work)
    ends = [place + 1 for place, step in enumerate(work.steps) if step.applied.sealed]
    # A snapshot of the middle of the second segment.
    at = next(place for place in range(ends[0] + 1, ends[1]) if work.steps[place - 1].records)
    machine = loaded(again(work, at))
    writer = resume(tmp_path / "ours", machine)
    feed(writer, work.steps[at:])
    writer.close()
    files = Log(tmp_path / "ours").segments()
    first = machine.sequence_number + 1
    assert files[0].header.first == first
    assert files[0].header.segment_first == machine.segment().first_sequence < first
    assert files[0].header.partial
    assert files[0].path.name == f"{first:020d}.rlseg"
    ours, theirs = verify(tmp_path / "ours"), verify(tmp_path / "theirs")
    assert ours.ok
    assert "from the middle on" in ours.notes[0]
    # What is there chains up to the same digests.
    assert ours.files[0].digest == theirs.files[1].digest
    assert ours.digests == {first: digest for first, digest in theirs.digests.items() if first > files[0].last}
    assert ours.digests
    with pytest.raises(HistoryGone) as gone:
        list(Log(tmp_path / "ours").records(Query(first=1)))
    assert gone.value.first == first


def test_a_node_that_joins_at_the_end_of_a_segment(tmp_path: Path, work: Work) -> None:
    end = next(place + 1 for place, step in enumerate(work.steps) if step.applied.sealed)
    writer = resume(tmp_path, loaded(again(work, end)))
    feed(writer, work.steps[end:])
    writer.close()
    assert all(file.whole for file in verify(tmp_path).files if file.sealed)


@pytest.mark.parametrize("restarted", [True, False])
@pytest.mark.parametrize("after", [20, 45])
def test_a_snapshot_leaves_a_gap_that_is_named(tmp_path: Path, work: Work, after: int, restarted: bool) -> None:
    """The node fell behind, and was sent a snapshot: while it ran, or just before it died."""
    at = len(work.steps) - 20
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps[:after])
    if restarted:
        writer.close()
        writer = resume(tmp_path, loaded(again(work, at)))
    else:
        writer.restart(loaded(again(work, at)))
    feed(writer, work.steps[at:])
    assert writer.durable_index == work.steps[-1].index
    writer.close()
    before, behind = again(work, after).sequence_number, again(work, at).sequence_number
    report = verify(tmp_path)
    assert [problem.kind for problem in report.problems] == [Damage.MISSING]
    assert f"events {before + 1} to {behind} are missing" in report.problems[0].reason
    with pytest.raises(HistoryMissing) as missing:
        list(Log(tmp_path).records())
    assert (missing.value.first, missing.value.last) == (before + 1, behind)
    with pytest.raises(HistoryMissing):
        list(Log(tmp_path).records(Query(first=before + 1)))
    expected = [record for record in work.records if record.sequence > behind]
    assert encoded(Log(tmp_path).records(Query(first=behind + 1))) == encoded(expected)


def test_a_log_that_is_ahead_of_the_journal(tmp_path: Path, work: Work) -> None:
    """What was applied was committed, and may have reached this disk before the journal's own copy did."""
    write(tmp_path, work)
    writer = resume(tmp_path, loaded(again(work, 10)))
    feed(writer, work.steps[10:30])
    writer.close()
    check_all(tmp_path, work)


def test_two_histories_are_not_mixed(tmp_path: Path, work: Work) -> None:
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps[:40])
    writer.close()
    other = Work(99)
    while other.machine.sequence_number < again(work, 40).sequence_number:
        other.step()
    # The rows are another history's, as far as the files go, or what is applied is.
    writer = resume(tmp_path, Machine("c1"))
    with pytest.raises(SegmentsStopped, match=r"different histories|the log ends with"):
        feed(writer, other.steps)
    writer.close()
    before = again(work, 40)
    before._state.chain = bytes(32)
    with pytest.raises(SegmentsDiverged, match="different histories up to event"):
        resume(tmp_path, before)


@pytest.mark.parametrize("owner", [Owner("c2", "n1"), Owner("c1", "n2"), Owner("c1", "n1", "eu")])
def test_another_nodes_directory(tmp_path: Path, work: Work, owner: Owner) -> None:
    write(tmp_path, work)
    with pytest.raises(WrongIdentity, match="holds the log of node n1 of cluster c1"):
        SegmentWriter.resume(tmp_path, Machine("c1"), owner)
    if owner.node_id == "n1":
        (tmp_path / "register.json").unlink()
        with pytest.raises(WrongIdentity, match="do not mix directories"):
            SegmentWriter.resume(tmp_path, Machine("c1"), owner)


def test_a_damaged_header_of_the_open_file_is_put_aside(tmp_path: Path, work: Work) -> None:
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps[:40])
    writer.close()
    _, path = segment_paths(tmp_path)[-1]
    damaged = bytearray(path.read_bytes())
    damaged[30] ^= 1
    path.write_bytes(damaged)
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps)
    writer.close()
    check_all(tmp_path, work)
    assert path.with_name(path.name + ".damaged").read_bytes() == damaged
