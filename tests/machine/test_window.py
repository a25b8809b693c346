"""What is remembered for a while, against the plainest way to remember it."""

import sys
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from resourcelease.machine.window import Window

KEYS = st.sampled_from("abcdefgh")
TIMES = st.integers(1, 6)
STEPS = st.one_of(
    st.tuples(st.just("add"), KEYS, TIMES),
    st.tuples(st.just("add_many"), st.lists(KEYS, unique=True), TIMES),
    st.tuples(st.just("discard"), KEYS),
    st.tuples(st.just("purge"), st.integers(0, 7), st.none() | st.integers(0, 6)),
    st.tuples(st.just("take_touched")),
)


class Plain:
    """A dict for each millisecond."""

    def __init__(self) -> None:
        self.at: dict[int, dict[str, int]] = {}
        self.touched: dict[int, None] = {}

    def discard(self, key: str) -> None:
        for time, kept in list(self.at.items()):
            if kept.pop(key, None) is not None:
                self.touched[time] = None
            if not kept:
                del self.at[time]

    def add(self, key: str, value: int, time: int) -> None:
        self.discard(key)
        self.at.setdefault(time, {})[key] = value
        self.touched[time] = None

    def purge(self, clock: int, limit: int | None) -> list[str]:
        gone: list[str] = []
        for time in sorted(self.at):
            over = limit is not None and sum(map(len, self.at.values())) > limit
            if time > clock and (not over or len(self.at) == 1):
                break
            gone += self.at.pop(time)
            self.touched[time] = None
        return gone


@given(st.lists(STEPS, max_size=60))
def test_it_remembers_what_a_dict_for_each_millisecond_does(steps: list[tuple[object, ...]]) -> None:
    window: Window[str, int] = Window()
    plain = Plain()
    for number, (kind, *rest) in enumerate(steps):
        match kind, rest:
            case "add", (str(key), int(time)):
                window.add(key, number, time)
                plain.add(key, number, time)
            case "add_many", (list(keys), int(time)):
                new = [key for key in keys if not any(key in kept for kept in plain.at.values())]
                window.add_many(new, [number] * len(new), time)
                for key in new:
                    plain.add(key, number, time)
            case "discard", (str(key),):
                window.discard(key)
                plain.discard(key)
            case "purge", (int(clock), int() | None as limit):
                assert window.purge(clock, limit) == plain.purge(clock, limit)
            case _:
                assert sorted(window.take_touched()) == sorted(plain.touched)
                plain.touched.clear()
        # With the order, which rows keep.
        assert [(time, list(kept.items())) for time, kept in window.chunks()] == [
            (time, list(plain.at[time].items())) for time in sorted(plain.at)
        ]
        assert len(window) == sum(map(len, plain.at.values()))
        for time, kept in plain.at.items():
            assert window.chunk(time) == kept
            for key, value in kept.items():
                assert window.get(key, time - 1) == value
                assert window.get(key, time) is None


def _blocks(make: Callable[[], object]) -> int:
    before = sys.getallocatedblocks()
    kept = make()
    count = sys.getallocatedblocks() - before
    del kept
    return count


def test_an_entry_that_is_alone_in_its_millisecond_takes_little() -> None:
    keys = [f"request {number}" for number in range(2_000)]
    values = list(range(10_000, 12_000))

    def fill() -> Window[str, int]:
        window: Window[str, int] = Window()
        for number, key in enumerate(keys):
            window.add(key, values[number], 1_000_000 + number)
        window.take_touched()
        return window

    # One for the entry, one for its time; no dict and no list of its own.
    assert _blocks(fill) <= 2.1 * len(keys)


def test_what_is_forgotten_before_its_time_leaves_nothing_that_grows() -> None:
    window: Window[str, int] = Window()
    window.add_many(["stays", "too"], [0, 0], 5)

    def again() -> None:
        for number in range(1_000):
            window.add("comes and goes", number, 5)
            window.discard("comes and goes")

    again()
    assert _blocks(again) < 100
    assert window.chunk(5) == {"stays": 0, "too": 0}
