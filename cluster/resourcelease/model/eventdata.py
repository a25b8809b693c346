"""The columns of each type of event, as they stand in a record and so in every log.

The fields of a type keep their order for ever; new ones are added at the end, with a default.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from resourcelease.model.items import Failure

__all__ = [
    "DATA",
    "Data",
    "EventType",
    "Ints",
    "BackpressureData",
    "BeatsData",
    "DeathsData",
    "DrainData",
    "EffectData",
    "EndsData",
    "FailuresData",
    "GrantsData",
    "IdsData",
    "ItemsData",
    "PeerData",
    "RedrivesData",
    "RejectionData",
    "RequeuesData",
    "RestoreData",
    "SettingsData",
    "check_data",
]


class EventType(IntEnum):
    """The numbers are in every log ever written: never change or reuse one."""

    ENQUEUE = 1
    LEASE_GRANTED = 2
    HEARTBEAT = 3
    COMPLETED = 4
    FAILED = 5
    DRAIN_SNAPSHOT = 6
    RESTORE_SNAPSHOT = 7
    LEASE_EXPIRED = 8
    REQUEUED = 9
    DEAD_LETTERED = 10
    BACKPRESSURE = 11
    CONFIGURED = 12
    PEER_CHANGED = 13
    REDRIVEN = 14
    EFFECT = 15
    # A delay is over and the item joined the tail of its priority.
    RELEASED = 16
    # An op was refused, and the refusal is remembered under its operation id.
    REJECTED = 17
    # The oldest dead letter fell out at dead_letter_limit.
    DISCARDED = 18


# The columns of each type. ``Ints`` columns are one number where it holds for all items of the record.
Ints: TypeAlias = int | list[int]


class ItemsData(NamedTuple):
    """ENQUEUE: consecutive ids from ``first_id``; ``columns`` is ``ItemColumns.packed()``."""

    first_id: int
    columns: bytes


class GrantsData(NamedTuple):
    """LEASE_GRANTED: consecutive fences from ``first_fence``."""

    sequence_ids: list[int]
    attempts: Ints
    first_fence: int
    deadline_ms: int


class BeatsData(NamedTuple):
    """HEARTBEAT: of leases, or with no ids of everything the peer holds, which counts as one event."""

    sequence_ids: list[int]
    attempts: Ints
    fences: list[int]
    deadline_ms: int


class EndsData(NamedTuple):
    """COMPLETED and LEASE_EXPIRED."""

    sequence_ids: list[int]
    attempts: Ints
    fences: list[int]


class FailuresData(NamedTuple):
    """FAILED: ``failures`` has one entry an item, or one for all, or none; an entry is code, message, metadata."""

    sequence_ids: list[int]
    attempts: Ints
    fences: list[int]
    failures: list[Any] | None


class RequeuesData(NamedTuple):
    """REQUEUED: the attempt that comes next, the fence that ended, when it falls due (0: now), and what ended it."""

    sequence_ids: list[int]
    attempts: Ints
    fences: list[int]
    due_ms: Ints
    cause: str


class DeathsData(NamedTuple):
    """DEAD_LETTERED: the attempt and the fence that were the last, and what ended them."""

    sequence_ids: list[int]
    attempts: Ints
    fences: list[int]
    cause: str


class RedrivesData(NamedTuple):
    """REDRIVEN: the attempt that comes next, and when it falls due (0: now)."""

    sequence_ids: list[int]
    attempts: Ints
    due_ms: int


class IdsData(NamedTuple):
    """RELEASED and DISCARDED."""

    sequence_ids: list[int]
    attempts: Ints


class DrainData(NamedTuple):
    """DRAIN_SNAPSHOT: the ids taken out, and the packed page that holds everything about them."""

    sequence_ids: list[int]
    attempts: Ints
    bundle_id: str
    number: int
    page: bytes
    more: bool


class RestoreData(NamedTuple):
    """RESTORE_SNAPSHOT: the ids put back, their places in the packed page, and the page."""

    sequence_ids: list[int]
    attempts: Ints
    places: list[int]
    page: bytes


class BackpressureData(NamedTuple):
    """BACKPRESSURE."""

    active: bool
    high: int
    low: int


class SettingsData(NamedTuple):
    """CONFIGURED: everything that is now in force."""

    options: dict[str, Any]
    paused: bool


class PeerData(NamedTuple):
    """PEER_CHANGED, about ``peer``: joined, heard, connected, disconnected (with the reason) or removed."""

    peer: str
    change: str
    reason: str


class EffectData(NamedTuple):
    """EFFECT: ``kind`` is version (value: the version), begin (value: nothing) or finish (value: the result)."""

    kind: str
    id: str
    sequence_id: int
    attempt: int
    fence: int
    value: Any


class RejectionData(NamedTuple):
    """REJECTED: the reason that an op was refused for."""

    reason: str
    message: str


Data: TypeAlias = (
    ItemsData
    | GrantsData
    | BeatsData
    | EndsData
    | FailuresData
    | RequeuesData
    | DeathsData
    | RedrivesData
    | IdsData
    | DrainData
    | RestoreData
    | BackpressureData
    | SettingsData
    | PeerData
    | EffectData
    | RejectionData
)

DATA: dict[EventType, type[Data]] = {
    EventType.ENQUEUE: ItemsData,
    EventType.LEASE_GRANTED: GrantsData,
    EventType.HEARTBEAT: BeatsData,
    EventType.COMPLETED: EndsData,
    EventType.FAILED: FailuresData,
    EventType.DRAIN_SNAPSHOT: DrainData,
    EventType.RESTORE_SNAPSHOT: RestoreData,
    EventType.LEASE_EXPIRED: EndsData,
    EventType.REQUEUED: RequeuesData,
    EventType.DEAD_LETTERED: DeathsData,
    EventType.BACKPRESSURE: BackpressureData,
    EventType.CONFIGURED: SettingsData,
    EventType.PEER_CHANGED: PeerData,
    EventType.REDRIVEN: RedrivesData,
    EventType.EFFECT: EffectData,
    EventType.RELEASED: IdsData,
    EventType.REJECTED: RejectionData,
    EventType.DISCARDED: IdsData,
}


def check_data(data: Data, size: int) -> None:
    """Raises ValueError unless the columns of a record of ``size`` events are what their names say."""
    for name, value in zip(data._fields, data, strict=True):
        if not _CHECKS[name](value, size):
            raise ValueError(f"{name} is not what it should be")
    ids = getattr(data, "sequence_ids", None)
    if not isinstance(data, ItemsData) and size != (len(ids) if ids else 1):
        raise ValueError("the columns do not have as many values as there are events")


_Check: TypeAlias = Callable[[Any, int], bool]
_MOST = 1 << 62


def _is_number(value: Any, size: int) -> bool:
    return type(value) is int and 0 <= value <= _MOST


def _is_column(value: Any, size: int) -> bool:
    if type(value) is not list or (value and len(value) != size):
        return False
    return all(type(number) is int and 0 <= number <= _MOST for number in value)


def _is_ints(value: Any, size: int) -> bool:
    return _is_column(value, size) if type(value) is list else _is_number(value, size)


def _is_options(value: Any, size: int) -> bool:
    kinds = (int, bool, type(None))
    return type(value) is dict and all(type(k) is str and type(v) in kinds for k, v in value.items())


def _are_failures(value: Any, size: int) -> bool:
    if value is None:
        return True
    return type(value) is list and len(value) in (1, size) and all(map(_is_failure, value))


def _is_failure(value: Any) -> bool:
    if type(value) not in (list, Failure) or len(value) != 3:
        return False
    code, message, metadata = value
    if type(code) is not str or type(message) is not str:
        return False
    texts = metadata or {}
    return type(texts) is dict and all(type(k) is str and type(v) is str for k, v in texts.items())


def _is(*kinds: type) -> _Check:
    return lambda value, size: type(value) in kinds


_CHECKS: dict[str, _Check] = (
    dict.fromkeys(("sequence_ids", "fences", "places"), _is_column)
    | dict.fromkeys(("attempts", "due_ms"), _is_ints)
    | dict.fromkeys(("first_id", "first_fence", "deadline_ms", "number", "high", "low"), _is_number)
    | dict.fromkeys(("sequence_id", "attempt", "fence"), _is_number)
    | dict.fromkeys(("cause", "bundle_id", "peer", "change", "reason", "message", "kind", "id"), _is(str))
    | dict.fromkeys(("columns", "page"), _is(bytes))
    | dict.fromkeys(("more", "active", "paused"), _is(bool))
    | {"options": _is_options, "failures": _are_failures, "value": _is(int, bytes, type(None))}
)
