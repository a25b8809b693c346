"""Who calls: the peer and the principal of a call, from the request, its headers and its connection."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import grpc

from resourcelease.frontdoor.refusals import Refused, refuse
from resourcelease.model.errors import Reason
from resourcelease.model.limits import DEFAULT_NAMESPACE, MAX_NAME
from resourcelease.model.ops import Call

__all__ = ["MAX_OPERATION_ID", "Caller", "Callers", "Speaker"]

MAX_OPERATION_ID = 128
_Context = grpc.aio.ServicerContext[Any, Any]


class Caller:
    """One call's context: who it is from, and how long it may take."""

    __slots__ = ("_callers", "context", "principal")

    def __init__(self, callers: "Callers", context: _Context) -> None:
        self._callers = callers
        self.context = context
        self.principal = callers.principal(context)

    def remaining_s(self) -> float | None:
        """Seconds to the call's deadline, or None if it has none."""
        remaining: float | None = self.context.time_remaining()
        return remaining

    def header(self, name: str) -> str:
        """One header of the call, or ""."""
        return self._callers.header(self.context, name)

    def peer(self, stated: str) -> str:
        """The peer that the call is from, or ""; raises ``Refused`` if the principal may not be that peer."""
        peer = stated or self.header("x-peer-id") or self.principal
        if self.principal and peer != self.principal and not peer.startswith(self.principal + "/"):
            raise Refused(
                Reason.FORBIDDEN,
                f"{self.principal} may call as peer {self.principal!r} or {self.principal + '/…'!r}, not as {peer!r}",
                "peer_id",
            )
        return peer

    def call(self, request: Any, *, needs_peer: bool = False, memorable: bool = False) -> Call:
        """The part that all ops share.

        ``needs_peer`` where an anonymous caller is refused; ``memorable`` where doing the op twice would do harm, so
        that it has an operation id in any case: consensus may send one proposal twice.
        """
        operation_id: str = request.operation_id
        if len(operation_id) > MAX_OPERATION_ID:
            refuse(f"has {len(operation_id)} characters; {MAX_OPERATION_ID} are allowed", "operation_id")
        peer = self.peer(request.peer_id)
        if not peer:
            if needs_peer:
                refuse("say which peer this is, here or in the header x-peer-id", "peer_id")
            peer = _host(self.context)
        if memorable and not operation_id:
            operation_id = self._callers.next_operation_id()
        return Call(request.namespace or DEFAULT_NAMESPACE, peer, self.principal, operation_id)


class Speaker(Caller):
    """One call of a conversation: from whom the stream is, with a deadline and a trace of its own."""

    __slots__ = ("_traceparent", "_until")

    def __init__(self, stream: Caller, until: float | None, traceparent: str) -> None:
        self._callers = stream._callers
        self.context = stream.context
        self.principal = stream.principal
        # On the loop's clock.
        self._until = until
        self._traceparent = traceparent

    def remaining_s(self) -> float | None:
        """Seconds to the call's deadline, or None if it has none."""
        return None if self._until is None else max(0.0, self._until - asyncio.get_running_loop().time())

    def header(self, name: str) -> str:
        """One header of the stream, but for the trace."""
        if name == "traceparent" and self._traceparent:
            return self._traceparent
        return super().header(name)


class Callers:
    """What a node knows about callers in general."""

    def __init__(self, *, run: str, trust_principal_header: bool = False, authenticated: bool = False) -> None:
        # Names this run of this node, so that the operation ids made here are nobody else's.
        self._run = run
        self._count = 0
        self._trust_header = trust_principal_header
        self._authenticated = authenticated

    def next_operation_id(self) -> str:
        """An operation id for a caller that gave none."""
        self._count += 1
        return f"{self._run}.{self._count:x}"

    def header(self, context: _Context, name: str) -> str:
        """One header of the call, or ""."""
        for key, value in context.invocation_metadata() or ():
            if key == name:
                return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        return ""

    def principal(self, context: _Context) -> str:
        """Who the caller is, as far as somebody has made sure; "" if nobody has."""
        if self._trust_header:
            stated = self.header(context, "x-client-principal")
            if stated:
                return stated[:MAX_NAME]
        if not self._authenticated:
            return ""
        return _certified(context.auth_context())


def _certified(auth: Mapping[str, Any]) -> str:
    """The name in the client's certificate: its common name, or else its first alternative name."""
    for key in ("x509_common_name", "x509_subject_alternative_name"):
        for value in auth.get(key) or ():
            name = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
            if name:
                return name[:MAX_NAME]
    return ""


def _host(context: _Context) -> str:
    """The caller's host, which names a caller that does not name itself; the port would name each connection anew."""
    kind, _, address = unquote(context.peer()).partition(":")
    host = address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else address
    return f"host:{host or kind}"[:MAX_NAME]
