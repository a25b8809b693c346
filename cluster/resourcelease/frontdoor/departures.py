"""Messages on their way out of a stream that both sides write to."""

import asyncio
from typing import Any

__all__ = ["Departures", "Leaving"]


class Leaving:
    """The streams that have something to send: they do it together, once whoever had answers for them has no more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._streams: list[Departures] = []

    def add(self, stream: "Departures") -> None:
        """A stream has something; it leaves with the next ``leave``, or soon by itself."""
        if not self._streams:
            self._loop.call_soon(self.leave)
        self._streams.append(stream)

    def leave(self) -> None:
        """All of them send it."""
        if self._streams:
            streams, self._streams = self._streams, []
            for stream in streams:
                stream.leave()


class Departures:
    """Messages that wait for one writer, at the pace of their reader; what waits, and in what order, is the heirs'.

    Where the stream can say that it has room, they leave without the writer, which waits until there is room again.
    """

    def __init__(self, leaving: Leaving) -> None:
        self._leaving = leaving
        self._loop = asyncio.get_running_loop()
        # Since when the reader has not taken what is being written; None: it keeps up.
        self.blocked_since: float | None = None
        # What the stream is written to; whether it says that it has room, and whether it is among those that leave.
        self._context: Any = None
        self._tells_room = False
        self._leaves = False
        # Whether it is the writer's turn.
        self._filled = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._unblocked = asyncio.Event()
        self._unblocked.set()
        self._stopped = False
        self._error: Exception | None = None
        # Something has been taken out.
        self._left = asyncio.Event()

    # What the heirs know.

    @property
    def full(self) -> bool:
        """Whether more wait than may: whoever does not read its answers is not read either."""
        raise NotImplementedError

    def _waits(self) -> bool:
        """Whether anything waits."""
        raise NotImplementedError

    def _take(self) -> Any:
        """Takes the next message out; None if it has come to nothing."""
        raise NotImplementedError

    def _gone(self) -> None:
        """It is written, or was nothing."""

    # What whoever serves the stream calls.

    async def room(self) -> None:
        """Waits until fewer wait."""
        while self.full:
            self._left.clear()
            await self._left.wait()

    async def drained(self) -> None:
        """Waits until everything has been written."""
        await self._idle.wait()

    async def settled(self) -> None:
        """Begins no further write, and waits for the one under way: a stream cannot be given a status before."""
        self._stopped = True
        await self._unblocked.wait()

    async def write(self, context: Any) -> None:
        """Writes until it is stopped. What comes while a message is being written waits for its turn."""
        self._context, self._tells_room = context, hasattr(context, "has_room")
        while not self._stopped:
            if self.blocked_since is not None:
                await context.room()
                self.blocked_since = None
            elif not self._waits():
                self._idle.set()
                self._filled.clear()
                await self._filled.wait()
                if self._error is not None:
                    raise self._error
            else:
                await self._write_next()

    def leave(self) -> None:
        """Writes what waits as long as there is room; the rest is the writer's."""
        self._leaves = False
        try:
            while not self._stopped and not self._filled.is_set() and self._waits():
                if not self._context.has_room:
                    self._filled.set()
                    return
                message = self._take()
                self._left.set()
                if message is not None:
                    self._context.write_now(message)
                    if not self._context.has_room:
                        # Nothing further may come for the writer, who would notice: it waits for the reader from now.
                        self.blocked_since = self._loop.time()
                        self._filled.set()
                self._gone()
        except Exception as error:
            # Ends the stream, and nobody else's.
            self._error = error
            self._filled.set()
        if not self._filled.is_set() and not self._waits():
            self._idle.set()

    async def _write_next(self) -> None:
        message = self._take()
        self._left.set()
        if message is not None:
            self._unblocked.clear()
            self.blocked_since = self._loop.time()
            await self._context.write(message)
            self.blocked_since = None
            self._unblocked.set()
        self._gone()

    def _came(self) -> None:
        """Something waits."""
        self._idle.clear()
        if self._filled.is_set() or not self._tells_room:
            self._filled.set()
        elif not self._leaves:
            self._leaves = True
            self._leaving.add(self)
