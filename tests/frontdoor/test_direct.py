"""Direct streams: what does not belong on one is turned away, and clients that cannot get there use gRPC."""

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.rpc import status_pb2

from frontdoor.cluster_fixture import Cluster, Runner, ended, fresh, items, until
from resourcelease import v1
from resourcelease.cli.processes import free_ports
from resourcelease.client import Client, Tls
from resourcelease.client.conversation import Conversation
from resourcelease.client.direct import DirectStream, Place
from resourcelease.frontdoor import direct
from resourcelease.frontdoor.direct import DirectDoor
from resourcelease.model.direct import CLOSE, MAGIC, MESSAGE, OPEN, STATUS, Frames, frame
from resourcelease.node.certs import make_authority, make_certificate

# A transport hands over no more at once.
ONE_READ = 256 * 1024
CONVERSE_PUT = v1.ConverseMethod.CONVERSE_METHOD_ENQUEUE


@pytest.fixture(scope="module")
def trio(run: Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Nodes of this file's own: it counts their connections, and other tests may leave some behind for a while."""
    cluster = Cluster(tmp_path_factory.mktemp("direct"), 3)
    run(cluster.start_all())
    yield cluster
    run(cluster.stop_all())


def door_of(cluster: Cluster, name: str) -> DirectDoor:
    found = cluster.nodes[name].door._direct
    assert found is not None
    return found


def place_of(cluster: Cluster, name: str = "n1") -> Place:
    place = cluster.stubs[name].place
    assert place is not None
    return place


def opening(place: Place, method: str = "Converse", **fields: object) -> bytes:
    told = {"method": method, "key": place.key, **fields}
    return frame(OPEN, v1.DirectOpen(**told).SerializeToString())  # type: ignore[arg-type]


def put(number: int, namespace: str) -> bytes:
    request = v1.EnqueueRequest(namespace=namespace, operation_id=fresh("op"), items=items("a"))
    asked = v1.ConverseRequest()
    asked.calls.add(number=number, method=CONVERSE_PUT, request=request.SerializeToString())
    return frame(MESSAGE, asked.SerializeToString())


async def answer_to(place: Place, *pieces: bytes) -> list[tuple[int, bytes]]:
    """All frames that the node sends until it hangs up."""
    reader, writer = await asyncio.open_connection(place.host, place.port)
    frames = Frames(1 << 20)
    found: list[tuple[int, bytes]] = []
    try:
        for piece in pieces:
            writer.write(piece)
        async with asyncio.timeout(10):
            while data := await reader.read(1 << 16):
                found += frames.cut(data)
    except ConnectionError:
        pass
    finally:
        writer.close()
    return found


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes a connection and says nothing."""
    while await reader.read(1 << 16):
        pass
    writer.close()
    await writer.wait_closed()


def conversation_of(client: Client) -> Conversation:
    (found,) = client._caller._conversations._current.values()
    return found


@pytest.mark.parametrize(
    "pieces",
    [
        [b"GET / HTTP/1.1\r\n\r\n"],
        [b"RLDIRCT2"],
        [MAGIC, frame(MESSAGE, b"")],
        [MAGIC, frame(CLOSE)],
        [MAGIC, frame(OPEN, b"\xff" * 100)],
        [MAGIC, (1 << 31).to_bytes(4, "big") + b"\x01"],
        [MAGIC, bytes(5)],
        ["open", "open"],
        ["open", frame(9)],
        ["open", frame(STATUS)],
        ["open", frame(CLOSE), frame(MESSAGE)],
        ["open", (17 << 20).to_bytes(4, "big") + b"\x02"],
    ],
)
def test_what_does_not_belong_ends_the_connection(trio: Cluster, run: Runner, pieces: list[bytes | str]) -> None:
    async def scenario() -> None:
        place = place_of(trio)
        said = [piece if isinstance(piece, bytes) else opening(place) for piece in pieces]
        frames = await answer_to(place, *([MAGIC] if pieces[0] == "open" else []), *said)
        # Some come too late to be noticed: the stream has ended in order before.
        assert frames in ([], [(STATUS, b"")])
        talk = DirectStream(place, "Converse", None, None, lambda: None, lambda: None)
        await talk.write(v1.ConverseRequest())
        await talk.done_writing()
        assert (await ended(talk)).code() is grpc.StatusCode.OK
        await until(lambda: len(door_of(trio, "n1")) == 0)

    run(scenario())


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"key": "another"}, grpc.StatusCode.UNAVAILABLE),
        ({"key": ""}, grpc.StatusCode.UNAVAILABLE),
        ({"key": "schlüssel"}, grpc.StatusCode.UNAVAILABLE),
        ({"method": "Enqueue"}, grpc.StatusCode.UNIMPLEMENTED),
        ({"method": ""}, grpc.StatusCode.UNIMPLEMENTED),
        ({"headers": {f"h{i}": "" for i in range(65)}}, grpc.StatusCode.RESOURCE_EXHAUSTED),
        ({"headers": {"h": "x" * 20_000}}, grpc.StatusCode.RESOURCE_EXHAUSTED),
    ],
)
def test_an_opening_that_is_refused_says_why(
    trio: Cluster, run: Runner, fields: dict[str, object], code: grpc.StatusCode
) -> None:
    async def scenario() -> None:
        place = place_of(trio)
        ((kind, content),) = await answer_to(place, MAGIC, opening(place, **fields))  # type: ignore[arg-type]
        status = status_pb2.Status.FromString(content)
        assert (kind, status.code) == (STATUS, code.value[0])
        assert status.message

    run(scenario())


def test_it_may_come_byte_by_byte(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        place, namespace = place_of(trio), fresh()
        text = MAGIC + opening(place) + put(1, namespace) + frame(CLOSE)
        frames = await answer_to(place, *(text[at : at + 1] for at in range(len(text))))
        assert [kind for kind, _ in frames] == [MESSAGE, STATUS]
        (answer,) = v1.ConverseResponse.FromString(frames[0][1]).answers
        assert v1.EnqueueResponse.FromString(answer.response).results[0].enqueued.sequence_id == 1

    run(scenario())


def test_whoever_does_not_begin_is_not_waited_for(trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(direct, "_BEGIN_S", 0.05)
        assert await answer_to(place_of(trio), MAGIC) == []

    run(scenario())


def test_there_is_a_bound_on_connections(trio: Cluster, run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        place, door = place_of(trio), door_of(trio, "n1")
        monkeypatch.setattr(direct, "_CONNECTIONS_MAX", 1)
        first = DirectStream(place, "Converse", None, None, lambda: None, lambda: None)
        await first.write(v1.ConverseRequest())
        await until(lambda: len(door) == 1)
        assert await answer_to(place, MAGIC, opening(place)) == []
        first.cancel()
        await until(lambda: len(door) == 0)

    run(scenario())


def test_a_client_that_does_not_read_is_not_read_either(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        place, door = place_of(trio), door_of(trio, "n1")
        _, writer = await asyncio.open_connection(place.host, place.port)
        writer.write(MAGIC + opening(place))
        await until(lambda: len(door) == 1)
        (connection,) = door._connections
        # Each is refused, which takes more room than asking did.
        nonsense = v1.ConverseRequest()
        for number in range(1, 1001):
            nonsense.calls.add(number=number, method=CONVERSE_PUT, request=b"\xff")
        flood = frame(MESSAGE, nonsense.SerializeToString())
        transport = connection._transport
        assert transport is not None
        while transport.is_reading():
            writer.write(flood)
            await asyncio.sleep(0)
        assert not transport.is_closing()
        assert connection._unread_bytes <= direct._UNREAD_BYTES + len(flood) + ONE_READ
        writer.transport.abort()
        await until(lambda: len(door) == 0)

    run(scenario())


def test_clients_go_direct_where_they_can(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        leader = await trio.leader()
        door = door_of(trio, leader)
        async with Client(trio.nodes[leader].grpc_address, namespace=fresh()) as client:
            await client.enqueue("table", "orders")
            assert len(door) == 1
            stream = client.leases(credit=1)
            assert (await anext(stream)).resource_id == "orders"
            assert len(door) == 2
            await stream.aclose()
        await until(lambda: len(door) == 0)

    run(scenario())


def test_a_conversation_that_was_begun_on_grpc_moves(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        address = trio.nodes["n1"].grpc_address
        async with Client(address, namespace=fresh(), prefer_leader=False) as client:
            await client.enqueue("table", "a")
            assert not conversation_of(client).direct
            node = client._nodes.current()
            await until(lambda: node.goes_direct)
            await client.enqueue("table", "b")
            assert conversation_of(client).direct
            assert len(door_of(trio, "n1")) == 1

    run(scenario())


@pytest.mark.parametrize("end", ["in order", "broken off", "refused"])
def test_a_stream_that_has_ended_leaves_nothing_for_the_collector(trio: Cluster, run: Runner, end: str) -> None:
    async def scenario() -> None:
        door, place, namespace = door_of(trio, "n1"), place_of(trio), fresh("ns")
        kept = len(door)

        async def stream(number: int) -> None:
            reader, writer = await asyncio.open_connection(place.host, place.port)
            writer.write(MAGIC + opening(place) + put(1, namespace))
            assert await reader.read(1 << 16)
            if end == "refused":
                # A number that is under way, or none at all.
                writer.write(put(0, namespace))
            elif end == "in order":
                writer.write(frame(CLOSE))
            else:
                writer.transport.abort()
                return
            while await reader.read(1 << 16):
                pass
            writer.close()

        def alive() -> int:
            return sum(type(thing) is direct._Connection for thing in gc.get_objects())

        gc.collect()
        gc.disable()
        try:
            before = alive()
            for number in range(10):
                await stream(number)
            await until(lambda: len(door) == kept)
            await until(lambda: alive() == before)
        finally:
            gc.enable()

    run(scenario())


@pytest.mark.parametrize("wrong", ["port", "key"])
def test_where_no_direct_stream_comes_about_grpc_is_used(trio: Cluster, run: Runner, wrong: str) -> None:
    async def scenario() -> None:
        leader = await trio.leader()
        async with Client(trio.nodes[leader].grpc_address, namespace=fresh()) as client:
            await client._nodes.look_around()
            node = client._nodes.current()
            assert node.place is not None
            assert node.goes_direct
            (unused,) = free_ports(1)
            node.place = node.place._replace(port=unused) if wrong == "port" else node.place._replace(key="stale")
            await client.enqueue("table", "orders")
            (lease,) = await client.lease(1, wait=10)
            await lease.complete()
            if wrong == "port":
                assert not node.goes_direct
                assert len(door_of(trio, leader)) == 0
            else:
                # A node that has started anew is asked where it is now.
                await until(lambda: node.place is not None and node.place.key != "stale" and node.goes_direct)

    run(scenario())


def test_a_port_that_does_not_answer_costs_half_a_second(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        leader = await trio.leader()
        server = await asyncio.start_server(silence, "127.0.0.1", 0)
        place = Place("127.0.0.1", server.sockets[0].getsockname()[1], "key")
        failed: list[bool] = []
        stubs = trio.stubs[leader]
        context = Tls().context()
        stream = DirectStream(place, "Converse", None, (context, ""), stubs.lease.Converse, lambda: failed.append(True))
        await stream.write(v1.ConverseRequest())
        await stream.done_writing()
        assert await stream.read() is grpc.aio.EOF
        assert failed == [True]
        server.close()
        await server.wait_closed()

    run(scenario())


def test_it_can_be_switched_off(solo: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        node = await solo.start("n1", **{"grpc.direct": "off"})
        await solo.leader()
        async with Client(node.grpc_address) as client:
            (member,) = await client.members()
            assert member.direct_address == ""
            await client.enqueue("table", "orders")
            assert not conversation_of(client).direct

    run(scenario())


def test_what_is_told_can_be_said(solo: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        node = await solo.start("n1", **{"grpc.direct_advertise": "public.example:7301"})
        async with Client(node.grpc_address) as client:
            (member,) = await client.members()
            assert member.direct_address.startswith("public.example:7301#")

    run(scenario())


def test_a_port_that_is_taken_is_said(solo: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        server = await asyncio.start_server(silence, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen for direct streams at 127.0.0.1:{port}"):
            await solo.start("n1", **{"grpc.direct": f"127.0.0.1:{port}"})
        server.close()
        await server.wait_closed()

    run(scenario())


@pytest.mark.parametrize("shown", [True, False])
def test_over_tls(run: Runner, tmp_path: Path, shown: bool) -> None:
    async def scenario() -> None:
        make_authority(tmp_path)
        for name in ("node", "alice"):
            make_certificate(tmp_path, name)
        files = {"tls.ca": "ca.pem", "tls.cert": "node.pem", "tls.key": "node-key.pem"}
        overrides: dict[str, object] = {key: tmp_path / file for key, file in files.items()}
        cluster = Cluster(tmp_path, 1, overrides | {"tls.require_client_cert": True})
        try:
            node = await cluster.start("n1")
            await cluster.leader()
            place = place_of(cluster)
            tls = Tls(tmp_path / "ca.pem", tmp_path / "alice.pem", tmp_path / "alice-key.pem")
            if not shown:
                # Without a certificate nothing is let in.
                stranger = Tls(tmp_path / "ca.pem").context()
                stream = DirectStream(place, "Converse", None, (stranger, ""), lambda: None, lambda: None)
                with pytest.raises((grpc.aio.AioRpcError, AttributeError)):
                    await stream.read()
                return
            async with Client(node.grpc_address, tls=tls) as client:
                await client.enqueue("table", "orders")
                assert len(door_of(cluster, "n1")) == 1
                (connection,) = door_of(cluster, "n1")._connections
                assert connection.auth_context()["x509_common_name"] == [b"alice"]
        finally:
            await cluster.stop_all()

    run(scenario())
