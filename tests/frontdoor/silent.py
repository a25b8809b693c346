"""A consensus that a test speaks for."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from resourcelease.consensus import Settings
from resourcelease.machine import Machine


class Silent:
    """A consensus that takes everything, and answers when it is told to."""

    def __init__(self) -> None:
        self.settings = Settings()
        self.machine = Machine("test")
        self.applied = 0
        self.begun: list[tuple[float, Callable[[Any], None]]] = []

    def status(self) -> Any:
        return SimpleNamespace(applied_index=self.applied)

    def begin(self, ops: Sequence[bytes], timeout_s: float, tell: Callable[[Any], None], *, more: bool) -> None:
        self.begun.append((timeout_s, tell))

    async def propose(self, ops: Sequence[bytes], timeout_s: float) -> Any:
        await asyncio.Event().wait()

    async def barrier(self, timeout_s: float) -> int:
        await asyncio.Event().wait()
        return 0
