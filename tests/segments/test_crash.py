"""A process killed with -9 between any two steps leaves a log that is a prefix of the history, and that goes on."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resourcelease.machine import Machine
from resourcelease.model import limits
from resourcelease.storage.segments import SEGMENT_POINTS, Log, Query, Register, segment_paths, verify

from . import crash_child
from .conftest import SEGMENT_BYTES
from .crash_child import RETENTION, the_work
from .work import OWNER, Work, again, encoded, feed, resume, write

WRITING = [(point, nth) for point in SEGMENT_POINTS if point.startswith("segment.") for nth in (1, 2)]
RESUMING = [("resume.cut", 1)]
RETIRING = [(point, 1) for point in SEGMENT_POINTS if point.startswith("retention.")]
INSTALLING = [(point, 1) for point in SEGMENT_POINTS if point.startswith("install.")]


def test_no_point_is_left_out() -> None:
    assert {point for point, _ in WRITING + RESUMING + RETIRING + INSTALLING} == set(SEGMENT_POINTS)


@pytest.fixture(scope="module")
def work() -> Work:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SEGMENT_BYTES", SEGMENT_BYTES)
        return the_work()


def run(scenario: str, directory: Path, point: str, nth: int) -> list[str]:
    """Runs the child until it dies at the point; what it said."""
    command = [sys.executable, "-m", crash_child.__name__, scenario, str(directory), point, str(nth)]
    top = Path(__file__).parents[crash_child.__name__.count(".")]
    done = subprocess.run(command, cwd=top, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL, f"{point} was not reached a time {nth}:\n{done.stderr}"
    return done.stdout.split()


@pytest.mark.parametrize(("point", "nth"), WRITING)
def test_killed_while_writing(tmp_path: Path, work: Work, point: str, nth: int) -> None:
    said = run("writing", tmp_path, point, nth)
    told = int(said[-1]) if said else 0
    seen = encoded(Log(tmp_path).records())
    # Whole entries, all that were told to be durable among them, and nothing else.
    prefixes = [
        (step.index, encoded(record for step in work.steps[: place + 1] for record in step.records))
        for place, step in enumerate(work.steps)
    ]
    assert seen in [records for index, records in [(0, []), *prefixes] if index >= told]
    assert verify(tmp_path).ok
    # Rows never stand for more than what is told to be durable, so the machine begins there or before.
    at = sum(step.index <= told for step in work.steps)
    for rows_at in {at // 2, at}:
        machine = again(work, rows_at)
        writer = resume(tmp_path, machine)
        feed(writer, work.steps[rows_at:])
        writer.close()
        assert encoded(Log(tmp_path).records()) == encoded(work.records)
        report = verify(tmp_path)
        assert report.ok
        assert not report.notes


def test_killed_while_a_torn_tail_is_cut(tmp_path: Path, work: Work) -> None:
    write(tmp_path, work)
    _, path = segment_paths(tmp_path)[-1]
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    run("resuming", tmp_path, "resume.cut", 1)
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps)
    writer.close()
    assert path.read_bytes() == content


@pytest.mark.parametrize(("point", "nth"), RETIRING)
def test_killed_while_history_is_retired(tmp_path: Path, work: Work, point: str, nth: int) -> None:
    run("retiring", tmp_path, point, nth)
    register = Register.read(tmp_path)
    assert register is not None
    assert register.retired
    writer = resume(tmp_path, Machine("c1"), retention=RETENTION)
    feed(writer, work.steps)
    writer.close()
    register = Register.read(tmp_path)
    assert register is not None
    first = Log(tmp_path).first_sequence
    assert 1 < first <= register.retired + 1
    report = verify(tmp_path)
    assert report.ok
    assert not report.notes
    wanted = Query(first=register.retired + 1)
    assert encoded(Log(tmp_path).records(wanted)) == encoded(r for r in work.records if r.sequence >= wanted.first)


@pytest.mark.parametrize(("point", "nth"), INSTALLING)
def test_killed_while_a_segment_is_installed(tmp_path: Path, work: Work, point: str, nth: int) -> None:
    write(tmp_path / "theirs", work)
    ends = [place + 1 for place, step in enumerate(work.steps) if step.applied.sealed]
    at = next(place for place in range(ends[0] + 1, ends[1]) if work.steps[place - 1].records)
    joined = again(work, at)
    writer = resume(tmp_path / "ours", joined)
    feed(writer, work.steps[at:])
    writer.close()
    partial = joined.sequence_number + 1
    said = run("installing", tmp_path / "ours", point, nth)
    assert not said
    installed = point != "install.drafted"
    first = work.steps[ends[0] - 1].records[-1].sequence + work.steps[ends[0] - 1].records[-1].count
    names = [name for name, _ in segment_paths(tmp_path / "ours")][:2]
    assert (first in names) == installed
    assert (partial in names) == (point != "install.cleared")
    assert verify(tmp_path / "ours").ok
    wanted = Query(first=first if installed else partial)
    expected = encoded(record for record in work.records if record.sequence >= wanted.first)
    assert encoded(Log(tmp_path / "ours").records(wanted)) == expected
    resume(tmp_path / "ours", work.machine).close()
    assert not [path for path in (tmp_path / "ours").iterdir() if path.name.endswith(".incoming")]
    assert Register.open(tmp_path / "ours", OWNER).owner == OWNER
