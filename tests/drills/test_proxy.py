"""The proxy between nodes: whole, cut in one direction, slow, reset, and refusing."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import msgpack
import pytest

from chaos.drills.loopback import ProxyNetwork
from chaos.drills.network import CUT, Rule

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def _port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[ProxyNetwork, Connection, list[bytes], int]]:
    """Node a's connection with node b, who says back all that he is told; what b was told; the proxy's port."""
    heard: list[bytes] = []
    target, port = _port(), _port()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1024):
            heard.append(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", target)
    network = ProxyNetwork()
    await network.start()
    try:
        await network.open([("b", "peers", port, target)])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        hello = msgpack.packb(["resourcelease", 1, "cluster", "a", "b", 1])
        writer.write(len(hello).to_bytes(4, "big") + hello)
        await reader.readexactly(4 + len(hello))
        heard.clear()
        yield network, (reader, writer), heard, port
        writer.close()
    finally:
        await network.close()
        server.close()


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await scene()

    asyncio.run(bounded())


async def _silent(reader: asyncio.StreamReader, seconds: float = 0.3) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


def test_what_is_cut_arrives_when_the_cut_ends() -> None:
    async def scene() -> None:
        async with proxied() as (network, (reader, writer), heard, _):
            await network.apply({("a", "b"): CUT})
            writer.write(b"x")
            assert await _silent(reader)
            assert heard == []
            await network.apply({})
            assert await reader.read(1) == b"x"

    run(scene)


def test_one_direction_is_cut_and_the_other_is_not() -> None:
    async def scene() -> None:
        async with proxied() as (network, (reader, writer), heard, _):
            await network.apply({("b", "a"): CUT})
            writer.write(b"x")
            assert await _silent(reader)
            assert heard == [b"x"]

    run(scene)


def test_delay_counts_both_ways() -> None:
    async def scene() -> None:
        async with proxied() as (network, (reader, writer), _, _):
            await network.apply({("a", "b"): Rule(delay_ms=100), ("b", "a"): Rule(delay_ms=100)})
            began = asyncio.get_running_loop().time()
            writer.write(b"x")
            assert await reader.read(1) == b"x"
            assert 0.19 <= asyncio.get_running_loop().time() - began < 2.0

    run(scene)


def test_a_reset_ends_connections() -> None:
    async def scene() -> None:
        async with proxied() as (network, (reader, _), _, _):
            await network.reset([("b", "a")])
            with suppress(ConnectionResetError):
                assert await reader.read(1) == b""

    run(scene)


def test_before_a_node_that_is_down_no_port_is_open() -> None:
    async def scene() -> None:
        async with proxied() as (network, _, _, port):
            await network.refuse(["b"])
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", port)
            await network.refuse([])
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()

    run(scene)


def test_ports_are_nobody_elses_while_nobody_listens_there() -> None:
    ours, theirs = ProxyNetwork().ports, ProxyNetwork().ports
    taken = ours.take(8)
    assert len(set(taken)) == 8
    assert not any(theirs._keep(port) for port in taken)
    ours.close()
    assert all(theirs._keep(port) for port in taken)
    theirs.close()
