"""A no, on its way to the caller: as the status of a call, or as the error of one entry."""

from collections.abc import Mapping
from typing import NoReturn

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from resourcelease import v1
from resourcelease.consensus import Busy, NoLeader, NotAllowed, OutcomeUnknown, TooLarge
from resourcelease.model.errors import Reason, Refusal

__all__ = ["DETAILS_KEY", "DOMAIN", "STATUS", "Refused", "item_error", "refuse", "refused_by_consensus", "trailers"]

DOMAIN = "resourcelease"
DETAILS_KEY = "grpc-status-details-bin"

STATUS: Mapping[Reason, grpc.StatusCode] = {
    Reason.LEASE_LOST: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.ALREADY_SETTLED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.BACKPRESSURE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.NO_LEADER: grpc.StatusCode.UNAVAILABLE,
    Reason.OUTCOME_UNKNOWN: grpc.StatusCode.UNKNOWN,
    Reason.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.PEER_UNHEALTHY: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.PAUSED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    Reason.UNAUTHENTICATED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.FORBIDDEN: grpc.StatusCode.PERMISSION_DENIED,
}

# Where waiting helps, and for how long, in milliseconds.
_RETRY_AFTER_MS: Mapping[Reason, int] = {
    Reason.QUEUE_FULL: 1000,
    Reason.BACKPRESSURE: 500,
    Reason.NO_LEADER: 200,
}


class Refused(Exception):
    """A call that is refused whole, with what the caller is told."""

    def __init__(self, reason: Reason, message: str, field: str = "") -> None:
        super().__init__(message)
        self.refusal = Refusal(reason, message, field)

    @classmethod
    def of(cls, refusal: Refusal, fields: Mapping[str, str] | None = None) -> "Refused":
        """The machine's refusal; ``fields`` gives its names for fields in the words of the request."""
        field = refusal.field
        return cls(refusal.reason, refusal.message, fields.get(field, field) if fields else field)


def refuse(message: str, field: str = "") -> NoReturn:
    """Refuses a call that is wrong in itself."""
    raise Refused(Reason.INVALID_ARGUMENT, message, field)


def refused_by_consensus(error: Exception) -> Refused:
    """What consensus raised, as the caller is told."""
    if isinstance(error, NoLeader):
        return Refused(Reason.NO_LEADER, f"{error}; retry with the same operation id, here or on another node")
    if isinstance(error, OutcomeUnknown):
        return Refused(Reason.OUTCOME_UNKNOWN, f"{error}; retry with the same operation id")
    if isinstance(error, Busy):
        return Refused(Reason.QUEUE_FULL, f"this node is busy: {error}")
    if isinstance(error, TooLarge):
        return Refused(Reason.INVALID_ARGUMENT, f"the call is too large: {error}")
    if isinstance(error, NotAllowed):
        return Refused(Reason.CONFLICT, str(error))
    raise error


def item_error(refusal: Refusal, field: str = "") -> v1.ItemError:
    """The same for one entry of a call; ``field`` where the machine named none."""
    retry = _RETRY_AFTER_MS.get(refusal.reason)
    reason, message = refusal.reason.value, refusal.message
    if retry is None:
        return v1.ItemError(reason=reason, message=message, field=refusal.field or field)
    return v1.ItemError(reason=reason, message=message, field=refusal.field or field, retry_after_ms=retry)


def trailers(refused: Refused) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Code, message and trailing metadata of the status that tells a caller."""
    reason, message, field = refused.refusal
    code = STATUS[reason]
    info = error_details_pb2.ErrorInfo(reason=reason.value, domain=DOMAIN, metadata={"field": field} if field else {})
    details = [info]
    retry = _RETRY_AFTER_MS.get(reason)
    if retry is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(retry)
        details.append(error_details_pb2.RetryInfo(retry_delay=delay))
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        packed = any_pb2.Any()
        packed.Pack(detail)
        status.details.append(packed)
    return code, message, ((DETAILS_KEY, status.SerializeToString()),)
