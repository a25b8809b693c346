"""What a handler refuses before it looks at the state: wrong types, wrong lengths, too much.

Columns are checked whole, at the speed of the interpreter's own loops; only one that is wrong somewhere is looked at
item by item.
"""

from collections.abc import Callable, Mapping
from typing import Any

from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.items import ItemColumns
from resourcelease.model.limits import MAX_DELAY_MS, MAX_NAME, MAX_TEXT, PRIORITIES
from resourcelease.model.ops import Call

__all__ = ["column_of_ids", "invalid", "is_count", "is_id", "is_name", "is_text_map", "items_wrong", "wrong_call"]

_MAX_ID = 1 << 62
_NAME_OR_NONE = f"a name of at most {MAX_NAME} characters, not blank"


def invalid(message: str, field: str) -> Refusal:
    """The refusal of a call that is wrong in itself."""
    return Refusal(Reason.INVALID_ARGUMENT, message, field)


def is_name(value: object) -> bool:
    """A name: text of 1 to MAX_NAME characters, not blank."""
    return type(value) is str and 0 < len(value) <= MAX_NAME and not value.isspace()


def is_count(value: object, most: int, least: int = 0) -> bool:
    """A whole number within bounds; true and false are none."""
    return type(value) is int and least <= value <= most


def is_id(value: object) -> bool:
    """A sequence id, attempt or fence as a caller may send it."""
    return type(value) is int and 0 <= value <= _MAX_ID


def is_text_map(value: object) -> bool:
    """Nothing, or a small map of text to text."""
    if value is None:
        return True
    if type(value) is not dict or len(value) > limits.MAX_ATTRIBUTES:
        return False
    return all(is_name(key) and type(text) is str and len(text) <= MAX_TEXT for key, text in value.items())


def _may_name(value: object) -> bool:
    return type(value) is str and len(value) <= MAX_NAME and not value.isspace()


def wrong_call(call: Call) -> Refusal | None:
    """What is wrong with the part that all ops share."""
    namespace, peer, principal, operation_id, take, metadata = call
    if not is_name(namespace):
        return invalid(f"a namespace is a name of 1 to {MAX_NAME} characters", "namespace")
    if not _may_name(peer):
        return invalid(_NAME_OR_NONE, "peer_id")
    if not _may_name(principal):
        return invalid(_NAME_OR_NONE, "principal")
    if not _may_name(operation_id):
        return invalid(_NAME_OR_NONE, "operation_id")
    if not is_count(take, 1 << 32):
        return invalid("take is a small whole number", "take")
    if metadata is not None and not is_text_map(metadata):
        return invalid(f"metadata is a map of text, of at most {limits.MAX_ATTRIBUTES} entries", "metadata")
    return None


def column_of_ids(column: object, size: int, field: str) -> list[int] | Refusal:
    """A column of ids, attempts or fences, one number spread over all items if it is one."""
    if is_id(column):
        return [column] * size  # type: ignore[list-item]
    if type(column) is list and len(column) == size and _all_of(column, {int}):
        if not column or (min(column) >= 0 and max(column) <= _MAX_ID):
            return column
        return invalid("must not be negative or above 2^62", field)
    return invalid("must be a whole number for each item", field)


def items_wrong(columns: ItemColumns, max_body_bytes: int) -> dict[int, Refusal]:
    """What is wrong with the items, by place. Raises TypeError where the columns do not even fit each other."""
    size = columns.size
    wrong: dict[int, Refusal] = {}
    for name, fits, checked, message in _RULES:
        column = getattr(columns, name)
        if column is None and name in _OPTIONAL:
            continue
        if type(column) is not list:
            if not checked(column):
                for place in range(size):
                    wrong.setdefault(place, invalid(message, f"items[{place}].{name}"))
            continue
        if len(column) != size:
            raise TypeError(f"column {name} has {len(column)} values for {size} items")
        if not fits(column):
            for place, value in enumerate(column):
                if not checked(value):
                    wrong.setdefault(place, invalid(message, f"items[{place}].{name}"))
    if columns.body is not None:
        bodies: Any = columns.body
        _check_bodies(bodies if type(bodies) is list else [bodies] * size, max_body_bytes, wrong)
    return wrong


def _check_bodies(bodies: list[Any], most: int, wrong: dict[int, Refusal]) -> None:
    try:
        if max(map(len, bodies)) <= most:
            return
    except TypeError:
        pass  # some are None, or were found wrong above
    for place, body in enumerate(bodies):
        if type(body) is bytes and len(body) > most:
            message = f"the body has {len(body)} bytes; this namespace takes at most {most} (max_body_bytes)"
            wrong.setdefault(place, invalid(message, f"items[{place}].body"))


def _all_of(column: list[Any], types: set[type]) -> bool:
    return set(map(type, column)) <= types


def _texts(most: int, *, required: bool) -> tuple[Callable[[list[Any]], bool], Callable[[Any], bool]]:
    types: set[type] = {str} if required else {str, type(None)}

    def fits(column: list[Any]) -> bool:
        if not _all_of(column, types):
            return False
        if required:
            return max(map(len, column)) <= most and all(map(str.strip, column))
        return all(value is None or len(value) <= most for value in column)

    def checked(value: Any) -> bool:
        if value is None:
            return not required
        return type(value) is str and len(value) <= most and (not required or bool(value.strip()))

    return fits, checked


def _numbers(most: int) -> tuple[Callable[[list[Any]], bool], Callable[[Any], bool]]:
    def fits(column: list[Any]) -> bool:
        return _all_of(column, {int}) and min(column) >= 0 and max(column) <= most

    return fits, lambda value: is_count(value, most)


def _is_body(value: object) -> bool:
    return value is None or type(value) is bytes


def _is_attributes(value: Mapping[str, str] | None) -> bool:
    return is_text_map(value)


# Field, the check of a whole column, the check of one value, and what to say.
_RULES = (
    ("resource_type", *_texts(MAX_NAME, required=True), f"must be text of 1 to {MAX_NAME} characters, not blank"),
    ("resource_id", *_texts(MAX_TEXT, required=True), f"must be text of 1 to {MAX_TEXT} characters, not blank"),
    ("partition_key", *_texts(MAX_TEXT, required=False), f"must be text of at most {MAX_TEXT} characters"),
    ("payload_encoding", *_texts(MAX_NAME, required=False), f"must be text of at most {MAX_NAME} characters"),
    (
        "attributes",
        lambda column: all(map(_is_attributes, column)),
        _is_attributes,
        f"must be a map of text, of at most {limits.MAX_ATTRIBUTES} entries",
    ),
    ("body", lambda column: _all_of(column, {bytes, type(None)}), _is_body, "must be bytes"),
    ("request_id", *_texts(MAX_NAME, required=False), f"must be text of at most {MAX_NAME} characters"),
    ("priority", *_numbers(PRIORITIES - 1), f"must be a whole number from 0 to {PRIORITIES - 1}"),
    ("not_before_ms", *_numbers(MAX_DELAY_MS), f"must be a delay from 0 to {MAX_DELAY_MS} ms"),
)
_OPTIONAL = frozenset(("partition_key", "payload_encoding", "attributes", "body", "request_id"))
