"""Event numbers and fields stand in every log ever written."""

import pytest
from wire_files import comment_of, enums, fields

from resourcelease.model.eventdata import EventType as MachineEventType
from resourcelease.v1 import Event, EventType

NUMBERS = {
    "UNSPECIFIED": 0,
    "ENQUEUE": 1,
    "LEASE_GRANTED": 2,
    "HEARTBEAT": 3,
    "COMPLETED": 4,
    "FAILED": 5,
    "DRAIN_SNAPSHOT": 6,
    "RESTORE_SNAPSHOT": 7,
    "LEASE_EXPIRED": 8,
    "REQUEUED": 9,
    "DEAD_LETTERED": 10,
    "BACKPRESSURE": 11,
    "CONFIGURED": 12,
    "PEER_CHANGED": 13,
    "REDRIVEN": 14,
    "EFFECT": 15,
    "RELEASED": 16,
    "REJECTED": 17,
    "DISCARDED": 18,
}

EVENT_FIELDS = {
    "sequence_number",
    "type",
    "occurred_at",
    "lease_clock",
    "raft_index",
    "raft_term",
    "namespace",
    "shard_id",
    "handle",
    "peer_id",
    "principal",
    "payload",
    "error",
    "queue",
    "metadata",
}


def test_event_types_have_their_numbers_for_ever() -> None:
    declared = {value.name.removeprefix("EVENT_TYPE_"): value.number for value in enums()["EventType"].value}
    assert declared == NUMBERS


def test_generated_event_types_are_the_declared_ones() -> None:
    assert {f"EVENT_TYPE_{name}": number for name, number in NUMBERS.items()} == dict(EventType.items())


def test_the_machine_knows_the_same_event_types() -> None:
    assert {type_.name: int(type_) for type_ in MachineEventType} | {"UNSPECIFIED": 0} == NUMBERS


def test_an_event_has_the_fields_of_the_contract() -> None:
    assert fields("Event").keys() == EVENT_FIELDS


def test_the_handle_names_item_attempt_and_fence() -> None:
    assert list(fields("Handle")) == ["sequence_id", "attempt", "lease_id"]
    assert "fence" in comment_of("Handle.lease_id")


def test_an_event_of_a_later_release_survives_a_reader_of_today() -> None:
    later = Event(sequence_number=7, type=1000).SerializeToString()  # type: ignore[arg-type]
    assert Event.FromString(later).type == 1000
    assert Event.FromString(later).SerializeToString() == later


@pytest.mark.parametrize("name", [name for name in NUMBERS if name != "UNSPECIFIED"])
def test_an_event_type_says_which_fields_it_fills(name: str) -> None:
    comment = comment_of(f"EventType.EVENT_TYPE_{name}")
    assert "handle" in comment or "metadata:" in comment
