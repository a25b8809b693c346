"""What drills put over a node's directory is taken away again, whenever somebody interrupts."""

import asyncio
import random
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.drills.catalog import disks


class Quiet:
    """A cluster of which nothing is asked but to be there."""

    def __init__(self, data: Path) -> None:
        self.nodes = {"n1": SimpleNamespace(name="n1", data=data)}

    async def kill(self, *names: str) -> None:
        """Nothing runs."""

    async def start(self, *names: str) -> None:
        """Nothing starts."""

    async def ready(self, client: Any) -> None:
        """It always is."""


class Still:
    """A scene without clients."""

    def __init__(self, data: Path) -> None:
        self.cluster = Quiet(data)
        self.client = None
        self.seconds = 0.0
        self.chance = random.Random(1)

    async def work(self, seconds: float) -> None:
        """Nobody works."""

    async def leader(self) -> str:
        """The only one."""
        return "n1"


def test_a_small_disk_goes_also_when_it_is_interrupted_while_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    begun, go_on = threading.Event(), threading.Event()

    def move(data: Path) -> Path:
        begun.set()
        assert go_on.wait(20)
        done.append("mounted")
        return data.with_name("before")

    def move_back(data: Path, kept: Path) -> None:
        done.append(f"taken away for {kept.name}")

    monkeypatch.setattr(disks, "_move_to_small_disk", move)
    monkeypatch.setattr(disks, "_move_back", move_back)

    async def interrupted() -> None:
        drill = asyncio.create_task(disks.full_disk(cast(Any, Still(tmp_path / "data"))))
        assert await asyncio.to_thread(begun.wait, 20)
        drill.cancel()
        # Until it has heard of it.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await drill

    asyncio.run(interrupted())
    assert done == ["mounted", "taken away for before"]
