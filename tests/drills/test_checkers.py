"""The checkers that read books and events: each lets the truth pass and notices what was falsified."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from chaos.drills.checkers import (
    events_tell_the_same,
    nothing_is_lost,
    one_line_of_events,
    one_verdict,
    store_was_protected,
)
from chaos.drills.cluster import Cluster
from chaos.drills.history import OK, Call, History, read
from chaos.drills.node import Node
from chaos.drills.peace import remembered_mib, usage_problems
from chaos.drills.verdict import leftovers, log_problems
from chaos.drills.watch import Usage
from drills.stories import ack, enqueue, grant, life, look, write
from resourcelease import v1
from resourcelease.model.options import QueueOptions

BOOKS = {"verdict": one_verdict, "lost": nothing_is_lost, "store": store_was_protected}


@pytest.mark.parametrize("checker", BOOKS.values(), ids=BOOKS.keys())
def test_the_truth_passes(checker: Callable[[list[Call]], list[str]]) -> None:
    assert checker([*life(1), *life(2)]) == []


@pytest.mark.parametrize(
    ("checker", "calls", "word"),
    [
        (one_verdict, [*life(), ack("complete", 2, 3, 99)], "2 verdicts"),
        (one_verdict, [*life(), ack("bury", 2, 3, 11)], "2 verdicts"),
        (nothing_is_lost, [enqueue(), look("gone")], "acknowledged"),
        (nothing_is_lost, [enqueue(), look("waiting")], "acknowledged"),
        (nothing_is_lost, [enqueue()], "nobody looked"),
        (nothing_is_lost, [*life()[:-1], look("dead")], "told to be done"),
        (store_was_protected, [*life(), grant(0.2, 0.3, 11, by="thief")], "two holders"),
        (store_was_protected, [*life(), write(0.5, 11, by="thief")], "granted to"),
        (store_was_protected, [*life(), write(0.5, 99)], "granted to"),
        (store_was_protected, [*life(), grant(1, 2, 12), write(3, 12)], "completed under"),
        (store_was_protected, [*life(), grant(0, 0.1, 5), write(3, 5)], "after fence"),
    ],
)
def test_what_is_false_is_noticed(checker: Callable[[list[Call]], list[str]], calls: list[Call], word: str) -> None:
    assert any(word in sentence for sentence in checker(calls))


def _events() -> list[v1.Event]:
    """The events of ``life()``."""
    kinds = v1.EventType
    options = QueueOptions()
    told = [
        v1.Event(type=kinds.EVENT_TYPE_CONFIGURED, metadata={"options": json.dumps(vars_of(options))}),
        v1.Event(type=kinds.EVENT_TYPE_ENQUEUE, handle=v1.Handle(sequence_id=1, attempt=1)),
        v1.Event(
            type=kinds.EVENT_TYPE_LEASE_GRANTED,
            handle=v1.Handle(sequence_id=1, attempt=1, lease_id=11),
            peer_id="w",
            metadata={"deadline_ms": "9000"},
        ),
        v1.Event(type=kinds.EVENT_TYPE_COMPLETED, handle=v1.Handle(sequence_id=1, attempt=1, lease_id=11), peer_id="w"),
    ]
    told[1].payload.resource_type = told[1].payload.resource_id = "r"
    told[1].payload.request_id = "request-1"
    for number, event in enumerate(told, 1):
        event.sequence_number = event.raft_index = number
        event.lease_clock = 100 * number
        event.namespace = "resourcelease"
    return told


def vars_of(options: QueueOptions) -> dict[str, object]:
    return {name: getattr(options, name) for name in ("dedup_window_ms",)}


def test_true_events_pass() -> None:
    assert one_line_of_events(_events()) == []
    assert events_tell_the_same(_events(), life()) == []


def test_gaps_and_falling_clocks_are_noticed() -> None:
    events = _events()
    assert "was told after" in one_line_of_events([*events[:1], *events[2:]])[0]
    assert one_line_of_events([*events[:1], *events[2:]], breaks=[3]) == []
    events[3].lease_clock = 1
    assert "falls" in one_line_of_events(events)[0]


def test_lives_that_events_cannot_have_are_noticed() -> None:
    again = _events()
    stolen = v1.Event()
    stolen.CopyFrom(again[2])
    stolen.sequence_number, stolen.raft_index, stolen.handle.lease_id, stolen.peer_id = 4, 4, 12, "thief"
    assert "one live lease" in one_line_of_events([*again[:3], stolen])[0]
    late = _events()
    late[3].lease_clock = 9_001
    assert "a late ack is refused" in one_line_of_events(late)[0]


@pytest.mark.parametrize(
    ("events", "calls", "word"),
    [
        (_events()[:3], life(), "no event says so"),
        (_events(), [call for call in life() if call.kind != "complete"], "nobody asked"),
        (_events(), [call for call in life() if call.kind != "enqueue"], "nobody asked"),
        (_events(), [*life()[:3], ack("complete", 0.4, 0.5, 11, refused="LEASE_LOST")], "was refused"),
        (_events(), [replace(call, fence=13) if call.kind == "grant" else call for call in life()], "no event says so"),
        (_events(), [replace(call, item=7) if call.kind == "enqueue" else call for call in life()], "the events say 1"),
    ],
)
def test_events_against_clients(events: list[v1.Event], calls: list[Call], word: str) -> None:
    assert any(word in sentence for sentence in events_tell_the_same(events, calls))


def test_a_request_that_made_two_items_is_noticed() -> None:
    events = _events()
    twice = v1.Event()
    twice.CopyFrom(events[1])
    twice.handle.sequence_id = 2
    assert any("made item 1 and item 2" in sentence for sentence in events_tell_the_same([*events, twice], life()))


def test_memory_and_files_that_stay_are_noticed() -> None:
    usual = Usage(60.0, 30, 12)
    assert usage_problems({"n1": (usual, usual), "n2": (None, usual)}, 160.0) == []
    assert "memory" in usage_problems({"n1": (usual, Usage(900.0, 30, 12))}, 160.0)[0]
    assert "open files" in usage_problems({"n1": (usual, Usage(60.0, 300, 12))}, 160.0)[0]
    assert "threads" in usage_problems({"n1": (usual, Usage(60.0, 30, 120))}, 160.0)[0]


def test_what_a_node_remembers_for_an_hour_is_not_taken_for_a_leak() -> None:
    calls = [Call("p1", "enqueue", at, at + 0.1, OK, request=f"r{at}") for at in range(0, 4000, 2)]
    retry = Call("p1", "enqueue", 3990.0, 3991.0, OK, request="r3990")
    assert remembered_mib([*calls, retry, Call("w1", "beat", 3999.0, 3999.1, OK)], 4000.0) == 1800 / 1024


def test_alarms_and_leftovers_of_nodes_are_noticed(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "", {})
    cluster = cast(Cluster, SimpleNamespace(nodes={"n1": node}))
    node.data.mkdir(parents=True)
    node.log.write_text("INFO all is well\n")
    assert log_problems(cluster, []) == leftovers(cluster) == []
    node.log.write_text("ERROR ConsensusBroken: two histories\n")
    (node.data / "install.plan").touch()
    assert "two histories" in log_problems(cluster, [])[0]
    assert log_problems(cluster, ["two histories"]) == []
    assert leftovers(cluster) == ["n1 has left install.plan behind"]


def test_a_history_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    history = History(tmp_path / "history.jsonl")
    for call in life():
        history.add(call)
    history.close()
    assert read(tmp_path / "history.jsonl") == life()
    assert len(list(history.of("complete", outcome=OK))) == 1
