"""Why the machine says no, in a form that is stored, sent and compared."""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["CorruptLog", "Reason", "Refusal"]


class Reason(StrEnum):
    """The stable reasons of the wire contract; each tells the caller what to do next."""

    LEASE_LOST = "LEASE_LOST"
    ALREADY_SETTLED = "ALREADY_SETTLED"
    QUEUE_FULL = "QUEUE_FULL"
    BACKPRESSURE = "BACKPRESSURE"
    NO_LEADER = "NO_LEADER"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    PEER_UNHEALTHY = "PEER_UNHEALTHY"
    PAUSED = "PAUSED"
    NOT_FOUND = "NOT_FOUND"
    CONFLICT = "CONFLICT"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    FORBIDDEN = "FORBIDDEN"


class Refusal(NamedTuple):
    """One no: the reason for programs, a sentence for people, and the path of the field where one is to blame.

    >>> Refusal(Reason.LEASE_LOST, "the lease ended; stop working on the item").reason
    <Reason.LEASE_LOST: 'LEASE_LOST'>
    """

    reason: Reason
    message: str
    field: str = ""


class CorruptLog(Exception):
    """Events that cannot have come from one machine: a gap, a foreign record, an item in two places."""
