"""Stores that are closed at the end of a test, and no hook that outlives one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resourcelease.storage import LmdbStore, points

from .model import open_store


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., LmdbStore]]:
    """Opens stores below the test's directory; ``opened("name")`` a second time opens the same one."""
    stores: list[LmdbStore] = []

    def open_one(name: str = "node", **options: Any) -> LmdbStore:
        store = open_store(tmp_path / name, **options)
        stores.append(store)
        return store

    yield open_one
    points.set_hook(None)
    for store in stores:
        store.close()


@pytest.fixture
def store(opened: Callable[..., LmdbStore]) -> LmdbStore:
    """An empty store."""
    return opened()
