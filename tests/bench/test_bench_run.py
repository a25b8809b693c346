"""A short real run with ours alone, and nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(100)
def test_ours_alone(tmp_path: Path) -> None:
    figures, page = tmp_path / "figures.json", tmp_path / "benchmarks.md"
    command = [sys.executable, "-m", "bench.compare", "--quick", "--peers", "ours", "--shapes", "32x1,depth"]
    command += ["--seconds", "0.3", "--depths", "100,2000", "--dir", str(tmp_path), "--json", str(figures)]
    command += ["--page", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(figures.read_text())
    shapes = {result["shape"]: result for result in told["results"]}
    assert set(shapes) == {"32x1", "depth-100", "depth-2000"}
    assert all(result["lifecycles_per_s"] > 0 for result in shapes.values())
    assert shapes["depth-2000"]["waiting"] == 2000
    assert not told["failures"]
    assert page.exists()
    assert not list(tmp_path.glob("resourcelease-bench-*")), "the run left its data behind"
    assert not _running(str(tmp_path)), "the run left a process behind"


def _running(mark: str) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if mark in command:
                found.append(command)
    return found
