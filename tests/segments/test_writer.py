"""The writer beside the machine: what it tells, and what it does when the disk does not do its part."""

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from resourcelease.machine import Machine
from resourcelease.storage.segments import Log, LogState, SegmentsStopped, SegmentWriter, verify

from .work import Step, Work, encoded, feed, resume


@pytest.fixture
def work() -> Work:
    work = Work(61)
    work.run(50)
    return work.finish()


def append(writer: SegmentWriter, steps: list[Step]) -> None:
    for index, applied in steps:
        writer.append(index, applied.records, applied.chain, sealed=applied.sealed)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


def test_told_means_on_disk(tmp_path: Path, work: Work) -> None:
    writer = resume(tmp_path, Machine("c1"))
    told: list[int] = []
    writer.on_durable = told.append
    for place, step in enumerate(work.steps):
        feed(writer, [step])
        assert writer.durable_index == step.index
        expected = encoded(record for one in work.steps[: place + 1] for record in one.records)
        assert encoded(Log(tmp_path).records()) == expected
    assert told == sorted({step.index for step in work.steps})
    stats = writer.stats()
    assert (stats.state, stats.waiting_bytes) == (LogState.OPEN, 0)
    assert stats.events == stats.durable_sequence == work.machine.sequence_number
    assert stats.sealed == sum(step.applied.sealed for step in work.steps)
    writer.close()
    assert writer.stats().state is LogState.CLOSED
    with pytest.raises(SegmentsStopped, match="it was closed"):
        append(writer, work.steps[:1])


def test_what_waits_is_written_together(tmp_path: Path, work: Work) -> None:
    writer = resume(tmp_path, Machine("c1"), flush_s=30.0, frame_bytes=1 << 20)
    append(writer, work.steps)
    time.sleep(0.05)
    assert writer.durable_index == 0
    writer.hurry()
    wait_for(lambda: writer.durable_index == work.steps[-1].index)
    # A frame for each file that was ended, and one for the rest.
    assert writer.stats().frames <= writer.stats().sealed + 1
    writer.close()
    assert encoded(Log(tmp_path).records()) == encoded(work.records)


def test_an_entry_without_events_moves_on(tmp_path: Path) -> None:
    writer = resume(tmp_path, Machine("c1"))
    writer.append(7, [], b"", sealed=False)
    writer.flush().result()
    assert writer.durable_index == 7
    writer.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["register.json"]


def test_a_full_disk_is_waited_for(tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = resume(tmp_path, Machine("c1"), full_retry_s=0.005)
    full, pwritev = threading.Event(), os.pwritev

    def pwritev_or_not(fd: int, parts: Sequence[bytes], offset: int) -> int:
        if full.is_set():
            # A part still fits.
            if sum(map(len, parts)) > 50:
                return pwritev(fd, [b"".join(parts)[:50]], offset)
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwritev(fd, parts, offset)

    monkeypatch.setattr(os, "pwritev", pwritev_or_not)
    for start in range(0, len(work.steps), 10):
        full.set()
        append(writer, work.steps[start : start + 10])
        wait_for(lambda: writer.stats().state is LogState.FULL)
        assert "No space left" in writer.stats().reason
        assert verify(tmp_path).ok
        full.clear()
        writer.flush().result(timeout=10)
        assert writer.stats().state is LogState.OPEN
    writer.close()
    assert encoded(Log(tmp_path).records()) == encoded(work.records)
    assert verify(tmp_path).ok


@pytest.mark.parametrize("call", ["pwritev", "fdatasync"])
def test_an_error_stops_it(tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps[:20])
    told: list[BaseException] = []
    writer.on_failure = told.append

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, broken)
        append(writer, work.steps[20:30])
        with pytest.raises(SegmentsStopped, match="Input/output error"):
            writer.flush().result(timeout=10)
        wait_for(lambda: bool(told))
    assert writer.durable_index == work.steps[19].index
    assert writer.stats().state is LogState.STOPPED
    with pytest.raises(SegmentsStopped, match="Input/output error"):
        append(writer, work.steps[30:])
    writer.close()
    # It says so for good; the next start derives the rest again.
    assert writer.stats().state is LogState.STOPPED
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps)
    writer.close()
    assert encoded(Log(tmp_path).records()) == encoded(work.records)


def test_what_waits_is_bounded(tmp_path: Path, work: Work) -> None:
    writer = resume(tmp_path, Machine("c1"), flush_s=30.0, queue_bytes_full=1_000, queue_bytes_max=4_000)
    held = threading.Event()

    def hold() -> None:
        held.wait(30)

    writer._do(hold)
    assert writer.has_room
    told: list[BaseException] = []
    writer.on_failure = told.append
    with pytest.raises(SegmentsStopped, match="bytes of events wait for the disk"):
        append(writer, [*work.steps, *work.steps])
    assert not writer.has_room
    assert len(told) == 1
    held.set()
    writer.close()


def test_closing_on_a_full_disk(tmp_path: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = resume(tmp_path, Machine("c1"), full_retry_s=0.005)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        append(writer, work.steps)
        wait_for(lambda: writer.stats().state is LogState.FULL)
        writer.close()
    assert not writer._thread.is_alive()
    writer = resume(tmp_path, Machine("c1"))
    feed(writer, work.steps)
    writer.close()
    assert encoded(Log(tmp_path).records()) == encoded(work.records)
