"""The shim does to a process what a drill says, to its own files and clocks and to nothing else."""

import errno
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.drills.node import Node
from chaos.drills.shim import PAGE, Entry, Shim, unsynced_pages, why_no_shim

needs_shim = pytest.mark.skipif(bool(why_no_shim()), reason=why_no_shim())


class Home:
    """A directory as a node has it, and programs that run as the node would."""

    def __init__(self, directory: Path) -> None:
        self.node = Node(directory, "n1", "", {})
        self.shim = Shim(self.node)
        self.node.data.mkdir()
        self.file = self.node.data / "file"

    def run(self, program: str) -> Any:
        """What a program printed as JSON; ``path`` is a file in the directory, ``other`` one beside it."""
        head = f"import json, os, time\npath, other = {str(self.file)!r}, {str(self.node.directory / 'other')!r}\n"
        words = [*self.node.prefix, sys.executable, "-c", head + program]
        return json.loads(
            subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout or "null"
        )


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


_CLOCKS = "print(json.dumps([time.time(), time.time_ns() / 1e9, time.monotonic()]))"


@needs_shim
def test_the_wall_clock_jumps_alone(home: Home) -> None:
    before = home.run(_CLOCKS)
    home.shim.tell(jump_ns=3_600_000_000_000)
    wall, wall_ns, monotonic = home.run(_CLOCKS)
    assert wall - before[0] == pytest.approx(3600, abs=300)
    assert wall_ns - before[1] == pytest.approx(3600, abs=300)
    assert monotonic - before[2] < 300
    assert home.shim.count("wrong_times") >= 2


@needs_shim
def test_all_clocks_run_faster(home: Home) -> None:
    """A million times as fast, so that what the program itself takes does not matter."""
    before = home.run(_CLOCKS)
    home.shim.set_rate(1_000_000 * 1_000_000)
    after = home.run(_CLOCKS)
    assert after[0] - before[0] > 1000
    assert after[2] - before[2] > 1000


@needs_shim
def test_waits_of_the_interpreter_are_as_long_as_they_were(home: Home) -> None:
    """Its deadlines are by a clock that the kernel does not know: taken for the kernel's, this one is days away."""
    home.shim.set_rate(1_000_000 * 1_000_000)
    assert home.run("import threading\nprint(json.dumps(threading.Event().wait(0.05)))") is False


@needs_shim
@pytest.mark.parametrize("flush", ["fsync", "fdatasync"])
def test_a_flush_fails_in_the_directory_and_nowhere_else(home: Home, flush: str) -> None:
    home.shim.tell(flush_errno=errno.EIO)
    program = f"""
told = []
for name in (path, other):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    os.write(fd, b"content")
    try:
        os.{flush}(fd)
        told.append(0)
    except OSError as error:
        told.append(error.errno)
print(json.dumps(told))
"""
    assert home.run(program) == [errno.EIO, 0]
    assert home.shim.count("flushes") == 1


@needs_shim
def test_a_write_that_flushes_itself_fails_as_a_flush_does(home: Home) -> None:
    home.shim.tell(flush_errno=errno.EIO)
    program = """
fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DSYNC)
try:
    os.pwrite(fd, b"content", 0)
except OSError as error:
    print(json.dumps(error.errno))
"""
    assert home.run(program) == errno.EIO
    assert home.file.read_bytes() == b""


class Certain(random.Random):
    """Every page that may be lost is."""

    def random(self) -> float:
        return 0.0


@needs_shim
@pytest.mark.parametrize(
    "again",
    [
        "os.pwrite(fd, new, 0)",
        "os.pwritev(fd, [new[:100], new[100:]], 0)",
        "os.writev(fd, [new])",
        "os.write(fd, new)",
        "os.pwrite(fd, b'x' * 10, 5); os.pwrite(fd, new, 0)",
    ],
)
def test_what_no_flush_covers_is_lost_with_the_power(home: Home, again: str) -> None:
    home.file.write_bytes(b"a" * 3 * PAGE)
    home.shim.start_record()
    home.run(f"new = b'b' * {4 * PAGE}\nfd = os.open(path, os.O_RDWR)\n{again}")
    assert home.file.read_bytes() == b"b" * 4 * PAGE
    assert home.shim.lose_power(Certain()) == 4
    assert home.file.read_bytes() == b"a" * 3 * PAGE


@needs_shim
def test_what_a_flush_covers_stays(home: Home) -> None:
    home.shim.start_record()
    home.run(
        f"fd = os.open(path, os.O_RDWR | os.O_CREAT)\nos.write(fd, b'a' * {2 * PAGE})\nos.fdatasync(fd)\n"
        f"os.pwrite(fd, b'b' * {PAGE}, 0)"
    )
    assert home.shim.lose_power(Certain()) == 1
    assert home.file.read_bytes() == b"a" * 2 * PAGE


@needs_shim
def test_each_page_is_as_it_was_or_as_it_was_written(home: Home) -> None:
    home.file.write_bytes(b"a" * 64 * PAGE)
    home.shim.start_record()
    home.run(f"fd = os.open(path, os.O_RDWR)\nos.pwrite(fd, b'b' * {64 * PAGE}, 0)")
    lost = home.shim.lose_power(random.Random(3))
    content = home.file.read_bytes()
    pages = [content[at : at + PAGE] for at in range(0, len(content), PAGE)]
    assert 0 < lost < 64
    assert pages.count(b"a" * PAGE) == lost
    assert pages.count(b"b" * PAGE) == 64 - lost


def test_a_flush_covers_what_was_written_before_it_began() -> None:
    entries = [
        Entry(0, 1, 7, 0, b"one", 3, 10),
        Entry(51, 1, 8, 0, b"two", 3, 10),
        Entry(102, 1, 7, 4, b"six", 3, 10),
        # It began when the file of undos had 60 bytes.
        Entry(153, 2, 7, 60, b"", 0, 0),
    ]
    found = unsynced_pages(entries)
    assert {inode: [old for _, old, _ in undo.pieces] for inode, undo in found.items()} == {8: [b"two"], 7: [b"six"]}
