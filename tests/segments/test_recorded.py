"""Files of every version that was ever written can be read, also by those who know only what the page says."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from resourcelease.storage.segments import SEGMENT_VERSION, Log, segment_paths, verify

from .recorder import RECORDED, described, spelled_out

VERSIONS = sorted(RECORDED.iterdir())
PAGE = Path(__file__).parents[2] / "docs" / "segment-format.md"


def test_the_present_version_is_recorded() -> None:
    assert [path.name for path in VERSIONS] == [f"v{number}" for number in range(1, SEGMENT_VERSION + 1)]


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_a_recorded_log(version: Path) -> None:
    report = verify(version)
    assert report.ok, report.problems
    assert [file.recomputed for file in report.files] == [True, True, False, True]
    assert [file.sealed for file in report.files] == [True, True, True, False]
    events = [json.loads(line) for line in (version / "events.json").read_text().splitlines()]
    assert [spelled_out(event) for event in Log(version).events()] == events
    files = [json.loads(line) for line in (version / "files.json").read_text().splitlines()]
    assert [json.loads(json.dumps(described(path))) for _, path in segment_paths(version)] == files


@pytest.mark.parametrize("version", VERSIONS, ids=lambda path: path.name)
def test_the_reader_on_the_page(version: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE):
        exec(compile(block, str(PAGE), "exec"), names)
    read: Callable[[Path], list[bytes]] = names["records_of"]
    for _, path in segment_paths(version):
        first = int(path.stem)
        last = max(record.sequence + record.count - 1 for record in _records(version, first))
        ours = [record.encoded for record in _records(version, first) if record.sequence <= last]
        assert list(read(path)) == ours


def _records(version: Path, first: int) -> list[Any]:
    firsts = [*(number for number, _ in segment_paths(version)), 1 << 60]
    end = firsts[firsts.index(first) + 1]
    return [record for record in Log(version).records() if first <= record.sequence < end]
