"""Run by a test as a process of its own, which kills itself with -9 at a named point.

The work is drawn from a seed, so the test knows what should be there; what was told to be durable it says on its
standard output.
"""

import os
import signal
import sys
from pathlib import Path

from resourcelease.machine import Machine
from resourcelease.model import limits
from resourcelease.storage import points
from resourcelease.storage.segments import Register, Retention, install, segment_paths

from .conftest import SEGMENT_BYTES
from .work import OWNER, Work, feed, resume

SEED = 21
STEPS = 45
# Deletes all sealed files but a few.
RETENTION = Retention(max_bytes=9_000)


def the_work() -> Work:
    work = Work(SEED)
    work.run(STEPS)
    return work.finish()


def kill_at(wanted: str, nth: int) -> None:
    """Has this process killed when it reaches a point for the n-th time."""
    seen = 0

    def hook(point: str) -> None:
        nonlocal seen
        if point == wanted:
            seen += 1
            if seen == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    points.set_hook(hook)


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def writing(directory: Path) -> None:
    work = the_work()
    writer = resume(directory, Machine("c1"))
    writer.on_durable = lambda index: say(str(index))
    for step in work.steps:
        feed(writer, [step])
    writer.close()


def resuming(directory: Path) -> None:
    resume(directory, Machine("c1")).close()


def retiring(directory: Path) -> None:
    work = the_work()
    writer = resume(directory, Machine("c1"), retention=RETENTION)
    feed(writer, work.steps)
    writer.close()


def installing(directory: Path) -> None:
    Register.open(directory, OWNER)
    install(segment_paths(directory.parent / "theirs")[1][1], directory, OWNER)
    say("installed")


if __name__ == "__main__":
    limits.SEGMENT_BYTES = SEGMENT_BYTES
    scenario, where, point, nth = sys.argv[1:]
    kill_at(point, int(nth))
    {"writing": writing, "resuming": resuming, "retiring": retiring, "installing": installing}[scenario](Path(where))
