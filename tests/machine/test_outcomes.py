"""What is kept of an answer in which items did not all fare alike: little, and yet every word of it.

Sizes are bytes of what is packed; an answer is one string of bytes, wherever it is kept.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_properties import Step, Tape, Writer, entry, histories, same, same_answers, small_limits, step_lists

from resourcelease.machine import Machine, fold
from resourcelease.machine.outcomes import Outcome, outcomes_of, packed, refusals_of, runs_of
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EventType
from resourcelease.model.events import Record
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import (
    ENTRY_VERSION,
    Call,
    Complete,
    Configure,
    Enqueue,
    Fail,
    Heartbeat,
    Lease,
    Op,
    Redrive,
    pack_op,
)
from resourcelease.model.results import Redriven

MANY = limits.MAX_ITEMS_PER_OP
# What docs/machine.md promises: so much, and so much for each item that did not fare like its neighbours.
SMALL = 512
PER_ITEM = 24

CALL = Call("jobs", "worker", operation_id="op")
FREE = Call("jobs", "worker")


def columns(size: int, **more: Any) -> bytes:
    return ItemColumns(size, "table", "orders")._replace(**more).packed()


def ids(number: int) -> list[int]:
    """Ids far apart and in no order, as none of this cluster ever were."""
    return [(1 << 61) + pow(3, 1000 + place, (1 << 61) - 1) for place in range(number)]


class Story:
    """A machine, what was done to it, and the log of it."""

    def __init__(self, *ops: Op, version: int = ENTRY_VERSION) -> None:
        self.tape = Tape(Machine("c1"))
        self.version = version
        for op in ops:
            self.do(op)

    def do(self, *ops: Op) -> list[Any]:
        before = len(self.tape.results)
        self.tape.play([bytes(msgpack.packb([self.version, 0, 0, list(map(pack_op, ops))]))])
        return self.tape.results[before:]

    def kept(self) -> Any:
        """What is kept of the answer to ``op``."""
        (record,) = [record for record in self.tape.records if record.answer and record.call.operation_id == "op"]
        assert record.answer is not None
        ((_, (take, code, content)),) = [
            kept
            for key, row in self.tape.machine.dump_rows()
            if key[:1] == b"a"
            for kept in msgpack.unpackb(row)
            if kept[0][2] == "op"
        ]
        assert [take, code, content] == record.answer
        return content

    def asked_again(self, op: Op) -> list[Any]:
        """The answer to a retry: here, after the rows were stored and loaded, and where the log was folded."""
        folded = fold("c1", [Record.decode(record.encoded) for record in self.tape.records])
        loaded = Machine.load_rows(self.tape.machine.dump_rows())
        answers = []
        for machine in (self.tape.machine, loaded, folded):
            sequence = machine.sequence_number
            applied = machine.apply(machine.applied_index + 1, 1, entry(0, [op]))
            assert (applied.records, machine.sequence_number) == ([], sequence)
            answers += applied.results
        return answers


def full() -> Story:
    return Story(Configure(FREE, {"capacity": 1}), Enqueue(FREE, columns(1)))


def under_pressure() -> Story:
    return Story(Configure(FREE, {"high_watermark": 1, "low_watermark": 0}), Enqueue(FREE, columns(1)))


def almost_full() -> Story:
    return Story(Configure(FREE, {"capacity": 3}))


def buried(number: int) -> Callable[[], Story]:
    def story() -> Story:
        granted = Lease(FREE, number)
        dead = list(range(1, number + 1))
        return Story(
            Configure(FREE, {"dead_letter_limit": MANY}),
            Enqueue(FREE, columns(number)),
            granted,
            Fail(FREE, dead, 1, dead, requeue=False, delays_ms=None, failures=None),
        )

    return story


def holding(number: int) -> Callable[[], Story]:
    return lambda: Story(Enqueue(FREE, columns(number)), Lease(FREE, 1))


ALIKE: dict[str, tuple[Callable[[], Story], Op, int]] = {
    "full": (full, Enqueue(CALL, columns(MANY)), MANY),
    "backpressure": (under_pressure, Enqueue(CALL, columns(MANY)), MANY),
    "three of them fit": (almost_full, Enqueue(CALL, columns(MANY)), MANY - 3),
    "wrong ones and full": (full, Enqueue(CALL, columns(MANY, priority=[*[10] * (MANY - 1), 0])), MANY),
    "one request id": (full, Enqueue(CALL, columns(MANY, request_id="r")), MANY),
    "dead letters that are none": (holding(1), Redrive(CALL, list(range(100, 100 + MANY))), MANY),
    "dead letters, and some that are none": (buried(3), Redrive(CALL, list(range(1, MANY + 1))), MANY - 3),
    "leases that were never granted": (
        holding(MANY),
        Complete(CALL, list(range(1, MANY + 1)), 1, list(range(1, MANY + 1))),
        MANY - 1,
    ),
    "heartbeats likewise": (
        holding(MANY),
        Heartbeat(CALL, list(range(1, MANY + 1)), 1, list(range(1, MANY + 1))),
        MANY - 1,
    ),
    "failures likewise": (
        holding(MANY),
        Fail(CALL, list(range(1, MANY + 1)), 1, list(range(1, MANY + 1)), True, None, None),
        MANY - 1,
    ),
}


@pytest.mark.parametrize("name", ALIKE)
def test_many_that_fare_alike_take_no_more_than_a_few(name: str) -> None:
    make, op, refused = ALIKE[name]
    story = make()
    (answer,) = story.do(op)
    assert len(answer.refused) == refused
    content = story.kept()
    assert type(content) is bytes
    assert len(content) < SMALL
    for record in story.tape.records:
        if record.type is EventType.REJECTED:
            assert len(record.encoded) < 2 * SMALL
    same_answers([answer] * 3, story.asked_again(op))


def _every_other() -> tuple[Story, Op]:
    """Wrong, known, new, and, once it is full, refused: no item fares like the one before."""
    story = Story(Configure(FREE, {"capacity": 2000}), Enqueue(FREE, columns(1000, request_id=_names(1000))))
    names = [f"r{place * 7 % 1000}" if place % 3 == 1 else None for place in range(MANY)]
    priorities = [11 if place % 3 == 0 else 0 for place in range(MANY)]
    return story, Enqueue(CALL, columns(MANY, request_id=names, priority=priorities))


def _names(number: int) -> list[str]:
    return [f"r{place}" for place in range(number)]


def _too_large() -> tuple[Story, Op]:
    bodies = [bytes(8 + place * 7919 % 100) if place % 2 else b"" for place in range(MANY)]
    return Story(Configure(FREE, {"max_body_bytes": 7})), Enqueue(CALL, columns(MANY, body=bodies))


def _scattered_leases() -> tuple[Story, Op]:
    return holding(1)(), Complete(CALL, [1, *ids(MANY - 1)], 1, [1, *reversed(ids(MANY - 1))])


def _scattered_dead() -> tuple[Story, Op]:
    named = ids(MANY)
    named[::2] = [1 + place * 7919 % 5000 for place in range(MANY // 2)]
    return buried(5000)(), Redrive(CALL, named)


@pytest.mark.parametrize("make", [_every_other, _too_large, _scattered_leases, _scattered_dead])
def test_many_that_all_fare_otherwise_have_a_bound(make: Callable[[], tuple[Story, Op]]) -> None:
    story, op = make()
    (answer,) = story.do(op)
    assert len(answer.refused) > MANY // 3
    content = story.kept()
    assert type(content) is bytes
    assert len(content) < SMALL + PER_ITEM * MANY
    same_answers([answer] * 3, story.asked_again(op))


def test_what_is_new_known_wrong_and_refused_comes_back_in_its_place() -> None:
    story = Story(Configure(FREE, {"capacity": 4}), Enqueue(FREE, columns(1, request_id="known")))
    names = [None, "known", None, "a", "a", None, "known", None]
    op = Enqueue(CALL, columns(8, request_id=names, priority=[0, 0, 99, 0, 0, 0, 0, 0]))
    (answer,) = story.do(op)
    assert (list(answer.sequence_ids), list(answer.duplicates)) == ([2, 1, 0, 3, 3, 4, 1, 0], [1, 4, 6])
    assert {place: refusal.reason for place, refusal in answer.refused.items()} == {
        2: Reason.INVALID_ARGUMENT,
        7: Reason.QUEUE_FULL,
    }
    assert answer.refused[2].field == "items[2].priority"
    same_answers([answer] * 3, story.asked_again(op))


def test_a_later_take_asks_again_after_a_list_that_was_refused_whole() -> None:
    story = full()
    (refused,) = story.do(Enqueue(CALL, columns(MANY)))
    assert set(refused.sequence_ids) == {0}
    (accepted,) = story.do(Configure(FREE, {"capacity": MANY + 1}), Enqueue(CALL._replace(take=1), columns(MANY)))[1:]
    assert list(accepted.sequence_ids) == list(range(2, MANY + 2))


FULL = "the queue holds 1 items, its capacity; enqueue again when some have ended"
# As entries of version 1 keep them: refusals one by one.
LISTED: list[tuple[Callable[[int], Story], Op, list[Any]]] = [
    (
        lambda version: Story(Configure(FREE, {"capacity": 1}), version=version),
        Enqueue(CALL, columns(3)),
        [[1, 0, 0], [], [[place, "QUEUE_FULL", FULL, ""] for place in (1, 2)], 1],
    ),
    (
        lambda version: Story(Configure(FREE, {"capacity": 1}), Enqueue(FREE, columns(1)), version=version),
        Enqueue(CALL, columns(2)),
        [[0, 0], [], [[place, "QUEUE_FULL", FULL, ""] for place in (0, 1)], 1],
    ),
    (
        lambda version: Story(Enqueue(FREE, columns(2)), Lease(FREE, 1), version=version),
        Complete(CALL, [1, 2], 1, [1, 2]),
        [2, [[1, "NOT_FOUND", "no such lease was ever granted here: item 2, fence 2", ""]], 0],
    ),
    (
        lambda version: Story(Enqueue(FREE, columns(1)), version=version),
        Redrive(CALL, [1, 7]),
        [[], [[place, "NOT_FOUND", f"item {number} is not a dead letter", ""] for place, number in ((0, 1), (1, 7))]],
    ),
]


@pytest.mark.parametrize("case", LISTED)
def test_answers_of_entries_of_version_1_stay_as_they_are_and_are_read(
    case: tuple[Callable[[int], Story], Op, list[Any]],
) -> None:
    make, op, content = case
    older, newer = make(1), make(ENTRY_VERSION)
    (answer,), (of_newer,) = older.do(op), newer.do(op)
    assert older.kept() == content
    assert type(newer.kept()) is bytes
    same_answers([answer], [of_newer])
    # A retry comes in an entry of the newer version.
    same_answers([answer] * 3, older.asked_again(op))


@histories()
@given(step_lists)
def test_the_version_of_entries_changes_only_how_answers_are_kept(steps: list[Step]) -> None:
    with small_limits():
        history = Writer().write(steps)
        older, newer = Tape(Machine("c1")), Tape(Machine("c1"))
        # No cut of segments, which is by size, and so may be elsewhere.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(limits, "SEGMENT_BYTES", 1 << 40)
            patch.setattr(limits, "SEGMENT_AGE_MS", 1 << 40)
            for clock_ms, op in history:
                data = entry(clock_ms, [op])
                older.play([data[:1] + b"\x01" + data[2:]])
                newer.play([data])
        same_answers(older.results, newer.results)
        assert [_without_answer(record) for record in older.records] == [
            _without_answer(record) for record in newer.records
        ]
        folded = fold("c1", [Record.decode(record.encoded) for record in older.records])
        assert folded.chain() == older.machine.chain()
        loaded = Machine.load_rows(older.machine.dump_rows())
        same(loaded, older.machine)


def _without_answer(record: Record) -> list[Any]:
    fields: list[Any] = msgpack.unpackb(record.encoded)
    assert bool(fields[15]) == (record.answer is not None)
    return [*fields[:15], *fields[16:]]


words = st.one_of(
    st.sampled_from(
        [
            "item 7 is gone",
            "item 007",
            "no",
            "",
            "1.5 of 3",
            "x12y",
            "٣ items",
            "9" * 30,
            "-4",
            "0",
            str((1 << 63) - 1),
            str(1 << 62),
        ]
    ),
    st.integers(0, 10**20).map(lambda number: f"item {number} is over, fence {number + 1}"),
    st.text(max_size=12),
)
refusals = st.builds(Refusal, st.sampled_from(list(Reason)), words, words)
outcomes = st.one_of(refusals, st.integers(0, 1 << 62))


@st.composite
def told(draw: st.DrawFn) -> list[tuple[int, Outcome]]:
    """Outcomes by place, with gaps, and neighbours that are alike or count up."""
    place, made = 0, []
    for _ in range(draw(st.integers(0, 8))):
        place += draw(st.integers(0, 3))
        outcome = draw(outcomes)
        step = draw(st.integers(-2, 3))
        for more in range(draw(st.integers(1, 5))):
            if isinstance(outcome, Refusal) and draw(st.booleans()):
                outcome = outcome._replace(field=f"items[{place * step}].body")
            elif isinstance(outcome, int):
                outcome = max(0, outcome + step * more)
            made.append((place, outcome))
            place += 1
    return made


@given(told())
def test_every_word_comes_back(made: list[tuple[int, Outcome]]) -> None:
    wordings, runs = msgpack.unpackb(packed(runs_of(made)))
    assert list(outcomes_of(wordings, runs)) == made
    assert refusals_of(wordings, runs) == {place: no for place, no in made if isinstance(no, Refusal)}


def test_ids_in_a_row_are_one_run() -> None:
    assert runs_of(enumerate(range(5, 5 + MANY))) == ([], [0, MANY, 0, 5, 1])


def _redriven(story: Story, op: Op) -> Sequence[int]:
    (answer,) = story.do(op)
    assert isinstance(answer, Redriven)
    return answer.sequence_ids


def test_the_oldest_dead_letters_redriven_are_told_again() -> None:
    story, op = buried(MANY)(), Redrive(CALL, None, MANY)
    assert list(_redriven(story, op)) == list(range(1, MANY + 1))
    assert len(story.kept()) < SMALL
    same_answers([Redriven(list(range(1, MANY + 1)), {})] * 3, story.asked_again(op))
