from collections.abc import Iterator

import pytest
from frontdoor.cluster_fixture import Runner


@pytest.fixture(scope="session")
def run() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.loop.close()
