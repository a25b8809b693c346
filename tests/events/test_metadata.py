"""What an event says in words: its own values, and not those of its neighbours."""

from resourcelease.model.eventdata import DrainData, EventType, RequeuesData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call


def requeued(due_ms: int | list[int], count: int) -> Record:
    ids = list(range(1, count + 1))
    data = RequeuesData(ids, 2, ids, due_ms, "failed")
    return Record(EventType.REQUEUED, data, call=Call("jobs"), count=count)


def test_each_event_has_its_own_due_time() -> None:
    told = [dict(event.metadata) for event in requeued([70, 0, 90], 3).events()]
    assert told == [{"cause": "failed", "due_ms": "70"}, {"cause": "failed"}, {"cause": "failed", "due_ms": "90"}]


def test_a_due_time_for_all_is_that_of_each() -> None:
    assert [event.metadata["due_ms"] for event in requeued(70, 2).events()] == ["70", "70"]


def test_what_is_told_grows_with_the_events_and_no_faster() -> None:
    def size(count: int) -> int:
        events = requeued(list(range(1_000_000, 1_000_000 + count)), count).events()
        return sum(len(text) for event in events for text in event.metadata.values())

    assert size(200) == 2 * size(100)


def test_the_last_page_of_a_bundle_does_not_speak_of_more() -> None:
    def page(more: bool) -> dict[str, str]:
        record = Record(EventType.DRAIN_SNAPSHOT, DrainData([1], 1, "b", 2, b"", more), call=Call("jobs"))
        return dict(next(iter(record.events())).metadata)

    assert page(True) == {"bundle_id": "b", "number": "2", "more": "true"}
    assert page(False) == {"bundle_id": "b", "number": "2"}
