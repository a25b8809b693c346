"""Whether service is back in time is judged by what was asked after the fault."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from chaos.drills.history import Call, History
from chaos.drills.scene import SERVICE, Broken, Scene
from chaos.drills.watch import Watch
from chaos.drills.workload import Workload


class Idle:
    streams = ("stream-0", "stream-1")
    number_of = staticmethod(Workload.number_of)

    def check(self) -> None:
        """Nobody works here."""


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    history = History(tmp_path / "history.jsonl")
    nothing: Any = None
    yield Scene(nothing, nothing, cast(Any, Idle()), history, random.Random(1), 1.0, 2.0, lambda _: None)
    history.close()


def answered(start: float, end: float, *kinds: str) -> list[Call]:
    return [Call("c", kind, start, end, "ok") for kind in kinds]


def tell(scene: Scene, calls: list[Call]) -> None:
    for call in calls:
        scene.history.add(call)


def test_the_slowest_kind_of_service_counts(scene: Scene) -> None:
    tell(
        scene, [*answered(0.1, 0.2, *SERVICE), *answered(1.1, 1.2, "enqueue", "lease"), *answered(1.3, 2.5, "complete")]
    )
    assert asyncio.run(scene.recovered("it", 1.0)) == pytest.approx(1.5)
    assert scene.recoveries[0].took == pytest.approx(1.5)


def test_what_was_asked_before_the_fault_does_not_count(scene: Scene) -> None:
    scene.history.began -= 100
    tell(scene, answered(0.9, 1.2, *SERVICE))
    with pytest.raises(Broken, match="did not come back"):
        asyncio.run(scene.recovered("it", 1.0))


def test_service_that_comes_back_late_is_told(scene: Scene) -> None:
    tell(scene, answered(1.1, 4.0, *SERVICE))
    with pytest.raises(Broken, match=r"back in 3.0 s; it may take 2 s"):
        asyncio.run(scene.recovered("it", 1.0))


def test_changes_that_a_minority_acknowledges_are_counted(scene: Scene) -> None:
    tell(
        scene,
        [*answered(1.1, 1.5, "enqueue", "complete"), *answered(0.9, 1.5, "enqueue"), *answered(1.2, 9, "enqueue")],
    )
    assert scene.served(1.0, 2.0) == 2


def granted(stream: str, end: float, request: int) -> Call:
    return Call(stream, "grant", 0.5, end, "ok", request=f"request-{request}")


def test_streams_are_back_when_each_was_granted_something_new(scene: Scene) -> None:
    tell(scene, [granted("stream-0", 1.1, 7), granted("stream-1", 1.4, 8), granted("stream-0", 2.5, 9)])
    assert asyncio.run(scene.streams_served("it", 1.0, 7)) == pytest.approx(1.5)


def test_a_stream_that_stands_still_is_told(scene: Scene) -> None:
    scene.history.began -= 100
    tell(scene, [granted("stream-0", 1.1, 8), granted("stream-1", 1.4, 7), granted("worker-1", 1.5, 9)])
    with pytest.raises(Broken, match="work did not come back"):
        asyncio.run(scene.streams_served("it", 1.0, 7))


class Stumbling:
    """A cluster that nobody can look at."""

    nodes: dict[str, Any] = {}  # noqa: RUF012 nothing is ever put in

    @property
    def names(self) -> list[str]:
        raise RuntimeError("no names")


def test_a_watch_that_ended_by_itself_is_a_problem(scene: Scene) -> None:
    async def whole() -> list[str]:
        watch = Watch(cast(Any, Stumbling()), cast(Any, None), scene.history)
        watch.start()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await watch.close()
        await watch.close()
        return watch.problems

    assert asyncio.run(whole()) == ["nobody watched the nodes any more after RuntimeError('no names')"]
