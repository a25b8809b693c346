"""The command line, the figures and the page of a run, without any peer."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from bench.compare import effort_of, parse
from bench.comparison import report
from bench.comparison.page import UNFAIR, write_page
from bench.comparison.schedule import rivals
from bench.comparison.shapes import FULL, QUICK, SHAPES
from bench.peers import PEERS
from bench.peers.etcd_messages import message

STEPS = ("enqueue", "lease", "complete", "whole")


def _run(rate: float, **more: Any) -> dict[str, Any]:
    return {"rate": rate, "times_us": {step: [1000.0, 2000.0] for step in STEPS}, **more}


def _depth(*rates: float) -> dict[str, Any]:
    levels = [_run(rate, depth=10**at, filled=10**at, fill_s=1.0) for at, rate in enumerate(rates, 3)]
    return {"levels": levels, "size": {"items": 10, "memory_bytes_per_item": 5, "disk_bytes_per_item": 7}}


RUNS: dict[tuple[str, str], list[dict[str, Any]]] = {
    ("ours", "32x1"): [_run(300.0), _run(320.0)],
    ("etcd", "32x1"): [_run(100.0), _run(100.0)],
    ("nats", "32x1"): [_run(900.0), _run(900.0)],
    ("ours", "half"): [_run(150.0, asked_rate=155.0)],
    ("etcd", "half"): [_run(50.0, asked_rate=50.0)],
    ("ours", "depth"): [_depth(100.0, 98.0)],
    ("ours", "failover"): [{"step_s": [0.2, 0.4], "life_s": [0.3, 0.5], "errors": {}, "left": 0}],
}


@pytest.fixture
def told() -> dict[str, Any]:
    names = ["ours", "etcd", "nats"]
    found = report.results(RUNS)
    ratios = report.ratios(RUNS, found, names)
    return {
        "machine": report.machine(),
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 60.0,
        "effort": {"quick": True, "loop": "asyncio", "rounds": 2},
        "peers": {name: {**report.peers_used(["ours"])["ours"], "title": name} for name in names},
        "skipped": {"redis": "redis-server is not installed"},
        "results": found,
        "ratios": ratios,
        "targets": report.targets(found, ratios),
        "failures": [],
    }


def test_all_peers_and_shapes_are_the_default() -> None:
    parsed = parse(["--json", "x.json"])
    assert parsed.peers == list(PEERS)
    assert parsed.shapes == list(SHAPES)
    assert effort_of(parsed) == FULL
    assert effort_of(parse(["--quick", "--json", "x"])) == QUICK


def test_named_ones_are_run_in_the_usual_order() -> None:
    parsed = parse(["--peers", "etcd,ours", "--shapes", "32x10, 1x1", "--rounds", "5", "--json", "x"])
    assert (parsed.peers, parsed.shapes) == (["ours", "etcd"], ["1x1", "32x10"])
    assert effort_of(parsed).rounds == 5


@pytest.mark.parametrize("wrong", [["--peers", "kafka"], ["--shapes", "2x2"], ["--peers", ","], []])
def test_what_there_is_not_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*wrong, *(["--json", "x"] if wrong else [])])
    assert "error" in capsys.readouterr().err


def test_rivals_replicate_and_fsync() -> None:
    assert rivals(list(PEERS)) == ["postgres", "nats-sync", "etcd"]


def test_a_result_has_the_figures_that_others_read(told: dict[str, Any]) -> None:
    for result in told["results"]:
        assert {"peer", "shape", "lifecycles_per_s", "p50_ms", "p99_ms"} <= set(result)
    json.dumps(told)


def test_ratios_leave_out_who_does_not_fsync(told: dict[str, Any]) -> None:
    assert told["ratios"]["32x1"] == {"ratio": 3.1, "lowest": 3.0, "highest": 3.2, "best_peer": "etcd"}
    assert told["ratios"]["depth held"] == {"ours": 0.98}
    assert told["ratios"]["depth held rounds"] == {"ours": [0.98]}


def test_targets_say_what_was_met(told: dict[str, Any]) -> None:
    judged = {one["target"]: one["met"] for one in told["targets"]}
    assert judged == {"32x1": True, "half p99": True, "depth held": True, "failover p99 s": True}


def test_the_table_has_a_row_a_peer(told: dict[str, Any]) -> None:
    lines = report.table(told).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["ours", "etcd", "nats", "ratio"]


def test_the_page_shows_every_shape_and_what_is_unfair(told: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    write_page(told, page, tmp_path / "figures.json")
    text = page.read_text()
    assert all(one in text for one in UNFAIR)
    assert "redis was skipped" in text
    assert "(figures.json)" in text
    pictures = sorted((tmp_path / "benchmarks").iterdir())
    assert len(pictures) == 5
    for picture in pictures:
        ElementTree.parse(picture)
        assert f"(benchmarks/{picture.name})" in text


def test_the_messages_for_etcd_are_as_on_the_wire() -> None:
    put = message("PutRequest")(key=b"k", value=b"v", lease=3)
    txn = message("TxnRequest")(success=[message("RequestOp")(request_put=put)])
    assert txn.SerializeToString() == bytes.fromhex("120a12080a016b1201761803")
