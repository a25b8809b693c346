"""What becomes of a node's callers when the node has lost the others, and they have not lost it.

Calls that the cluster would have to answer are given up (``Replica.look``). Whoever waits for work, for relief or for
events is asked to move, since it would wait here for nothing. Where no node has a leader that is in vain, and costs
every one of them a move in so many seconds.
"""

import asyncio

from resourcelease.frontdoor.event_service import Events
from resourcelease.frontdoor.lease_service import Leases
from resourcelease.frontdoor.refusals import Refused
from resourcelease.frontdoor.replica import LOOK_S, Replica
from resourcelease.frontdoor.streams import Streams
from resourcelease.model.errors import Reason

__all__ = ["Seclusion"]

# A node that has been out of touch for so long asks those to move who have waited here for as long.
_ALONE_S = 3.0
# A worker that was asked to move has so long to do it.
_LEAVE_S = 5.0
_WHY = "this node has lost the other nodes of its cluster"


class Seclusion:
    """Looks after those who wait on this node."""

    def __init__(self, replica: Replica, leases: Leases, streams: Streams, events: Events) -> None:
        self._replica = replica
        self._leases = leases
        self._streams = streams
        self._events = events
        self._loop = asyncio.get_running_loop()
        # In looks, as the replica counts: a process that stood still has not waited.
        self._alone = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to look, now and then."""
        self._task = asyncio.ensure_future(self._keep())

    async def stop(self) -> None:
        """Looks no more; whoever is still here is told that the node stops."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """Has callers go on elsewhere, if they had better."""
        self._replica.look()
        self._alone = 0 if self._replica.in_touch else self._alone + 1
        if self._alone * LOOK_S >= _ALONE_S:
            self._send_away(self._loop.time() - _ALONE_S)

    def _send_away(self, since: float) -> None:
        """Those who have been here since a time."""
        refused = Refused(Reason.NO_LEADER, f"{_WHY}; call another one with the same operation id")
        self._leases.send_away(refused, since)
        self._events.send_away(Refused(Reason.NO_LEADER, f"{_WHY}; subscribe again at the same place, there"), since)
        for stream in self._streams.here_since(since):
            if stream.go_away(f"{_WHY}; open a stream on another one and go on with the leases there"):
                self._loop.call_later(_LEAVE_S, stream.end, refused)
