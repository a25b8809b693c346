"""Errands as tests send them out."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from resourcelease.errands import Errands

Play = Callable[[Coroutine[Any, Any, None]], None]


class Trip:
    """An errand and what was heard of it."""

    def __init__(self, work: Coroutine[Any, Any, Any], errands: Errands | None = None) -> None:
        self.ends: list[BaseException | None] = []
        self.errands = errands or Errands()
        self.errand = self.errands.begin(work, self.ends.append)

    @property
    def in_a_task(self) -> bool:
        return self.errand._task is not None

    def ended(self, kind: type[BaseException]) -> bool:
        """Whether it has ended so, and was said to have once."""
        return [type(end) for end in self.ends] == [kind]


async def passes(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
