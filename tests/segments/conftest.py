"""Segments small enough that a few dozen entries make several."""

import pytest

from resourcelease.model import limits

SEGMENT_BYTES = 3_000


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES", SEGMENT_BYTES)
