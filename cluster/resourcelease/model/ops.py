"""The operations of the machine, and the entry that carries them through the log.

An entry is a msgpack array of version, clock, wall time and ops, each op packed on its own, so that one that is
damaged harms no other. Clock and wall stand at fixed places: the leader stamps an entry by joining bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from struct import Struct
from typing import Any, NamedTuple, TypeAlias

import msgpack

from resourcelease.model.items import Failure

__all__ = [
    "ENTRY_VERSION",
    "OPS",
    "SINCE",
    "BeginEffect",
    "Call",
    "Complete",
    "Configure",
    "Drain",
    "Enqueue",
    "Fail",
    "FinishEffect",
    "GiveBack",
    "Heartbeat",
    "Ints",
    "Lease",
    "Op",
    "Pause",
    "Redrive",
    "RequireVersion",
    "Restore",
    "Resume",
    "default_effect_id",
    "pack_entry",
    "pack_op",
    "pack_ops",
]

# The newest version of entries that this release reads; docs/upgrades.md says when there is a new one.
ENTRY_VERSION = 2

# A column of numbers: a list, or one number that stands for every item.
Ints: TypeAlias = int | Sequence[int]


class Call(NamedTuple):
    """Who asks, where, and under which operation id.

    ``take`` numbers the proposals that a node makes of one call: a later take asks again after a refusal that time may
    have cured (backpressure, a full queue), an equal or earlier one is a retry and gets the stored answer. A later take
    of a lease takes over the leases of the earlier one (see ``GiveBack``).
    """

    namespace: str
    peer: str = ""
    principal: str = ""
    operation_id: str = ""
    take: int = 0
    metadata: Mapping[str, str] | None = None


class Enqueue(NamedTuple):
    """Append items; ``items`` is ``ItemColumns.packed()``."""

    call: Call
    items: bytes


class Lease(NamedTuple):
    """Grant up to ``limit`` items to the calling peer, weighing ``max_bytes`` in all (0: any); one always fits."""

    call: Call
    limit: int
    max_bytes: int = 0


class Heartbeat(NamedTuple):
    """Extend the named leases, or, with no columns at all, every lease that the calling peer holds."""

    call: Call
    sequence_ids: Ints | None = None
    attempts: Ints | None = None
    fences: Ints | None = None


class Complete(NamedTuple):
    """The good verdict on leased items."""

    call: Call
    sequence_ids: Ints
    attempts: Ints
    fences: Ints


class Fail(NamedTuple):
    """An attempt failed. ``delays_ms`` None: as the namespace's options say; ``failures`` a list, or one for all."""

    call: Call
    sequence_ids: Ints
    attempts: Ints
    fences: Ints
    requeue: bool | Sequence[bool] = True
    delays_ms: int | Sequence[int | None] | None = None
    failures: Sequence[Failure] | None = None


class GiveBack(NamedTuple):
    """Return leases unused: no attempt is spent and the items go back to their places.

    ``untold`` is the operation id of a lease call that nobody waited for: then nothing is returned once a take of that
    call later than this call's ``take`` has taken the leases over, since its caller may hold them.
    """

    call: Call
    sequence_ids: Ints
    attempts: Ints
    fences: Ints
    untold: str = ""


class Configure(NamedTuple):
    """Change options of the namespace, and create it if it is new."""

    call: Call
    options: Mapping[str, Any]


class Pause(NamedTuple):
    """Stop granting."""

    call: Call


class Resume(NamedTuple):
    """Grant again."""

    call: Call


class Redrive(NamedTuple):
    """Put dead letters back to work: the named ones, or the ``limit`` oldest."""

    call: Call
    sequence_ids: Ints | None = None
    limit: int = 0
    delay_ms: int = 0


class Drain(NamedTuple):
    """Take the next page of a bundle out of the queue. Asking for page n + 1 says that page n has arrived."""

    call: Call
    bundle_id: str
    page: int
    limit: int = 1000
    max_bytes: int = 4 * 1024 * 1024
    include_active: bool = False


class Restore(NamedTuple):
    """Put a page of a bundle back, all of it or nothing."""

    call: Call
    page: bytes


class RequireVersion(NamedTuple):
    """Ask for the version of a change, fixing it at ``maximum`` if nobody has asked before."""

    call: Call
    change_id: str
    minimum: int
    maximum: int


class BeginEffect(NamedTuple):
    """Become the runner of an effect, under a lease that one holds."""

    call: Call
    effect_id: str
    sequence_id: int
    attempt: int
    fence: int


class FinishEffect(NamedTuple):
    """Store the result of an effect that one runs; the first stored result is everyone's."""

    call: Call
    effect_id: str
    sequence_id: int
    attempt: int
    fence: int
    result: bytes


Op: TypeAlias = (
    Enqueue
    | Lease
    | Heartbeat
    | Complete
    | Fail
    | GiveBack
    | Configure
    | Pause
    | Resume
    | Redrive
    | Drain
    | Restore
    | RequireVersion
    | BeginEffect
    | FinishEffect
)

# The numbers are in every journal: never reuse one.
OPS: dict[int, type[Op]] = {
    1: Enqueue,
    2: Lease,
    3: Heartbeat,
    4: Complete,
    5: Fail,
    6: GiveBack,
    7: Configure,
    8: Pause,
    9: Resume,
    10: Redrive,
    11: Drain,
    12: Restore,
    13: RequireVersion,
    14: BeginEffect,
    15: FinishEffect,
}
# Ops that came later than version 1 of entries, with the version; an older entry does not carry them.
SINCE: dict[int, int] = {}
_CODES: dict[type[Op], int] = {op: code for code, op in OPS.items()}

_pack = msgpack.Packer(autoreset=True).pack
_UINT64 = Struct(">BQ")
_HEAD = bytes((0x94, ENTRY_VERSION))


def default_effect_id(change_id: str, sequence_number: int) -> str:
    """The id of the effect of a change at one event, where the caller has no better name for it.

    >>> default_effect_id("add-tax", 17)
    'add-tax/seq/17'
    """
    return f"{change_id}/seq/{sequence_number}"


def pack_op(op: Op) -> bytes:
    """One op as it stands in an entry."""
    packed: bytes = _pack((_CODES[type(op)], *op))
    return packed


def pack_ops(ops: Iterable[bytes]) -> bytes:
    """The ops part of an entry; what a follower hands to the leader."""
    packed: bytes = _pack(list(ops))
    return packed


def pack_entry(clock_ms: int, wall_ms: int, ops: bytes) -> bytes:
    """The entry that the leader appends: its clock, its wall time, and the packed ops."""
    return b"".join((_HEAD, _UINT64.pack(0xCF, clock_ms), _UINT64.pack(0xCF, wall_ms), ops))
