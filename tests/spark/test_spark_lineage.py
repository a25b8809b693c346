"""Lineage of a known story: what it tells, and what it finds when something was planted."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid5

import pytest
from sparkstory import Story

from resourcelease.cli import main
from resourcelease.spark.lineage import Lineage, load_events
from resourcelease.spark.lineage_anomalies import anomalies
from resourcelease.spark.lineage_job import STEPS, Summary, write_lineage
from resourcelease.spark.openlineage import RUN_IDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# item, resource, attempt, fence, peer, principal, granted, ended, outcome, error, waited, held
SPANS = [
    (1, "orders", 1, 1, "p1", "alice", 6, 8, "completed", None, 1_000, 4_000),
    (2, "users", 1, 2, "p1", "alice", 7, 9, "failed", "E_DISK", 1_000, 5_000),
    (3, "parts", 1, 3, "p2", "bob", 12, 14, "given_back", None, 10_000, 2_000),
    (2, "users", 2, 4, "p2", "bob", 13, 15, "expired", None, 4_000, 31_000),
    (3, "parts", 1, 5, "p1", "alice", 18, 19, "completed", None, 3_688_000, 2_000),
    (4, "late", 1, 6, "p1", "alice", 23, 24, "drained", None, 1_000, 1_000),
]


@pytest.fixture(scope="module")
def events(spark: "SparkSession", story: Story) -> "DataFrame":
    return load_events(spark, str(story.directory)).cache()


@pytest.fixture(scope="module")
def written(
    spark: "SparkSession", story: Story, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Summary, list[str]]:
    out = tmp_path_factory.mktemp("lineage") / "out"
    steps: list[str] = []
    done = write_lineage(spark, [str(story.directory)], out, progress=steps.append)
    return out, done, steps


def table(spark: "SparkSession", out: Path, name: str, *order: str) -> list[dict[str, Any]]:
    return [
        row.asDict(recursive=True) for row in spark.read.parquet(str(out / f"{name}.parquet")).orderBy(*order).collect()
    ]


def test_spans(spark: "SparkSession", written: tuple[Path, Summary, list[str]]) -> None:
    names = (
        "item", "resource_id", "attempt", "fence", "peer_id", "principal", "granted_sequence", "ended_sequence",
        "outcome", "error_code", "waited_ms", "held_ms",
    )  # fmt: skip
    rows = table(spark, written[0], "spans", "granted_sequence")
    assert [tuple(row[name] for name in names) for row in rows] == SPANS
    assert {row["namespace"] for row in rows} == {"jobs"}


def test_items(spark: "SparkSession", written: tuple[Path, Summary, list[str]]) -> None:
    rows = table(spark, written[0], "items", "namespace", "item")
    told = [
        (row["resource_id"], row["state"], row["peers"], [(step["peer_id"], step["outcome"]) for step in row["path"]])
        for row in rows
    ]
    assert told == [
        ("orders", "completed", ["p1"], [("p1", "completed")]),
        ("users", "dead", ["p1", "p2"], [("p1", "failed"), ("p2", "expired")]),
        ("parts", "completed", ["p2", "p1"], [("p2", "given_back"), ("p1", "completed")]),
        ("late", "drained", ["p1"], [("p1", "drained")]),
        ("other", "pending", [], []),
    ]


def test_times_failures_and_churn(spark: "SparkSession", written: tuple[Path, Summary, list[str]]) -> None:
    times = table(spark, written[0], "times", "hour")
    assert [(row["leases"], row["waited_ms_median"], row["held_ms_max"]) for row in times] == [
        (4, 1_000, 31_000), (2, 1_000, 2_000),
    ]  # fmt: skip
    failures = table(spark, written[0], "failures", "peer_id")
    assert [(row["peer_id"], row["resource_id"], row["outcome"], row["last_message"]) for row in failures] == [
        ("p1", "users", "failed", "no space"),
        ("p2", "users", "expired", None),
    ]
    churn = table(spark, written[0], "churn", "namespace", "hour")
    assert [(row["peers"], row["handovers"], row["joined"], row["disconnected"]) for row in churn] == [
        (2, 1, 2, 1), (1, 1, 0, 0),
    ]  # fmt: skip


def test_a_true_log_has_no_anomalies(written: tuple[Path, Summary, list[str]]) -> None:
    _, done, steps = written
    assert done == Summary("c1", 1, 24, 24, 6, 5, {}, str(written[0]))
    assert steps == list(STEPS)


# What is kept of the log, and which fields of which events are changed; then what is found, and where.
PLANTED: dict[str, tuple[str, dict[str, tuple[int, Any]], set[tuple[str, int]]]] = {
    # The first lease of item 3 never ends, and another is granted; two events are gone.
    "lost": (
        "sequence_number not in (14, 20, 21)",
        {},
        {("overlapping_holders", 18), ("gap", 15), ("gap", 22)},
    ),
    "forged": (
        "true",
        {"handle.lease_id": (18, 2), "handle.sequence_id": (23, 1), "type": (23, "COMPLETED")},
        {("fence_out_of_order", 18), ("ended_without_lease", 19), ("ended_without_lease", 23), ("verdict_twice", 23)},
    ),
    "doubled": (
        "true",
        {"handle.lease_id": (14, 1), "handle.sequence_id": (14, 1)},
        {("ended_twice", 14), ("overlapping_holders", 18)},
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_found_and_nothing_else(events: "DataFrame", name: str) -> None:
    from pyspark.sql import functions as f

    keep, values, expected = PLANTED[name]
    changed = events.where(keep)
    for path, (number, value) in values.items():
        column, _, field = path.partition(".")
        new = f.col(column).withField(field, f.lit(value)) if field else f.lit(value)
        changed = changed.withColumn(column, f.when(f.col("sequence_number") == number, new).otherwise(f.col(column)))
    found = anomalies(Lineage(changed)).collect()
    assert {(row["kind"], row["sequence_number"]) for row in found} == expected
    details = {row["kind"]: row["detail"] for row in found}
    if name == "lost":
        assert details["gap"] == "events 20 to 21 are missing"
        assert details["overlapping_holders"] == "fence 5 of p1 was granted while fence 3 of p2 held it"


def test_an_event_that_is_there_twice_is_found(events: "DataFrame") -> None:
    doubled = events.union(events.where("sequence_number = 17"))
    found = anomalies(Lineage(doubled)).collect()
    assert [(row["kind"], row["sequence_number"]) for row in found] == [("repeated", 17)]


def test_run_events_are_those_of_openlineage(written: tuple[Path, Summary, list[str]]) -> None:
    told = [json.loads(line) for line in (written[0] / "openlineage.jsonl").read_text().splitlines()]
    assert [one["eventType"] for one in told] == (
        ["START", "START", "COMPLETE", "FAIL", "START", "START", "ABORT", "FAIL", "START", "COMPLETE", "START", "ABORT"]
    )
    for one in told:
        assert not list(breaches(one))
        lease = one["run"]["facets"]["resourcelease_lease"]
        assert one["run"]["runId"] == str(uuid5(RUN_IDS, f"c1/jobs/{lease['item']}/{lease['fence']}"))
        assert re.fullmatch(r"2026-01-05T\d\d:\d\d:\d\d\.\d{3}Z", one["eventTime"])
        assert one["job"] == {"namespace": "resourcelease://c1/jobs", "name": "table"}
        assert one["producer"]
        assert one["schemaURL"].startswith("https://openlineage.io/spec/")
        assert one["inputs"][0]["namespace"] == "table"
        assert one["outputs"] == []
        assert ("errorMessage" in one["run"]["facets"]) == (one["eventType"] == "FAIL")
    assert told[3]["run"]["facets"]["errorMessage"]["message"] == "no space"
    assert told[0]["eventTime"] == "2026-01-05T09:00:01.000Z"
    # One START for each run, first, and then one of the ends.
    runs: dict[str, list[str]] = {}
    for one in told:
        runs.setdefault(one["run"]["runId"], []).append(one["eventType"])
    assert all(kinds[0] == "START" and len(kinds) == 2 for kinds in runs.values())


def breaches(event: dict[str, Any]) -> Iterator[str]:
    """What of a run event is not as OpenLineage 2-0-2 demands; its JSON schema, in our own words."""
    for name in ("eventTime", "producer", "schemaURL", "run", "job"):
        if name not in event:
            yield f"{name} is required"
    if event["eventType"] not in ("START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"):
        yield f"eventType is {event['eventType']}"
    if datetime.fromisoformat(event["eventTime"]).tzinfo is None:
        yield "eventTime names no zone"
    if str(UUID(event["run"]["runId"])) != event["run"]["runId"]:
        yield "runId is no UUID"
    facets = event["run"].get("facets", {})
    named = {"job": [event["job"]], "inputs": event.get("inputs", []), "outputs": event.get("outputs", [])}
    for kind, things in named.items():
        for thing in things:
            if not (isinstance(thing.get("namespace"), str) and isinstance(thing.get("name"), str)):
                yield f"{kind}: namespace and name are required, and texts"
    uris = {"producer": event["producer"], "schemaURL": event["schemaURL"]}
    for name, facet in facets.items():
        uris |= {f"{name}.{key}": facet.get(key, "") for key in ("_producer", "_schemaURL")}
    yield from (
        f"{name} is no URI: {uri}" for name, uri in uris.items() if not re.match(r"[a-z][a-z0-9+.-]*:\S+$", uri)
    )
    error = facets.get("errorMessage", {"message": "", "programmingLanguage": ""})
    if not all(isinstance(error.get(key), str) for key in ("message", "programmingLanguage")):
        yield "errorMessage needs message and programmingLanguage"
    known = {"eventType", "eventTime", "producer", "schemaURL", "run", "job", "inputs", "outputs"}
    yield from (f"{name} is no field of a run event" for name in event.keys() - known)


def test_what_openlineage_does_not_allow_is_seen() -> None:
    sound: dict[str, Any] = {
        "eventType": "START", "eventTime": "2026-01-05T09:00:01.000Z", "producer": "urn:a", "schemaURL": "urn:b",
        "run": {"runId": str(RUN_IDS), "facets": {"f": {"_producer": "urn:a", "_schemaURL": "urn:b"}}},
        "job": {"namespace": "n", "name": "j"}, "inputs": [], "outputs": [],
    }  # fmt: skip
    assert not list(breaches(sound))
    for change in (
        {"eventType": "BEGIN"}, {"eventTime": "2026-01-05T09:00:01"}, {"job": {"namespace": "n"}}, {"more": 1},
        {"inputs": [{"name": "x"}]}, {"producer": "nobody"}, {"run": {"runId": RUN_IDS.hex}},
        {"run": {"runId": str(RUN_IDS), "facets": {"f": {"_producer": "urn:a"}}}},
        {"run": {"runId": str(RUN_IDS), "facets": {"errorMessage": {"message": "m"}}}},
    ):  # fmt: skip
        assert list(breaches(sound | change)), change


def test_the_report_loads_nothing(written: tuple[Path, Summary, list[str]]) -> None:
    text = (written[0] / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img|iframe|object)\b|@import|url\(", text)
    assert set(re.findall(r"https?://[^\"\s<]+", text)) == {"http://www.w3.org/2000/svg"}
    for said in ("the log is in order", "users", "E_DISK", "p2 (given back) → p1 (completed)", "1 h 1 min", "<svg"):
        assert said in text


def test_a_browser_shows_the_report(written: tuple[Path, Summary, list[str]], tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no Chromium is installed: apt install chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    page = (written[0] / "report.html").as_uri()
    shown = subprocess.run(
        [browser, *options, "--dump-dom", page], capture_output=True, text=True, timeout=90, check=True
    )
    assert shown.stdout.count("<svg") >= 6
    assert "the log is in order" in shown.stdout
    picture = tmp_path / "report.png"
    subprocess.run([browser, *options, f"--screenshot={picture}", page], capture_output=True, timeout=90, check=True)
    assert picture.stat().st_size > 10_000


def test_what_is_elsewhere_is_not_overwritten(spark: "SparkSession", story: Story, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(FileExistsError, match="holds something else than a report"):
        write_lineage(spark, [str(story.directory)], tmp_path)


def test_the_command_writes_a_report(
    spark: "SparkSession", story: Story, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda session: None)  # it is everybody's here
    out = tmp_path / "out"
    assert main(["lineage", str(story.directory), "--out", str(out), "--json", "--verify"]) == 0
    assert json.loads(capsys.readouterr().out)["leases"] == 6
    assert main(["lineage", str(tmp_path / "nothing"), "--out", str(out)]) == 1
    assert "there is no log here" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [f"{name}.parquet" for name in STEPS[:7]] + ["lineage.json", "openlineage.jsonl", "report.html"]
    )


def test_the_command_names_what_is_damaged(
    spark: "SparkSession", copied: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    path = next(copied.glob("*.rlseg"))
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data)
    assert main(["lineage", str(copied), "--out", str(tmp_path / "out")]) == 1
    assert re.search(rf"{path}: at byte \d+: ", capsys.readouterr().err)
