"""What became of items that did not all fare alike, in few bytes: so it is kept in answers by operation id.

Neighbours that fared alike are one run. Alike are refusals of one wording (the same reason, and the same words but for
the numbers in them) whose numbers are the same or evenly spaced; and ids that are. A wording is written once.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgpack

from resourcelease.model.errors import Reason, Refusal

__all__ = ["RUNS_SINCE", "Outcome", "listed", "outcomes_of", "packed", "refusals_of", "runs_of"]

# The version of entries from which on answers are kept in this form. Before it, refusals were listed one by one.
RUNS_SINCE = 2

# An id, or why there is none.
Outcome: TypeAlias = int | Refusal
# Reason; the message between its numbers; the field between its numbers.
_Wording: TypeAlias = tuple[str, list[str], list[str]]

packed = msgpack.Packer(autoreset=True).pack

_NUMBER = re.compile(r"([0-9]{1,19})")
# It, and what is between any two that are not above it, fits 64 bits.
_LARGEST = (1 << 63) - 1
_AN_ID = 0
_NOTHING = ("",)


def runs_of(outcomes: Iterable[tuple[int, Outcome]]) -> tuple[list[_Wording], list[int]]:
    """Outcomes by place, the lowest place first, as plain values: wordings, and the runs, all in one list.

    A run is: how many places after the end of the one before, how many, the number of its wording from 1 on (0: ids),
    the numbers of its first place, and, if it is longer than one, what is added to each from one place to the next.

    >>> full = Refusal(Reason.QUEUE_FULL, "the queue is full")
    >>> runs_of([(0, full), (1, full), (2, full), (5, 17), (6, 18)])
    ([('QUEUE_FULL', ['the queue is full'], [''])], [0, 3, 1, 2, 2, 0, 17, 1])
    """
    wordings: dict[tuple[Any, ...], int] = {}
    runs: list[int] = []
    before: Outcome | None = None
    end = count = kind = last_kind = 0
    numbers: tuple[int, ...] = ()
    first = steps = expected = numbers
    for place, outcome in outcomes:
        if outcome is not before:
            kind, numbers = _taken_apart(outcome, wordings)
            before = outcome
        if count and place == end and kind == last_kind and (count == 1 or numbers == expected):
            if count == 1:
                steps = tuple([now - then for now, then in zip(numbers, first, strict=True)])
            count += 1
            expected = _a_step_on(numbers, steps) if any(steps) else numbers
        else:
            if count:
                runs += (count, last_kind, *first, *(steps if count > 1 else ()))
            runs.append(place - end)
            count, last_kind, first = 1, kind, numbers
        end = place + 1
    if count:
        runs += (count, last_kind, *first, *(steps if count > 1 else ()))
    return [(reason, list(message), list(field)) for reason, message, field in wordings], runs


def outcomes_of(wordings: list[Any], runs: list[int]) -> Iterator[tuple[int, Outcome]]:
    """The outcomes that such values stand for, the lowest place first."""
    values = iter(runs)
    place = 0
    for gap in values:
        count, kind = next(values), next(values)
        wording = wordings[kind - 1] if kind != _AN_ID else None
        size = 1 if wording is None else len(wording[1]) + len(wording[2]) - 2
        numbers = tuple([next(values) for _ in range(size)])
        steps = tuple([next(values) for _ in range(size)]) if count > 1 else ()
        outcome = _put_together(wording, numbers)
        place += gap
        for _ in range(count):
            yield place, outcome
            place += 1
            if any(steps):
                numbers = _a_step_on(numbers, steps)
                outcome = _put_together(wording, numbers)


def refusals_of(wordings: list[Any], runs: list[int]) -> dict[int, Refusal]:
    """The refusals among them."""
    return {place: outcome for place, outcome in outcomes_of(wordings, runs) if isinstance(outcome, Refusal)}


def listed(refused: Mapping[int, Refusal]) -> list[list[Any]]:
    """Refusals by place, one by one: the form of entries before ``RUNS_SINCE``."""
    return [[place, *refusal] for place, refusal in refused.items()]


def _taken_apart(outcome: Outcome, wordings: dict[tuple[Any, ...], int]) -> tuple[int, tuple[int, ...]]:
    """The number of the wording, a new one where it is new, and the numbers in it."""
    if not isinstance(outcome, Refusal):
        return _AN_ID, (outcome,)
    reason, message, field = outcome
    words, numbers = _split(message)
    of_field, more = _split(field) if field else (_NOTHING, ())
    return wordings.setdefault((str(reason), words, of_field), len(wordings) + 1), numbers + more


def _split(text: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """A text as what is between its numbers, and these; as a whole if they would not be written again as they were."""
    parts = _NUMBER.split(text)
    if len(parts) == 1:
        return (text,), ()
    digits = parts[1::2]
    numbers = tuple(map(int, digits))
    if max(numbers) > _LARGEST or list(map(str, numbers)) != digits:
        return (text,), ()
    return tuple(parts[::2]), numbers


def _a_step_on(numbers: tuple[int, ...], steps: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([number + step for number, step in zip(numbers, steps, strict=True)])


def _put_together(wording: Any, numbers: tuple[int, ...]) -> Outcome:
    if wording is None:
        return numbers[0]
    reason, message, field = wording
    in_message = len(message) - 1
    return Refusal(Reason(reason), _filled(message, numbers[:in_message]), _filled(field, numbers[in_message:]))


def _filled(words: list[str], numbers: tuple[int, ...]) -> str:
    return words[0] + "".join(f"{number}{word}" for number, word in zip(numbers, words[1:], strict=True))
