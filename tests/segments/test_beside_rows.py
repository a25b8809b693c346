"""Rows never stand for events that the log lacks, however a node dies: from such rows they could not be had again."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resourcelease.consensus.members import MEMBERS_ROW
from resourcelease.machine import Machine, fold
from resourcelease.storage.segments import Log, segment_paths, verify

from . import node_child
from .node_child import open_store


def live_and_die(directory: Path, mode: str, entries: int) -> None:
    """A node that is killed some moments after so many of its calls were answered."""
    command = [sys.executable, "-m", node_child.__name__, str(directory), mode]
    top = Path(__file__).parents[node_child.__name__.count(".")]
    process = subprocess.Popen(command, cwd=top, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for _ in range(entries):
        if not process.stdout.readline():
            process.kill()
            pytest.fail(process.communicate()[1])
    time.sleep(random.Random(entries).uniform(0, 0.05))
    process.kill()
    process.communicate()


def stored(directory: Path) -> Machine:
    """The machine that the rows on disk stand for."""
    store = open_store(directory)
    rows = [(key, value) for key, value in store.rows() if key != MEMBERS_ROW]
    store.close()
    return Machine.load_rows(rows)


def test_rows_wait_for_the_log(tmp_path: Path) -> None:
    for entries in (20, 45, 70):
        live_and_die(tmp_path, "follow", entries)
        machine = stored(tmp_path)
        assert machine.sequence_number
        assert Log(tmp_path / "segments").last_sequence >= machine.sequence_number
        report = verify(tmp_path / "segments", through=machine.sequence_number)
        assert report.ok
        assert not any("its segment" in note for note in report.notes)
    assert Log(tmp_path / "segments").first_sequence == 1
    assert len(segment_paths(tmp_path / "segments")) > 1
    state = fold("c1", Log(tmp_path / "segments").records())
    assert state.sequence_number == Log(tmp_path / "segments").last_sequence


def test_rows_that_do_not_wait_get_ahead(tmp_path: Path) -> None:
    """What the wait is for: this is how history would be lost."""
    live_and_die(tmp_path, "alone", 60)
    assert Log(tmp_path / "segments").last_sequence < stored(tmp_path).sequence_number
