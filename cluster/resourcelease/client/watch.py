"""Finding out whether a node that takes long to answer is alive."""

import asyncio
from typing import Any

from resourcelease.client.nodes import Node, Nodes

__all__ = ["MOST_PAUSE", "PROBE_AFTER", "PROBE_SECONDS", "Watch"]

# A call that has not been answered for so many seconds has its node asked whether it lives; so long may that take.
PROBE_AFTER = 1.0
PROBE_SECONDS = 1.0
MOST_PAUSE = 8.0


class Watch:
    """Gives a call up when its node is found dead or frozen, and leaves it be when the node is only slow."""

    __slots__ = ("_call", "_node", "_nodes", "_task", "_timer", "gave_up")

    def __init__(self, nodes: Nodes, node: Node, call: Any) -> None:
        self._nodes = nodes
        self._node = node
        self._call = call
        self._task: asyncio.Task[None] | None = None
        self.gave_up = False
        self._timer = asyncio.get_running_loop().call_later(PROBE_AFTER, self._probe)

    def stop(self) -> None:
        """The call is over."""
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _probe(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._ask())

    async def _ask(self) -> None:
        pause = PROBE_AFTER
        while await self._nodes.is_alive(self._node, PROBE_SECONDS):
            await asyncio.sleep(pause)
            # Many clients may wait long for work; their nodes are not to be kept busy by being asked how they are.
            pause = min(2 * pause, MOST_PAUSE)
        self.gave_up = True
        self._call.cancel()
