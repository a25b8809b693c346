"""NATS JetStream: a work-queue stream with three replicas on file, a durable pull consumer, acks that are confirmed."""

import asyncio
import json
import urllib.request
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from bench.peers.base import (
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
from bench.peers.servers import Server, find, free_ports, until, words

__all__ = ["Nats", "NatsAlways"]

_STREAM = "JOBS"
_SUBJECT = "jobs.new"
_CONSUMER = "workers"
# Requests of one pipeline without an answer yet.
_MOST_OPEN = 2_000
_FILL_SECONDS = 120.0
_START_SECONDS = 30.0


class Nats(Peer):
    """Three servers as they ship: what is acknowledged is fsynced within two minutes."""

    name = "nats"
    title = "NATS JetStream R3, as it ships"
    fsyncs = False
    sync: ClassVar[str | None] = None
    notes: ClassVar[tuple[str, ...]] = (
        "A lease has no owner's name in JetStream: who holds the message's reply subject may ack it.",
        "Publishing goes without message ids, so a publication that is tried again may be there twice; ours has "
        "operation ids. This favours NATS.",
        "Each worker fetches through a subscription of its own on the one durable consumer.",
    )

    @classmethod
    def missing(cls) -> str | None:
        """Server and client."""
        if find("nats-server") is None:
            return "nats-server is not installed"
        return no_client("nats", "nats-py")

    def start(self) -> None:
        """Three servers, then the stream and its consumer."""
        ports = free_ports(9)
        self._clients, routes, self._monitors = ports[:3], ports[3:6], ports[6:]
        for number in range(3):
            directory = self.directory / f"n{number + 1}"
            directory.mkdir(parents=True)
            config = directory / "server.conf"
            config.write_text(self._config(number, directory, routes))
            program = find("nats-server") or "nats-server"
            server = Server(directory.name, [program, "-c", config], directory, port=self._clients[number])
            self.servers.append(server)
            server.start()
        for server in self.servers:
            until(server.listens, f"the start of {server.name}")
        asyncio.run(self._make_stream())

    def _config(self, number: int, directory: Path, routes: Sequence[int]) -> str:
        others = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        sync = f"\n  sync_interval: {self.sync}" if self.sync else ""
        return f"""\
server_name: {directory.name}
listen: "127.0.0.1:{self._clients[number]}"
http: "127.0.0.1:{self._monitors[number]}"
jetstream {{
  store_dir: "{directory / "store"}"{sync}
}}
cluster {{
  name: bench
  listen: "127.0.0.1:{routes[number]}"
  routes: [{others}]
}}
"""

    async def _make_stream(self) -> None:
        api = optional("nats.js.api")
        stream = api.StreamConfig(
            name=_STREAM, subjects=[_SUBJECT], retention="workqueue", storage="file", num_replicas=3
        )
        consumer = api.ConsumerConfig(
            durable_name=_CONSUMER, ack_policy="explicit", ack_wait=LEASE_SECONDS, max_ack_pending=100_000
        )
        connection = await _connect(self.connect()["servers"])
        manager = connection.jetstream(timeout=TRY_SECONDS)
        end = asyncio.get_running_loop().time() + _START_SECONDS
        makes: tuple[Any, ...] = (partial(manager.add_stream, stream), partial(manager.add_consumer, _STREAM, consumer))
        for make in makes:
            while True:
                try:
                    await make()
                    break
                except optional("nats.errors").Error:
                    # The meta group has no leader yet.
                    if asyncio.get_running_loop().time() > end:
                        raise
                    await asyncio.sleep(0.1)
        await connection.close()

    def connect(self) -> dict[str, Any]:
        """All servers."""
        return {"servers": [f"nats://127.0.0.1:{port}" for port in self._clients]}

    @classmethod
    async def session(cls, connect: dict[str, Any], workers: int, batch: int) -> Session:
        """One connection for the process."""
        return _Session(await _connect(connect["servers"]))

    @classmethod
    def versions(cls) -> dict[str, str]:
        """Server and client."""
        return {"server": words(find("nats-server"), "--version"), "nats-py": version_of("nats-py")}

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Stream and consumer; the servers' own where they differ from what ships."""
        return {
            "nodes": 3,
            "stream": "workqueue, file, 3 replicas",
            "consumer": f"durable, pull, explicit acks, ack_wait {LEASE_SECONDS} s, max_ack_pending 100000",
            "sync_interval": cls.sync or "2m, as it ships",
        }

    def leader(self) -> Server:
        """Who leads the stream."""
        found = ""

        def known() -> bool:
            nonlocal found
            found = self._leader_name()
            return bool(found)

        until(known, "the election of a stream leader")
        return next(server for server in self.servers if server.name == found)

    def _leader_name(self) -> str:
        for server, port in zip(self.servers, self._monitors, strict=True):
            if server.pid is not None and (found := _leader_seen_by(port)):
                return found
        return ""

    def revive(self, server: Server) -> None:
        """Starts it and waits until it says that it is healthy, its replicas current included."""
        server.start()
        port = self._monitors[self.servers.index(server)]
        until(lambda: _asked(port, "healthz").get("status") == "ok", f"the recovery of {server.name}")


class NatsAlways(Nats):
    """The same, with an fsync before each answer."""

    name = "nats-sync"
    title = "NATS JetStream R3, sync_interval: always"
    fsyncs = True
    sync = "always"


def _asked(port: int, path: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=1) as answer:
            return dict(json.load(answer))
    except (OSError, ValueError):
        return {}


def _leader_seen_by(port: int) -> str:
    for account in _asked(port, "jsz?streams=true").get("account_details", ()):
        for stream in account.get("stream_detail", ()):
            return str(stream.get("cluster", {}).get("leader", ""))
    return ""


async def _connect(servers: Sequence[str]) -> Any:
    async def heard(error: Exception) -> None:
        """Lost connections are what failover is about; nothing has to be said of them."""

    return await optional("nats").connect(
        list(servers), reconnect_time_wait=0.1, max_reconnect_attempts=-1, connect_timeout=1, error_cb=heard
    )


class _Pipeline:
    """Many requests at once over one inbox, answers counted: quicker than the client's own way for each alone."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._answers: asyncio.Queue[bytes] = asyncio.Queue()
        self._inbox = ""
        self._subscription: Any = None

    async def ask(self, requests: Iterable[tuple[str, bytes]], seconds: float = 10 * TRY_SECONDS) -> None:
        """Sends all, with so many unanswered at most, and returns when each was confirmed."""
        if self._subscription is None:
            self._inbox = self._connection.new_inbox()
            self._subscription = await self._connection.subscribe(self._inbox, cb=self._hear)
        open_requests = 0
        async with asyncio.timeout(seconds):
            for subject, data in requests:
                await self._connection.publish(subject, data, reply=self._inbox)
                open_requests += 1
                if open_requests > _MOST_OPEN:
                    _confirmed(await self._answers.get())
                    open_requests -= 1
            for _ in range(open_requests):
                _confirmed(await self._answers.get())

    async def _hear(self, message: Any) -> None:
        self._answers.put_nowait(message.data)

    async def close(self) -> None:
        """Its subscription."""
        if self._subscription is not None:
            await self._subscription.unsubscribe()


def _confirmed(answer: bytes) -> None:
    # A publication is answered with where it was stored, an ack with nothing.
    if b'"error"' in answer or answer.startswith(b"-ERR"):
        raise Refused(f"the server refused: {answer.decode(errors='replace')}")


class _Session:
    """A connection, and what its workers share."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._stream = connection.jetstream(timeout=TRY_SECONDS)

    async def worker(self, name: str) -> Worker:
        """With a subscription of its own."""
        subscription = await self._stream.pull_subscribe_bind(_CONSUMER, _STREAM)
        return _Worker(self._connection, self._stream, subscription)

    async def fill(self, numbers: Sequence[int]) -> None:
        """Published without waiting for each other."""
        pipeline = _Pipeline(self._connection)
        await pipeline.ask(((_SUBJECT, body_of(number)) for number in numbers), _FILL_SECONDS)
        await pipeline.close()

    async def depth(self) -> int:
        """Messages of the stream; acked ones are not among them."""
        return int((await self._stream.stream_info(_STREAM)).state.messages)

    async def close(self) -> None:
        """The connection."""
        await self._connection.close()


class _Worker:
    def __init__(self, connection: Any, stream: Any, subscription: Any) -> None:
        self._stream = stream
        self._subscription = subscription
        self._pipeline = _Pipeline(connection)
        self._timeouts = (TimeoutError, optional("nats.errors").TimeoutError)

    async def enqueue(self, numbers: Sequence[int]) -> None:
        if len(numbers) == 1:
            await self._stream.publish(_SUBJECT, body_of(numbers[0]), timeout=TRY_SECONDS)
        else:
            await self._pipeline.ask([(_SUBJECT, body_of(number)) for number in numbers])

    async def lease(self, many: int) -> list[Claim]:
        while True:
            try:
                messages = await self._subscription.fetch(many, timeout=TRY_SECONDS)
            except self._timeouts:
                continue
            return [Claim(number_of(message.data), message) for message in messages]

    async def complete(self, claims: Sequence[Claim]) -> None:
        if len(claims) == 1:
            answer = await claims[0].handle.ack_sync(timeout=TRY_SECONDS)
            _confirmed(answer.data)
        else:
            await self._pipeline.ask([(claim.handle.reply, b"+ACK") for claim in claims])

    async def close(self) -> None:
        await self._pipeline.close()
        await self._subscription.unsubscribe()
