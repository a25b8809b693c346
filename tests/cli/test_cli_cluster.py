"""Commands against a real node: the life of an item, looking, and steering."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_cluster import Cli, dev, run

from resourcelease import sync
from resourcelease.client import Conflict
from resourcelease.client.bundlefile import BundleFile


@pytest.fixture(scope="module")
def endpoints() -> Iterator[list[str]]:
    with dev("--nodes", "1") as told:
        yield told["endpoints"]


@pytest.fixture
def cli(endpoints: list[str], capsys: Any) -> Cli:
    return Cli(endpoints, capsys)


def test_the_life_of_an_item(cli: Cli) -> None:
    space = ("-n", "life")
    assert cli("enqueue", "table", "orders", "hello", "--priority", "9", *space) == "item 1\n"
    assert "orders" in cli("items", *space)
    assert "item 1" in cli("explain", "1", *space)
    (lease,) = cli.json("lease", *space)
    assert lease["payload"]["resource_id"] == "orders"
    assert "holds" in cli("explain", "1", *space) or lease["peer_id"] in cli("explain", "1", *space)
    assert cli("heartbeat", lease["handle"], *space) == f"{lease['handle']} extended\n"
    assert cli("heartbeat", "--all", *space) == "all leases extended\n"
    assert cli("complete", lease["handle"], *space) == f"{lease['handle']} completed\n"
    refused = cli("fail", lease["handle"], *space, code=1)
    assert "ALREADY_SETTLED" in refused
    assert refused.count("\n") == 1
    assert cli("lease", *space) == "nothing is pending\n"


def test_failing_giving_back_and_redriving(cli: Cli) -> None:
    space = ("-n", "failing")
    cli("enqueue", "table", "orders", *space)
    (lease,) = cli.json("lease", *space)
    cli("fail", lease["handle"], "--give-back", *space)
    (lease,) = cli.json("lease", *space)
    assert lease["attempt"] == 1
    cli("fail", lease["handle"], "-m", "no such table", "--code", "GONE", "--no-requeue", *space)
    assert "GONE: no such table" in cli("items", "--state", "dead", *space)
    assert cli("redrive", "1", *space) == "1 back in the queue\n"
    assert "NOT_FOUND" in cli("redrive", "1", *space, code=1)


def test_many_items_from_lines_and_bodies_as_they_are(cli: Cli, tmp_path: Path) -> None:
    lines = tmp_path / "items.jsonl"
    lines.write_text(
        "".join(json.dumps({"resource_type": "t", "resource_id": str(n), "body": f"b{n}"}) + "\n" for n in range(3))
    )
    assert cli("enqueue", "--lines", str(lines), "-n", "lines") == "3 items, 1 to 3\n"
    assert cli("lease", "-c", "3", "--body", "-n", "lines") == "b0b1b2"
    lines.write_text('{"resource_type": "t"}\n')
    assert f"{lines}:1:" in cli("enqueue", "--lines", str(lines), "-n", "lines", code=1)


def test_drained_and_restored(cli: Cli, tmp_path: Path) -> None:
    file = str(tmp_path / "bundle")
    for number in range(5):
        cli("enqueue", "table", str(number), "-n", "from")
    assert cli("drain", file, "--page-items", "2", "-n", "from") == f"5 items drained to {file}\n"
    assert "exists already" in cli("drain", file, "-n", "from", code=1)
    assert cli("restore", file, "-n", "to") == "5 items restored\n"
    assert cli("restore", file, "-n", "to") == "0 items restored, 5 were there already\n"
    assert len(cli.json("items", "-n", "to")) == 5
    assert cli("drain", "--resume", file, "-n", "from") == f"0 items drained to {file}\n"
    Path(file).write_bytes(Path(file).read_bytes()[:-3])
    assert "cut off" in cli("restore", file, "-n", "other", code=1)


def test_a_drain_that_broke_off_is_gone_on_with(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "bundle"
    with sync.Client(cli.endpoints, namespace="broken-off") as client:
        client.enqueue_many({"resource_type": "t", "resource_id": str(number)} for number in range(5))
        pages = client.drain(bundle_id="b", page_items=2)
        with BundleFile.create(file, "b") as bundle:
            bundle.append(next(pages).page)
            # This one has left the cluster and half of it reached the disk.
            bundle.append(next(pages).page)
        file.write_bytes(file.read_bytes()[:-3])
    assert cli("drain", "--resume", str(file), "-n", "broken-off") == f"3 items drained to {file}\n"
    assert cli("restore", str(file), "-n", "broken-off") == "5 items restored\n"


def test_steering_a_namespace(cli: Cli) -> None:
    space = ("-n", "steered")
    assert (
        cli.json("configure", "--max-attempts", "3", "--high-watermark", "10", "--low-watermark", "5", *space)[
            "max_attempts"
        ]
        == 3
    )
    assert "max_attempts" in cli("configure", *space)
    assert cli("pause", *space) == "steered is paused\n"
    assert "paused" in cli("queues", "steered")
    assert "PAUSED" in cli("lease", *space, code=1)
    assert cli("resume", *space) == "steered is resumed\n"
    assert "off" in cli("backpressure", "steered")
    assert "INVALID_ARGUMENT" in cli("configure", "--high-watermark", "1", "--low-watermark", "7", *space, code=1)


def test_looking_at_the_cluster(cli: Cli) -> None:
    cli("enqueue", "table", "orders", "-n", "looking")
    cli("lease", "-n", "seen")
    shown = cli.json("status")
    assert shown["nodes"][0]["status"]["role"] == "LEADER"
    assert "leader" in cli("status")
    assert "n1" in cli("members")
    assert "all nodes agree" in cli("verify")
    assert cli.json("snapshot")[0]["node_id"] == "n1"
    assert cli("transfer", "n1").startswith("n1 leads")
    assert "cli-" in cli("peers")
    assert cli.json("queues", "looking")[0]["summary"]["depth"]["pending"] == 1


def test_events_as_lines(cli: Cli) -> None:
    cli("enqueue", "table", "orders", "-n", "events")
    lines = cli("events", "-n", "events", "--type", "enqueue").splitlines()
    assert len(lines) == 1
    assert "table/orders" in lines[0]
    event = cli.json("events", "-n", "events", "--type", "ENQUEUE")
    assert event["payload"]["resource_id"] == "orders"
    assert "there is no event type" in cli("events", "--type", "nonsense", code=2)


def test_a_pipe_that_closes_is_no_error(endpoints: list[str]) -> None:
    import subprocess
    import sys

    command = f"{sys.executable} -m resourcelease events --endpoints {endpoints[0]} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert not done.stderr


def test_endpoints_and_namespace_come_from_the_environment(endpoints: list[str]) -> None:
    env = {"RESOURCELEASE_ENDPOINTS": endpoints[0], "RESOURCELEASE_NAMESPACE": "from-env"}
    done = run("enqueue", "table", "orders", "--body-file", "-", env=env, given="from stdin")
    assert (done.returncode, done.stdout, done.stderr) == (0, "item 1\n", "")
    assert json.loads(run("lease", "--json", env=env).stdout)[0]["payload"]["body_size"] == len("from stdin")


def test_versions_and_effects_are_the_same_for_everyone(endpoints: list[str]) -> None:
    with sync.Client(endpoints, namespace="effects") as client:
        assert client.require_version("copy-in-parts", 1, 3) == 3
        with pytest.raises(Conflict):
            client.require_version("copy-in-parts", 1, 2)
        client.enqueue("table", "orders")
        (lease,) = client.lease()
        with lease:
            assert client.begin_effect("mail/1", lease) is None
            assert client.finish_effect("mail/1", lease, b"sent") == b"sent"
            assert client.begin_effect("mail/1", lease) == b"sent"
