"""Events as bytes are, message for message, those that are spelled out one by one."""

from pathlib import Path

import pytest
from segments.work import Work

from resourcelease import v1
from resourcelease.frontdoor.eventbytes import encoded, response
from resourcelease.frontdoor.eventwire import message_of
from resourcelease.frontdoor.varint import varint
from resourcelease.model.eventdata import (
    BackpressureData,
    Data,
    EffectData,
    EventType,
    IdsData,
    PeerData,
    RedrivesData,
    RejectionData,
    RequeuesData,
)
from resourcelease.model.events import Record
from resourcelease.model.ops import Call
from resourcelease.storage.segments import Log

_RECORDED = Path(__file__).parents[1] / "segments" / "recorded"


def histories() -> dict[str, list[Record]]:
    found = {path.name: list(Log(path).records()) for path in sorted(_RECORDED.iterdir()) if path.is_dir()}
    for seed in (1, 2, 3):
        work = Work(seed)
        work.run(150)
        found[f"work {seed}"] = list(work.finish().records)
    found["made by hand"] = [made(*each) for each in HAND_MADE]
    return found


HAND_MADE: list[tuple[EventType, Data, int]] = [
    (EventType.REDRIVEN, RedrivesData([4, 900_000_000], [2, 3], 70), 2),
    (EventType.REQUEUED, RequeuesData([4, 5], 2, [1 << 40, 9], [70, 0], "failed"), 2),
    (EventType.RELEASED, IdsData([4, 5], 1), 2),
    (EventType.DISCARDED, IdsData([4], [9]), 1),
    (EventType.EFFECT, EffectData("begin", "e", 4, 1, 9, None), 1),
    (EventType.EFFECT, EffectData("version", "v", 0, 0, 0, 3), 1),
    (EventType.BACKPRESSURE, BackpressureData(True, 9, 3), 1),
    (EventType.REJECTED, RejectionData("NOT_FOUND", "ünknown"), 1),
    (EventType.PEER_CHANGED, PeerData("p", "joined", ""), 1),
]


def made(type_: EventType, data: Data, count: int) -> Record:
    record = Record(type_, data, call=Call("jobs", "me", "alice", "op-1", 0, {"trace": "t"}), count=count)
    record.sequence, record.index, record.term, record.clock_ms, record.wall_ms = 77, 5, 2, 1_000, 1_767_603_600_000
    record.pending, record.active = 3, 0
    return record


@pytest.mark.parametrize("with_bodies", [False, True])
def test_every_record_gives_the_messages_of_its_events(with_bodies: bool) -> None:
    seen: set[EventType] = set()
    for records in histories().values():
        for record in records:
            told = response(encoded(record, with_bodies=with_bodies), 7, 9)
            assert (told.next_sequence, told.head_sequence) == (7, 9)
            spelled = [message_of(event, with_body=with_bodies) for event in record.events()]
            assert list(told.events) == spelled
            # Also which fields are there at all.
            assert [list(event.ListFields()) for event in told.events] == [list(e.ListFields()) for e in spelled]
            seen.add(record.type)
    assert seen == set(EventType)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16383, 16384, (1 << 28) - 1, 1 << 28, 1 << 35, (1 << 62) - 1])
def test_numbers_are_encoded_as_protobuf_does(number: int) -> None:
    assert v1.Event.FromString(b"\x08" + varint(number)).sequence_number == number
    assert b"\x08" + varint(number) == (v1.Event(sequence_number=number).SerializeToString() or b"\x08\x00")
