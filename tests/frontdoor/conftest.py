import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvloop

from frontdoor.cluster_fixture import Cluster, Runner
from frontdoor.trips import Play


@pytest.fixture(scope="session")
def run() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.loop.close()


@pytest.fixture(scope="session")
def trio(run: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes that all tests share; each test has namespaces and peers of its own."""
    cluster = Cluster(tmp_path_factory.mktemp("trio"), 3)
    run(cluster.start_all())
    yield cluster
    run(cluster.stop_all())


@pytest.fixture(params=["grpc", "direct"])
def wire(request: pytest.FixtureRequest) -> str:
    """What streams travel on: each test that asks for it runs once on each."""
    found: str = request.param
    return found


@pytest.fixture
def solo(run: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node that the test may do anything to; it is not started yet."""
    cluster = Cluster(tmp_path_factory.mktemp("solo"), 1)
    yield cluster
    run(cluster.stop_all())


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop])
def play(request: pytest.FixtureRequest) -> Play:
    """Runs a scenario, once on each kind of loop."""

    def run(scenario: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario)

    return run
