"""What a drill's outcome says."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from chaos.drills import run
from chaos.drills.history import Call
from chaos.drills.peace import looked_up
from chaos.drills.scene import Drill
from resourcelease import v1


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


class Forgetful:
    """A cluster that has forgotten what became of its items."""

    async def items(self, **_: Any) -> AsyncIterator[v1.Item]:
        for _ in ():
            yield v1.Item()

    async def explain(self, _: int) -> v1.ExplainResponse:
        return v1.ExplainResponse(rule=v1.ExplainRule.EXPLAIN_RULE_GONE)


def test_what_the_cluster_has_forgotten_is_looked_up_in_the_events() -> None:
    client: Any = Forgetful()
    calls = [Call("c", "complete", 0.0, 1.0, "unknown", item) for item in (7, 8)]
    calls.append(Call("c", "complete", 0.0, 1.0, "ok", 9))
    event = v1.Event(type=v1.EventType.EVENT_TYPE_COMPLETED)
    event.handle.sequence_id = 7
    assert asyncio.run(looked_up(client, calls, [event])) == {7: "done", 8: "gone", 9: "done"}


@pytest.mark.parametrize(("error", "peaces"), [(None, 1), (OSError, 1), (asyncio.CancelledError, 0)])
def test_peace_is_made_after_a_failure_and_not_after_an_interruption(
    error: type[BaseException] | None, peaces: int
) -> None:
    made: list[None] = []

    async def act() -> None:
        if error is not None:
            raise error

    async def peace() -> None:
        made.append(None)

    with pytest.raises(error) if error is not None else contextlib.nullcontext():
        asyncio.run(run._then_peace(act(), peace))
    assert len(made) == peaces
