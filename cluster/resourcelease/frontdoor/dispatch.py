"""From a table of methods to gRPC handlers: one path for every call, made by itself or in a conversation.

A request that is no message, a refusal, and an error nobody foresaw each become a status here and nowhere else.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import grpc
from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2

from resourcelease.frontdoor.callers import Caller, Callers
from resourcelease.frontdoor.gate import Gate
from resourcelease.frontdoor.refusals import DETAILS_KEY, Refused, trailers
from resourcelease.frontdoor.scan import too_many_entries
from resourcelease.model.errors import Reason

__all__ = ["Dispatch", "Method", "NoMessage", "Unary", "plain_status", "reader", "status_text"]

logger = logging.getLogger(__name__)

Unary = Callable[[Caller, Any], Awaitable[Any]]
ServerStream = Callable[[Caller, Any], AsyncGenerator[Any, None]]
Duplex = Callable[[Caller], Awaitable[None]]
Method = Unary | ServerStream | Duplex
_Context = grpc.aio.ServicerContext[Any, Any]


class NoMessage(NamedTuple):
    """What stands for a request that could not be read."""

    why: str


class Dispatch:
    """Makes handlers of methods."""

    def __init__(self, callers: Callers, gate: Gate) -> None:
        self._callers = callers
        self._gate = gate

    def service(self, service: ServiceDescriptor, methods: Mapping[str, Any]) -> grpc.GenericRpcHandler:
        """The handler of a service; ``methods`` has every one of its methods, by name."""
        declared = {method.name for method in service.methods}
        assert declared == set(methods), declared ^ set(methods)
        handlers = {method.name: self._handler(method, methods[method.name]) for method in service.methods}
        return grpc.method_handlers_generic_handler(service.full_name, handlers)

    def _handler(self, method: MethodDescriptor, run: Any) -> Any:
        read = reader(method)
        write = GetMessageClass(method.output_type).SerializeToString
        if method.client_streaming:
            return grpc.stream_stream_rpc_method_handler(self.duplex(run), read, write)
        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(self._server_stream(run), read, write)
        return grpc.unary_unary_rpc_method_handler(self._unary(run), read, write)

    def _unary(self, run: Unary) -> Callable[[Any, _Context], Awaitable[Any]]:
        async def handle(request: Any, context: _Context) -> Any:
            key = context.peer()
            try:
                self._gate.enter(key)
                try:
                    if type(request) is NoMessage:
                        raise Refused(Reason.INVALID_ARGUMENT, request.why)
                    return await run(Caller(self._callers, context), request)
                finally:
                    self._gate.leave(key)
            except Exception as error:
                await _abort(context, error)

        return handle

    def _server_stream(self, run: ServerStream) -> Callable[[Any, _Context], Awaitable[None]]:
        async def handle(request: Any, context: _Context) -> None:
            key = context.peer()
            try:
                self._gate.enter_stream(key)
                try:
                    if type(request) is NoMessage:
                        raise Refused(Reason.INVALID_ARGUMENT, request.why)
                    async with aclosing(run(Caller(self._callers, context), request)) as messages:
                        async for message in messages:
                            await context.write(message)
                finally:
                    self._gate.leave_stream(key)
            except Exception as error:
                await _abort(context, error)

        return handle

    def duplex(self, run: Duplex) -> Callable[[Any, _Context], Awaitable[None]]:
        """Serves a stream that both sides write to; what it is given as a context may be less than gRPC's."""

        async def handle(_: Any, context: _Context) -> None:
            key = context.peer()
            try:
                self._gate.enter_stream(key)
                try:
                    await run(Caller(self._callers, context))
                finally:
                    self._gate.leave_stream(key)
            except Exception as error:
                await _abort(context, error)

        return handle


def reader(method: MethodDescriptor) -> Callable[[bytes], Any]:
    """Reads a request, or says why it is none; a reader that raised would be an error of the server's."""
    kind: type[Message] = GetMessageClass(method.input_type)
    listed = _listed(method.input_type)
    # Columns of text: an empty value takes little on the wire and more once read.
    packed = [field for field in method.input_type.fields if field.name == "packed"]
    columns = {field.number: _listed(field.message_type) for field in packed if field.message_type is not None}

    def read(data: bytes) -> Any:
        try:
            if too_many_entries(data, listed, columns):
                return NoMessage(f"the {method.input_type.name} lists more entries than any list may have")
            return kind.FromString(data)
        except DecodeError:
            return NoMessage(f"{len(data)} bytes that are not a {method.input_type.name}")

    return read


def _listed(message: Descriptor) -> list[int]:
    return [field.number for field in message.fields if field.is_repeated]


async def _abort(context: _Context, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        _let_go_soon(error)
        raise error
    if context.done() or isinstance(error, grpc.aio.InternalError):
        # The caller has gone, or takes nothing any more: there is nobody to tell.
        raise asyncio.CancelledError from error
    code, message, metadata = status_of(error)
    try:
        await context.abort(code, message, metadata)
    except grpc.aio.AbortError as aborted:
        _let_go_soon(aborted)
        raise
    except grpc.aio.InternalError as gone:
        raise asyncio.CancelledError from gone


def _let_go_soon(aborted: BaseException) -> None:
    """Once it has been raised to its end: gRPC keeps it with the call, and by its traceback it would keep the call.

    Such a circle is for the collector, who looks at nothing that has grown old (``node.collector``), as a call has that
    waits long before it is refused.
    """
    asyncio.get_running_loop().call_soon(_let_go, aborted)


def _let_go(aborted: BaseException) -> None:
    aborted.__traceback__ = aborted.__context__ = aborted.__cause__ = None


def status_of(error: Exception) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Code, message and trailing metadata for a call that ended so."""
    if isinstance(error, Refused):
        return trailers(error)
    logger.error("a call failed for a reason nobody foresaw", exc_info=error)
    return grpc.StatusCode.INTERNAL, f"an error of this node: {type(error).__name__}; see its log", ()


def status_text(error: Exception) -> bytes:
    """The same as a serialized google.rpc.Status, for a call that has no trailers of its own."""
    code, message, metadata = status_of(error)
    for key, value in metadata:
        if key == DETAILS_KEY:
            return value
    return plain_status(code, message)


def plain_status(code: grpc.StatusCode, message: str) -> bytes:
    """A serialized google.rpc.Status without details."""
    text: bytes = status_pb2.Status(code=code.value[0], message=message).SerializeToString()
    return text
