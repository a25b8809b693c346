"""What a drill's outcome says."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from chaos.drills import run
from chaos.drills.scene import Drill


class Nowhere:
    """A cluster that there is not."""

    founders = ("n1",)
    endpoints = ("127.0.0.1:1",)

    async def close(self) -> None:
        return


async def nothing(_: Any) -> None:
    return


def test_a_drill_that_fails_twice_says_first_what_came_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play(*_: Any) -> None:
        try:
            raise OSError("the port is taken")
        finally:
            raise TimeoutError("the cluster was not ready")

    monkeypatch.setattr(run, "_play", play)
    monkeypatch.setattr(run, "judge", lambda *_: [])
    cluster: Any = Nowhere()
    drill = Drill("nothing", "nothing happens", nothing, 1.0)
    outcome = asyncio.run(run.run_drill(drill, cluster, tmp_path, seconds=1.0, seed=1, tell=lambda _: None))
    assert outcome.problems == ["OSError: the port is taken", "TimeoutError: the cluster was not ready"]
    assert not outcome.stumbled
