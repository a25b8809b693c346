"""All worker streams of a node, and which of them holds which lease."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Protocol

from resourcelease.frontdoor.refusals import Refused
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import DrainData, EndsData, EventType, FailuresData, RequeuesData
from resourcelease.model.events import Record

__all__ = ["Holder", "Streams"]


class Holder(Protocol):
    """A stream, as far as its leases go."""

    @property
    def namespace(self) -> str:
        """Whose items it holds."""

    @property
    def peer(self) -> str:
        """Who works on it."""

    def let_go(self, fence: int) -> None:
        """A lease ended as its worker wished."""

    def lose(self, fence: int, refusal: Refusal) -> None:
        """A lease ended without its worker."""

    def fence_of(self, sequence_id: int) -> int:
        """The lease that it holds on an item; 0 for none."""

    def go_away(self, message: str) -> bool:
        """Another node would serve it better: this one stops, or is cut off. Whether it had not been told before."""

    def end(self, refused: Refused) -> None:
        """Ends the stream with a status."""


class Streams:
    """The open streams."""

    def __init__(self, streams_per_peer: int, fence_of: Callable[[str, int], int]) -> None:
        """``fence_of`` tells of an item of a namespace under which fence it is leased now; 0 for none."""
        self._streams_per_peer = streams_per_peer
        self._fence_of = fence_of
        # Since when, in the order of their coming.
        self._open: dict[Holder, float] = {}
        self._by_peer: Counter[str] = Counter()
        self._by_fence: dict[int, Holder] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._open)

    async def emptied(self, timeout_s: float) -> None:
        """Waits until no stream is open, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()

    def enter(self, stream: Holder) -> None:
        """A stream begins, or ``Refused`` is raised."""
        if self._by_peer[stream.peer] >= self._streams_per_peer:
            raise Refused(Reason.QUEUE_FULL, f"peer {stream.peer} has {self._streams_per_peer} streams here already")
        self._by_peer[stream.peer] += 1
        self._open[stream] = asyncio.get_running_loop().time()
        self._empty.clear()

    def leave(self, stream: Holder, fences: Sequence[int]) -> None:
        """A stream has ended; what it held is nobody's here."""
        if stream not in self._open:
            return
        del self._open[stream]
        if not self._open:
            self._empty.set()
        self._by_peer[stream.peer] -= 1
        if not self._by_peer[stream.peer]:
            del self._by_peer[stream.peer]
        self.forget(stream, fences)

    def note(self, stream: Holder, fences: Sequence[int]) -> None:
        """A stream holds these leases from now on."""
        self._by_fence.update(dict.fromkeys(fences, stream))

    def forget(self, stream: Holder, fences: Sequence[int]) -> None:
        """It holds them no more."""
        for fence in fences:
            if self._by_fence.get(fence) is stream:
                del self._by_fence[fence]

    def applied(self, records: Sequence[Record]) -> None:
        """Looks for leases of these streams that have ended."""
        if not self._by_fence:
            return
        for record in records:
            data = record.data
            if isinstance(data, EndsData | FailuresData | RequeuesData):
                expired = record.type is EventType.LEASE_EXPIRED
                for place, fence in enumerate(data.fences):
                    stream = self._by_fence.pop(fence, None)
                    if stream is None:
                        continue
                    if expired:
                        stream.lose(fence, _lost(data.sequence_ids[place], "expired"))
                    else:
                        stream.let_go(fence)
            elif isinstance(data, DrainData):
                self._drained(record.namespace, data.sequence_ids)

    def go_away(self, message: str) -> None:
        """Asks all workers to move to another node."""
        for stream in list(self._open):
            stream.go_away(message)

    def here_since(self, time: float) -> list[Holder]:
        """Those that have been here since then."""
        return list(takewhile(lambda stream: self._open[stream] <= time, self._open))

    def end(self, refused: Refused) -> None:
        """Ends what is still open."""
        for stream in list(self._open):
            stream.end(refused)

    def _drained(self, namespace: str, sequence_ids: Sequence[int]) -> None:
        for stream in [each for each in self._open if each.namespace == namespace]:
            for sequence_id in sequence_ids:
                fence = stream.fence_of(sequence_id)
                if not fence or fence == self._fence_of(namespace, sequence_id):
                    # It has come back since, and was granted anew.
                    continue
                if self._by_fence.pop(fence, None) is not None:
                    stream.lose(fence, _lost(sequence_id, "was drained away"))


def _lost(sequence_id: int, how: str) -> Refusal:
    return Refusal(Reason.LEASE_LOST, f"the lease on item {sequence_id} {how}; stop working on it")
