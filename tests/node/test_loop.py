"""The event loop that a node's process runs on."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest
import uvloop
from frontdoor.cluster_fixture import items

from resourcelease.cli.processes import LocalCluster
from resourcelease.client import Client
from resourcelease.node.config import ConfigError
from resourcelease.node.run import loop_factory


def test_uvloop_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert loop_factory("auto") is loop_factory("uvloop") is uvloop.new_event_loop
    assert loop_factory("asyncio") is None
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert loop_factory("auto") is None
    with pytest.raises(ConfigError, match="uvloop"):
        loop_factory("uvloop")


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_node_serves_and_stops_on_either(tmp_path: Path, loop: str) -> None:
    async def scenario() -> None:
        cluster = LocalCluster.plan(tmp_path / "cluster", 1)
        (node,) = cluster.nodes
        text = node.config.read_text().replace("[node]\n", f'[node]\nloop = "{loop}"\n')
        node.config.write_text(text + '\n[log]\nlevel = "debug"\n')
        cluster.start()
        try:
            async with Client(cluster.endpoints) as client:
                await cluster.ready(client)
                await client.enqueue_many(items("a", "b"))
                leases = await client.lease(2, wait=5)
                await client.complete_many(leases)
            node.signal(signal.SIGTERM)
            async with asyncio.timeout(20):
                while node.exit_code is None:  # noqa: ASYNC110 - a process sets no event
                    await asyncio.sleep(0.02)
            assert node.exit_code == 0
        finally:
            await cluster.stop()
        assert f"runs on {loop}" in node.log.read_text()

    asyncio.run(scenario())
