"""TLS: for nodes among each other, for clients, and for clients that must say who they are."""

import asyncio
from pathlib import Path

import grpc
import pytest
from frontdoor.cluster_fixture import Cluster, Runner, Stubs, fresh, info_of, items

from resourcelease import v1
from resourcelease.node.certs import CertsError, make_authority, make_certificate
from resourcelease.node.config import ConfigError, load


def credentials(directory: Path, name: str = "") -> grpc.ChannelCredentials:
    ca = (directory / "ca.pem").read_bytes()
    if not name:
        return grpc.ssl_channel_credentials(ca)
    key, chain = (directory / f"{name}-key.pem").read_bytes(), (directory / f"{name}.pem").read_bytes()
    return grpc.ssl_channel_credentials(ca, key, chain)


def settings(directory: Path) -> dict[str, object]:
    files = {"tls.ca": "ca.pem", "tls.cert": "node.pem", "tls.key": "node-key.pem"}
    return {key: directory / file for key, file in files.items()}


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certs")
    make_authority(directory)
    for name in ("node", "alice"):
        make_certificate(directory, name)
    return directory


async def refused(channel: grpc.aio.Channel) -> None:
    """It never gets through."""
    async with channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await Stubs(channel).admin.Status(v1.StatusRequest(), timeout=2)
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def test_three_nodes_and_their_clients_over_mutual_tls(run: Runner, tmp_path: Path, certs: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path, 3, settings(certs) | {"tls.require_client_cert": True})
        try:
            for name in cluster.members:
                await cluster.start(name)
            await cluster.leader()
            address = cluster.nodes["n1"].grpc_address
            await refused(grpc.aio.insecure_channel(address))
            await refused(grpc.aio.secure_channel(address, credentials(certs)))
            async with grpc.aio.secure_channel(address, credentials(certs, "alice")) as channel:
                stubs, namespace = Stubs(channel), fresh()
                await stubs.lease.Enqueue(v1.EnqueueRequest(namespace=namespace, items=items("a")), timeout=10)
                lease = v1.LeaseRequest(namespace=namespace, wait_ms=5000)
                [held] = (await stubs.lease.Lease(lease, timeout=10)).leases
                found = await stubs.admin.Items(v1.ItemsRequest(namespace=namespace, peer_id="alice"), timeout=10)
                assert [item.handle for item in found.items] == [held.handle]
                lease.peer_id = "alice/2"
                assert not (await stubs.lease.Lease(v1.LeaseRequest(peer_id="alice/2", wait_ms=0), timeout=10)).leases
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stubs.lease.Lease(v1.LeaseRequest(peer_id="bob", wait_ms=0), timeout=10)
                assert info_of(caught.value)[:3] == (grpc.StatusCode.PERMISSION_DENIED, "FORBIDDEN", "peer_id")
        finally:
            await cluster.stop_all()

    run(scenario())


def test_a_node_without_a_certificate_is_not_let_in(run: Runner, tmp_path: Path, certs: Path) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path, 2)
        try:
            await cluster.start("n1", **settings(certs))
            await cluster.start("n2")
            with pytest.raises(TimeoutError):
                await run_for(cluster)
        finally:
            await cluster.stop_all()

    async def run_for(cluster: Cluster) -> None:
        async with asyncio.timeout(1.5):
            await cluster.leader()

    run(scenario())


def test_the_header_of_a_proxy_is_believed_only_where_that_is_said(run: Runner, tmp_path: Path) -> None:
    async def scenario() -> None:
        for trusted in (False, True):
            cluster = Cluster(tmp_path / str(trusted), 1, {"grpc.trust_principal_header": trusted})
            try:
                await cluster.start("n1")
                call = cluster.stubs["n1"].lease.Lease(
                    v1.LeaseRequest(peer_id="bob", wait_ms=0), timeout=10, metadata=(("x-client-principal", "alice"),)
                )
                if not trusted:
                    assert not (await call).leases
                    continue
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert info_of(caught.value)[1] == "FORBIDDEN"
            finally:
                await cluster.stop_all()

    run(scenario())


def test_what_is_wrong_with_certificates_is_said(run: Runner, tmp_path: Path, certs: Path) -> None:
    text = tmp_path / "text.pem"
    text.write_text("hello")
    broken = tmp_path / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    wrong: list[tuple[dict[str, object], str]] = [
        ({"tls.cert": tmp_path / "none.pem"}, "tls.cert: .*none.pem cannot be read: No such file"),
        ({"tls.key": text}, "tls.key: .*text.pem is not a PEM file"),
        ({"tls.key": certs / "alice-key.pem"}, "tls.key: .*alice-key.pem is not the key of the certificate"),
        ({"tls.ca": broken}, "tls.ca: .*broken.pem holds no certificate"),
    ]

    async def scenario() -> None:
        for change, told in wrong:
            cluster = Cluster(tmp_path / "d", 1, settings(certs) | change)
            with pytest.raises(ConfigError, match=told):
                await cluster.start("n1")

    run(scenario())


def test_certificates_for_trying_out(tmp_path: Path) -> None:
    with pytest.raises(CertsError, match="there is no authority"):
        make_certificate(tmp_path, "n1")
    ca = make_authority(tmp_path)
    assert (tmp_path / "ca-key.pem").stat().st_mode & 0o077 == 0
    before = ca.read_bytes()
    assert make_authority(tmp_path).read_bytes() == before
    with pytest.raises(CertsError, match="no name for a certificate"):
        make_certificate(tmp_path, "../n1")
    certificate = make_certificate(tmp_path, "n1", ("10.0.0.1", "n1.example"))
    assert "BEGIN CERTIFICATE" in certificate.read_text()
    assert (tmp_path / "n1-key.pem").stat().st_mode & 0o077 == 0
    with pytest.raises(CertsError, match="exists already"):
        make_certificate(tmp_path, "n1")


def test_nothing_but_loopback_without_tls() -> None:
    base = {"node.id": "n1", "node.dir": "/d", "cluster.id": "c"}
    for key in ("grpc.listen", "peers.listen"):
        with pytest.raises(ConfigError, match="insecure_listen_anywhere = true"):
            load(None, {}, base | {key: "0.0.0.0:7101"})
        load(None, {}, base | {key: "0.0.0.0:7101", "tls.insecure_listen_anywhere": True})
