"""The quickest drills, on real processes; they need no root. All others: ``python -m chaos.drills``."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from chaos.drills.catalog import DRILLS
from chaos.drills.loopback import Loopback
from chaos.drills.outcome import Outcome
from chaos.drills.program import main
from chaos.drills.report import write_report
from chaos.drills.run import run_drill

QUICK = [drill.name for drill in DRILLS.values() if drill.quick]


def play(name: str, directory: Path, seconds: float) -> Outcome:
    """One drill on loopback, with a bound on how long it may take."""

    async def whole() -> Outcome:
        drill = DRILLS[name]
        async with asyncio.timeout(100):
            cluster = await Loopback().found(directory, 3, drill)
            return await run_drill(drill, cluster, directory, seconds=seconds, seed=7, tell=lambda _: None)

    return asyncio.run(whole())


@pytest.mark.parametrize("name", QUICK)
def test_quick_drills_pass(tmp_path: Path, name: str) -> None:
    if reason := DRILLS[name].why_skipped():
        pytest.skip(reason)
    outcome = play(name, tmp_path, 4.0)
    assert outcome.problems == []
    assert outcome.passed
    assert outcome.acknowledged > 300
    page = tmp_path / "index.html"
    write_report(page, [outcome], "loopback")
    text = page.read_text()
    assert "<svg" in text
    assert outcome.faults[0].words in text


def test_drills_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(name in listed for name in DRILLS)


def test_an_unknown_drill_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kill-everything"]) == 2
    assert "--list" in capsys.readouterr().err


_TOLD_TO_STOP = """
import asyncio, os, signal
from chaos.drills.program import heed_signals

def callback():
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(100_000):
            pass
    except KeyboardInterrupt:
        print("dropped, as gRPC does")

async def drill():
    asyncio.get_running_loop().call_soon(callback)
    try:
        await asyncio.Event().wait()
    finally:
        print("nodes are taken down")

heed_signals()
try:
    asyncio.run(drill())
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_order_to_stop_is_heeded_in_whatever_it_arrives() -> None:
    words = [sys.executable, "-c", _TOLD_TO_STOP]
    told = subprocess.run(words, check=True, capture_output=True, text=True, timeout=60).stdout
    assert told.splitlines() == ["nodes are taken down", "interrupted"]


def test_the_playbook_tells_of_every_drill() -> None:
    page = Path(__file__).parents[2] / "docs" / "failure-drills.md"
    rows = [line.split("|") for line in page.read_text().splitlines() if line.startswith("| ")]
    told = {row[1].strip(): row for row in rows if row[1].strip() in DRILLS}
    assert set(told) == set(DRILLS)
    for name, row in told.items():
        assert row[3].strip() == f"{DRILLS[name].recover_s:g} s", f"{name} has another time on the page"
