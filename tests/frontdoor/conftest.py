from collections.abc import Iterator

import pytest

from frontdoor.cluster_fixture import Cluster, Runner


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
