"""Clusters whose segments are small, so that a little work makes many."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from frontdoor.cluster_fixture import Cluster, Runner

from resourcelease.model import limits

SEGMENT_BYTES = 8_000


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES", SEGMENT_BYTES)


@pytest.fixture(scope="session")
def run() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.loop.close()


@pytest.fixture
def trio(run: Runner, tmp_path: Path, small_segments: None) -> Iterator[Cluster]:
    """Three nodes that the test may do anything to, whose memory holds little of the history."""
    cluster = Cluster(tmp_path, 3, {"limits.tail_events": 200, "events.flush_ms": 20})
    run(cluster.start_all())
    yield cluster
    run(cluster.stop_all())


@pytest.fixture
def solo(run: Runner, tmp_path: Path, small_segments: None) -> Iterator[Cluster]:
    """One node, not started yet."""
    cluster = Cluster(tmp_path, 1, {"limits.tail_events": 50, "events.flush_ms": 20})
    yield cluster
    run(cluster.stop_all())
