"""Every way in which a cluster says no, or cannot be heard: one exception each, and what to do about it."""

from collections.abc import Sequence
from typing import Any, ClassVar

import grpc
from google.rpc import error_details_pb2, status_pb2

from resourcelease.v1 import ItemError

__all__ = [
    "AlreadySettled",
    "Backpressure",
    "Conflict",
    "Forbidden",
    "InvalidArgument",
    "LeaseLost",
    "NoLeader",
    "NotFound",
    "OutcomeUnknown",
    "Paused",
    "PeerUnhealthy",
    "QueueFull",
    "Refused",
    "ResourceLeaseError",
    "SomeRefused",
    "Unauthenticated",
    "Unreachable",
    "error_of_answer",
    "error_of_item",
    "error_of_status",
    "make_error",
]

DOMAIN = "resourcelease"


class ResourceLeaseError(Exception):
    """The base of all errors of a cluster.

    >>> error = QueueFull("the queue is full", retry_after=0.5)
    >>> error.reason, error.retry_after
    ('QUEUE_FULL', 0.5)
    >>> error.what_to_do
    'slow down and try again later, or raise the capacity of the namespace'
    """

    reason: str = "UNKNOWN"
    """The stable name of the contract."""

    what_to_do: str = "read the message"
    """The next step, for people."""

    transient: ClassVar[bool] = False

    def __init__(self, message: str = "", *, field: str = "", retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        """Path of the request's field at fault, where there is one."""
        self.retry_after = retry_after
        """Seconds after which trying again may help; None where it will not."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.field, self.retry_after)


def _rebuild(kind: type[ResourceLeaseError], message: str, field: str, retry_after: float | None) -> ResourceLeaseError:
    return kind(message, field=field, retry_after=retry_after)


class LeaseLost(ResourceLeaseError):
    """The lease is not the caller's any more."""

    reason = "LEASE_LOST"
    what_to_do = "stop working on the item and discard what was done under its fence"


class AlreadySettled(ResourceLeaseError):
    """The item has its verdict, and it is another one."""

    reason = "ALREADY_SETTLED"
    what_to_do = "stop; the other verdict stands"


class QueueFull(ResourceLeaseError):
    """A bound is reached that holds whole."""

    reason = "QUEUE_FULL"
    what_to_do = "slow down and try again later, or raise the capacity of the namespace"


class Backpressure(ResourceLeaseError):
    """More is pending than the high watermark allows."""

    reason = "BACKPRESSURE"
    what_to_do = "slow down and try again later; watch_backpressure says when it is over"


class NoLeader(ResourceLeaseError):
    """No node leads, or none could be reached in time. Nothing was changed."""

    reason = "NO_LEADER"
    what_to_do = "see that a majority of the nodes is up and connected, then try again"
    transient = True


class OutcomeUnknown(ResourceLeaseError):
    """The deadline passed before an answer came: the change may or may not have happened."""

    reason = "OUTCOME_UNKNOWN"
    what_to_do = "see that a majority of the nodes is up, and whether it happened, before doing it again"
    transient = True


class Unreachable(OutcomeUnknown):
    """No node could be reached, or none answered in time."""

    reason = "UNREACHABLE"
    what_to_do = "check the endpoints, and that nodes run there"


class InvalidArgument(ResourceLeaseError):
    """The call must be changed; ``field`` says where."""

    reason = "INVALID_ARGUMENT"
    what_to_do = "correct the call"


class PeerUnhealthy(ResourceLeaseError):
    """The namespace enforces health, and the cluster counts this peer as disconnected."""

    reason = "PEER_UNHEALTHY"
    what_to_do = "heartbeat, then ask again"


class Paused(ResourceLeaseError):
    """The namespace grants nothing at present."""

    reason = "PAUSED"
    what_to_do = "ask again later, or resume the namespace"


class NotFound(ResourceLeaseError):
    """It is not there, or not any more."""

    reason = "NOT_FOUND"
    what_to_do = "check the name or the id"


class Conflict(ResourceLeaseError):
    """What is there excludes the call; the message says what."""

    reason = "CONFLICT"
    what_to_do = "see what is there already"


class Unauthenticated(ResourceLeaseError):
    """The caller did not prove who it is."""

    reason = "UNAUTHENTICATED"
    what_to_do = "give a client certificate or a token"


class Forbidden(ResourceLeaseError):
    """The caller is known and may not do this."""

    reason = "FORBIDDEN"
    what_to_do = "ask for the right, or use your own peer id"


class Refused(ResourceLeaseError):
    """A reason or a status that this release does not know; ``reason`` has its name."""

    def __init__(
        self, message: str = "", *, field: str = "", retry_after: float | None = None, reason: str = "UNKNOWN"
    ) -> None:
        super().__init__(message, field=field, retry_after=retry_after)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_refused, (self.message, self.field, self.retry_after, self.reason)


def _rebuild_refused(message: str, field: str, retry_after: float | None, reason: str) -> Refused:
    return Refused(message, field=field, retry_after=retry_after, reason=reason)


class SomeRefused(ResourceLeaseError):
    """Of a call with many entries some were refused; the others went through.

    ``results`` has, in the order of the call, the result of each entry or the error that it met.

    >>> SomeRefused([7, LeaseLost("too late")]).message
    '1 of 2 entries refused; the first, [1]: too late'
    """

    reason = "SOME_REFUSED"
    what_to_do = "look at the entries of results that are errors"

    def __init__(self, results: Sequence[Any]) -> None:
        wrong = [(at, result) for at, result in enumerate(results) if isinstance(result, ResourceLeaseError)]
        first = f"; the first, [{wrong[0][0]}]: {wrong[0][1]}" if wrong else ""
        super().__init__(f"{len(wrong)} of {len(results)} entries refused{first}")
        self.results = list(results)

    def __reduce__(self) -> tuple[Any, ...]:
        return SomeRefused, (self.results,)


_KINDS: dict[str, type[ResourceLeaseError]] = {
    kind.reason: kind
    for kind in (
        LeaseLost,
        AlreadySettled,
        QueueFull,
        Backpressure,
        NoLeader,
        OutcomeUnknown,
        InvalidArgument,
        PeerUnhealthy,
        Paused,
        NotFound,
        Conflict,
        Unauthenticated,
        Forbidden,
    )
}

# What gRPC says where nothing was sent.
_NOT_CONNECTED = "failed to connect"

_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}

# What comes without our details and will not change by asking again. All else may be the network's doing.
_FINAL = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgument,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
    grpc.StatusCode.UNIMPLEMENTED: None,
    grpc.StatusCode.RESOURCE_EXHAUSTED: None,
    grpc.StatusCode.NOT_FOUND: None,
    grpc.StatusCode.FAILED_PRECONDITION: None,
    grpc.StatusCode.ALREADY_EXISTS: None,
    grpc.StatusCode.OUT_OF_RANGE: None,
}


def make_error(reason: str, message: str, field: str = "", retry_after: float | None = None) -> ResourceLeaseError:
    """The exception that belongs to a reason.

    >>> make_error("LEASE_LOST", "too late")
    LeaseLost('too late')
    >>> make_error("LATER_REASON", "a release to come says no").reason
    'LATER_REASON'
    """
    kind = _KINDS.get(reason)
    if kind is None:
        return Refused(message, field=field, retry_after=retry_after, reason=reason)
    return kind(message, field=field, retry_after=retry_after)


def error_of_item(error: ItemError) -> ResourceLeaseError:
    """The exception for one entry that was refused."""
    retry_after = error.retry_after_ms / 1000 if error.HasField("retry_after_ms") else None
    return make_error(error.reason, error.message, error.field, retry_after)


def error_of_status(error: grpc.aio.AioRpcError, address: str) -> ResourceLeaseError:
    """The exception for a call that was refused whole, or that was not answered."""
    return _error_of(error.code(), error.details() or "", _trailer(error), address)


def error_of_answer(text: bytes, address: str) -> ResourceLeaseError:
    """The same for a call in a conversation, from the google.rpc.Status that answered it."""
    status = _status(text)
    return _error_of(code_of(status), status.message, status, address)


def code_of(status: status_pb2.Status) -> grpc.StatusCode:
    """The code of a status; UNKNOWN for one that gRPC does not have."""
    return _CODES.get(status.code, grpc.StatusCode.UNKNOWN)


def _error_of(code: grpc.StatusCode, message: str, status: status_pb2.Status, address: str) -> ResourceLeaseError:
    info, retry_after = _details(status)
    if info is not None:
        return make_error(info.reason, message, info.metadata.get("field", ""), retry_after)
    said = f"{address}: {code.name}: {message or 'no details'}"
    if code in _FINAL:
        kind = _FINAL[code]
        if code is grpc.StatusCode.UNIMPLEMENTED:
            said = f"{address} speaks gRPC but not this method; is it a node of this release? ({message})"
        return kind(said) if kind else Refused(said, reason=code.name)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return OutcomeUnknown(f"{address} did not answer in time")
    if code is grpc.StatusCode.UNAVAILABLE and _NOT_CONNECTED in message:
        return Unreachable(f"{address} cannot be reached ({_short(message)})")
    return OutcomeUnknown(said)


def _short(details: str) -> str:
    """The last cause that gRPC names, which is the one that a person can use."""
    return details.rsplit("; last error: ", 1)[-1].rsplit(": ", 1)[-1]


def _trailer(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return _status(value)
    return status_pb2.Status()


def _details(status: status_pb2.Status) -> tuple[error_details_pb2.ErrorInfo | None, float | None]:
    info, retry_after = None, None
    for detail in status.details:
        if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
            found = error_details_pb2.ErrorInfo()
            if detail.Unpack(found) and found.domain == DOMAIN:
                info = found
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            wait = error_details_pb2.RetryInfo()
            if detail.Unpack(wait):
                retry_after = wait.retry_delay.seconds + wait.retry_delay.nanos / 1e9
    return info, retry_after


def _status(value: bytes) -> status_pb2.Status:
    try:
        return status_pb2.Status.FromString(value)
    except Exception:
        # Whoever answered, it was none of ours: as if there were no details.
        return status_pb2.Status()
