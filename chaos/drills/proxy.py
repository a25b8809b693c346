"""The proxy process: it stands before every node, and does to connections what it is told on its standard input.

``python -m chaos.drills.proxy`` reads a line of JSON at a time and answers each with one: ``open`` (routes), ``rules``,
``reset``, ``refuse`` (names before whom no port is open, as before a process that has ended). It ends with its input.

Nodes say who they are in the first frame of a connection, so one port a node is enough to tell the links apart.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any

import msgpack

from chaos.drills.network import CLIENTS, Link, Rule

__all__ = ["Proxy", "Route"]

_LENGTH = Struct(">I")
_HELLO_BYTES_MAX = 4096
_CHUNK = 64 * 1024
# Chunks on their way in one direction: what a socket's buffers would hold.
_CHUNKS_MAX = 16


@dataclass(frozen=True, slots=True)
class Route:
    """A port of the proxy, and the node behind it; ``kind`` is ``peers`` or ``clients``."""

    node: str
    kind: str
    listen: int
    target: int


class Proxy:
    """All routes, all connections and the rules for them."""

    def __init__(self) -> None:
        self._rules: dict[Link, Rule] = {}
        self._changed = asyncio.Event()
        self._routes: list[Route] = []
        self._servers: dict[Route, asyncio.Server] = {}
        self._connections: set[_Connection] = set()

    async def order(self, order: dict[str, Any]) -> None:
        """Does what one line says."""
        if "open" in order:
            self._routes += [Route(*route) for route in order["open"]]
            await self._listen(set())
        if "refuse" in order:
            await self._listen(set(order["refuse"]))
        if "rules" in order:
            self._rules = {(source, target): Rule(*rule) for source, target, *rule in order["rules"]}
            self._changed.set()
            self._changed = asyncio.Event()
        for source, target in order.get("reset", ()):
            for connection in [each for each in self._connections if each.link in ((source, target), (target, source))]:
                connection.abort()

    def rule(self, link: Link) -> Rule:
        """What holds for a link now."""
        return self._rules.get(link, _FREE)

    async def changed(self) -> None:
        """Ends when the rules have changed."""
        await self._changed.wait()

    async def _listen(self, refused: set[str]) -> None:
        for route in self._routes:
            server = self._servers.get(route)
            if route.node in refused and server is not None:
                del self._servers[route]
                server.close()
            elif route.node not in refused and server is None:
                accept = self._acceptor(route)
                self._servers[route] = await asyncio.start_server(accept, "127.0.0.1", route.listen)

    def _acceptor(self, route: Route) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]:
        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = _Connection(self, route, reader, writer)
            self._connections.add(connection)
            try:
                await connection.serve()
            except (OSError, asyncio.IncompleteReadError, ValueError):
                pass
            finally:
                connection.abort()
                self._connections.discard(connection)

        return accepted


_FREE = Rule()


class _Connection:
    def __init__(self, proxy: Proxy, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._route = route
        self._near = (reader, writer)
        self._writers = [writer]
        self.link: Link = (CLIENTS, route.node)

    async def serve(self) -> None:
        far = await asyncio.open_connection("127.0.0.1", self._route.target)
        self._writers.append(far[1])
        first = b""
        if self._route.kind == "peers":
            first = await self._hello()
        there = asyncio.ensure_future(self._carry(self.link, self._near[0], far[1], first))
        back = asyncio.ensure_future(self._carry((self.link[1], self.link[0]), far[0], self._near[1], b""))
        try:
            await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    def abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _hello(self) -> bytes:
        length = await self._near[0].readexactly(_LENGTH.size)
        (size,) = _LENGTH.unpack(length)
        if size > _HELLO_BYTES_MAX:
            raise ValueError("not a hello")
        frame = await self._near[0].readexactly(size)
        self.link = (str(msgpack.unpackb(frame)[3]), self._route.node)
        return length + frame

    async def _carry(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: bytes
    ) -> None:
        """One direction, until its source ends it."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_MAX)
        loop = asyncio.get_running_loop()
        if first:
            queue.put_nowait((loop.time(), first))
        reading = asyncio.ensure_future(self._fill(queue, reader))
        try:
            while True:
                came_at, data = await queue.get()
                await self._passable(link, came_at, len(data))
                if not data:
                    return
                writer.write(data)
                await writer.drain()
        finally:
            reading.cancel()

    @staticmethod
    async def _fill(queue: "asyncio.Queue[tuple[float, bytes]]", reader: asyncio.StreamReader) -> None:
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            try:
                data = await reader.read(_CHUNK)
            except OSError:
                data = b""
            await queue.put((loop.time(), data))

    async def _passable(self, link: Link, came_at: float, size: int) -> None:
        """Waits as long as the rules of the link want for a chunk of a size."""
        loop = asyncio.get_running_loop()
        rule = self._proxy.rule(link)
        if rule.bytes_per_s:
            await asyncio.sleep(size / rule.bytes_per_s)
        while True:
            rule = self._proxy.rule(link)
            wait = came_at + rule.delay_ms / 1000.0 - loop.time()
            if not rule.cut and wait <= 0:
                return
            if rule.cut:
                await self._proxy.changed()
            else:
                await asyncio.sleep(wait)


async def _main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 20)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    proxy = Proxy()
    while line := await reader.readline():
        try:
            await proxy.order(json.loads(line))
            print("{}", flush=True)
        except OSError as error:
            print(json.dumps({"error": str(error)}), flush=True)


if __name__ == "__main__":
    asyncio.run(_main())
