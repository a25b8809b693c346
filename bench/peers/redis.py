"""Redis: an append-only file that is synced always, one replica, WAIT 1 after each step; claims by a script."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.peers.base import (
    BODY_BYTES,
    LEASE_SECONDS,
    TRY_SECONDS,
    Claim,
    Peer,
    Refused,
    Session,
    Worker,
    body_of,
    no_client,
    number_of,
    optional,
    version_of,
)
from bench.peers.servers import Server, cache, find, free_ports, until, words

__all__ = ["Redis"]

# KEYS: waiting (list), bodies (hash), leased (by deadline), owners (hash).
_KEYS = ("q:waiting", "q:bodies", "q:leased", "q:owners")
_ENQUEUE = """
local last = redis.call('INCRBY', 'q:last', #ARGV)
for at, body in ipairs(ARGV) do
  local id = last - #ARGV + at
  redis.call('HSET', KEYS[2], id, body)
  redis.call('RPUSH', KEYS[1], id)
end
return last
"""
_LEASE = """
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', ms, 'LIMIT', 0, 100)) do
  redis.call('ZREM', KEYS[3], id)
  redis.call('HDEL', KEYS[4], id)
  redis.call('LPUSH', KEYS[1], id)
end
local ids = redis.call('LPOP', KEYS[1], ARGV[2])
if not ids then return {} end
local found = {}
for _, id in ipairs(ids) do
  redis.call('ZADD', KEYS[3], ms + ARGV[3], id)
  redis.call('HSET', KEYS[4], id, ARGV[1])
  found[#found + 1] = id
  found[#found + 1] = redis.call('HGET', KEYS[2], id)
end
return found
"""
_COMPLETE = """
local done = 0
for at = 2, #ARGV do
  if redis.call('HGET', KEYS[4], ARGV[at]) == ARGV[1] then
    redis.call('HDEL', KEYS[4], ARGV[at])
    redis.call('HDEL', KEYS[2], ARGV[at])
    redis.call('ZREM', KEYS[3], ARGV[at])
    done = done + 1
  end
end
return done
"""
_FILL_ITEMS = 1_000
_PAUSE_SECONDS = 0.002


class Redis(Peer):
    """A primary and a replica, both with the file synced before the answer."""

    name = "redis"
    title = "Redis, appendfsync always, WAIT 1"
    fsyncs = False
    fails_over = False
    notes: ClassVar[tuple[str, ...]] = (
        "A reference: WAIT says that the replica has a write in memory, not on disk.",
        "Without sentinels nothing fails over.",
    )

    @classmethod
    def missing(cls) -> str | None:
        """Server and client."""
        if find("redis-server") is None:
            return "redis-server is not installed"
        return no_client("redis", "redis-py")

    def start(self) -> None:
        """Both; returns when the replica streams."""
        primary, replica = free_ports(2)
        self.servers = [self._server("primary", primary), self._server("replica", replica, primary)]
        for server in self.servers:
            server.start()
        for server in self.servers:
            until(server.listens, f"the start of {server.name}")
        asyncio.run(self._make_ready())

    def _server(self, name: str, port: int, primary: int = 0) -> Server:
        directory = self.directory / name
        directory.mkdir(parents=True)
        settings = ["--bind", "127.0.0.1", "--port", port, "--dir", directory, "--appendonly", "yes"]
        settings += ["--appendfsync", "always", "--save", "", "--repl-diskless-sync-delay", 0]
        if primary:
            settings += ["--replicaof", "127.0.0.1", primary]
        command = [find("redis-server") or "redis-server", *map(str, settings)]
        return Server(name, command, directory, port=port, environment=_libraries())

    async def _make_ready(self) -> None:
        client = optional("redis.asyncio").Redis(port=self.servers[0].port)
        async with asyncio.timeout(30):
            while (await client.info("replication")).get("slave0", {}).get("state") != "online":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        await client.aclose()

    def connect(self) -> dict[str, Any]:
        """The primary's port."""
        return {"port": self.servers[0].port}

    @classmethod
    async def session(cls, connect: dict[str, Any], workers: int, batch: int) -> Session:
        """Connections are made with the workers: WAIT holds one up."""
        return _Session(connect["port"])

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Server and client."""
        return {
            "server": words(find("redis-server"), "--version", libraries=_libraries()).partition(" sha")[0],
            "redis-py": version_of("redis"),
        }

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """What is on the command line."""
        return {"nodes": 2, "appendonly": "yes", "appendfsync": "always", "save": "", "after each step": "WAIT 1"}

    def data(self) -> list[Path]:
        """Both directories."""
        return [server.directory for server in self.servers]


class _Session:
    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[Any] = []

    def _client(self) -> Any:
        client = optional("redis.asyncio").Redis(port=self._port, single_connection_client=True)
        self._clients.append(client)
        return client

    async def worker(self, name: str) -> Worker:
        """On a connection of its own."""
        worker = _Worker(self._client(), name)
        await worker.load()
        return worker

    async def fill(self, numbers: Sequence[int]) -> None:
        """One script for many."""
        client = self._client()
        for at in range(0, len(numbers), _FILL_ITEMS):
            bodies = [body_of(number) for number in numbers[at : at + _FILL_ITEMS]]
            await client.eval(_ENQUEUE, len(_KEYS), *_KEYS, *bodies)

    async def depth(self) -> int:
        """Bodies that are kept."""
        return int(await self._client().hlen(_KEYS[1]))

    async def close(self) -> None:
        """All connections."""
        for client in self._clients:
            await client.aclose()


class _Worker:
    """Each step is one round trip: the script and WAIT travel together."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name
        self._scripts: dict[str, str] = {}

    async def load(self) -> None:
        """The scripts, once."""
        for script in (_ENQUEUE, _LEASE, _COMPLETE):
            self._scripts[script] = await self._client.script_load(script)

    async def _run(self, script: str, *arguments: Any) -> Any:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.evalsha(self._scripts[script], len(_KEYS), *_KEYS, *arguments)
        pipeline.execute_command("WAIT", 1, int(TRY_SECONDS * 1000))
        result, replicas = await pipeline.execute()
        if replicas < 1:
            raise Refused("the replica did not confirm in time")
        return result

    async def enqueue(self, numbers: Sequence[int]) -> None:
        await self._run(_ENQUEUE, *(body_of(number) for number in numbers))

    async def lease(self, many: int) -> list[Claim]:
        while True:
            found = await self._run(_LEASE, self._name, many, LEASE_SECONDS * 1000)
            if found:
                assert all(len(body) == BODY_BYTES for body in found[1::2])
                return [Claim(number_of(body), item) for item, body in zip(found[::2], found[1::2], strict=True)]
            await asyncio.sleep(_PAUSE_SECONDS)

    async def complete(self, claims: Sequence[Claim]) -> None:
        done = await self._run(_COMPLETE, self._name, *(claim.handle for claim in claims))
        if done != len(claims):
            raise Refused(f"{len(claims) - done} of {len(claims)} leases were not this worker's any more")

    async def close(self) -> None:
        pass


def _libraries() -> dict[str, str]:
    """Those that came with the server, where it was unpacked rather than installed."""
    libraries = cache() / "lib"
    return {"LD_LIBRARY_PATH": str(libraries)} if libraries.exists() else {}
