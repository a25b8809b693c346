"""A conversation with a make-believe node: its calls go to the node's own unary methods."""

import asyncio
from typing import Any

import grpc
from google.rpc import status_pb2

from resourcelease import v1

__all__ = ["FakeConversation"]

REQUESTS: dict[int, tuple[str, Any]] = {
    v1.ConverseMethod.CONVERSE_METHOD_ENQUEUE: ("Enqueue", v1.EnqueueRequest),
    v1.ConverseMethod.CONVERSE_METHOD_LEASE: ("Lease", v1.LeaseRequest),
    v1.ConverseMethod.CONVERSE_METHOD_HEARTBEAT: ("Heartbeat", v1.HeartbeatRequest),
    v1.ConverseMethod.CONVERSE_METHOD_COMPLETE: ("Complete", v1.CompleteRequest),
    v1.ConverseMethod.CONVERSE_METHOD_FAIL: ("Fail", v1.FailRequest),
}


class Aborted(Exception):
    """How one call ends that is refused."""

    def __init__(self, status: bytes) -> None:
        super().__init__(status)
        self.status = status


class CallContext:
    """What a call sees of its connection; ``stream`` is that of all calls."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    async def abort(self, code: grpc.StatusCode, message: str = "", trailing_metadata: Any = ()) -> None:
        plain = status_pb2.Status(code=code.value[0], message=message).SerializeToString()
        raise Aborted(dict(trailing_metadata).get("grpc-status-details-bin", plain))


class FakeConversation:
    """What came, in messages as they came, and what goes."""

    def __init__(self, node: Any, context: Any) -> None:
        self.node = node
        self.context = context
        self.frames: list[v1.ConverseRequest] = []
        self.cancelled: list[int] = []
        self.timeouts: list[int] = []
        # Of each call, whether its list came as columns.
        self.packed: list[bool] = []
        self.out: asyncio.Queue[v1.ConverseResponse | None] = asyncio.Queue()
        self.ended = asyncio.Event()
        # Whether the node ends the stream once the client has.
        self.ends = True
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def go_away(self) -> None:
        self.out.put_nowait(v1.ConverseResponse(go_away=v1.ConverseGoAway(message="stopping")))

    async def read(self, requests: Any) -> None:
        async for frame in requests:
            self.frames.append(frame)
            for call in frame.calls:
                self.timeouts.append(call.timeout_ms)
                self._tasks[call.number] = asyncio.create_task(self._answer(call))
            for number in frame.cancelled:
                self.cancelled.append(number)
                self._tasks[number].cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self.ends:
            self.out.put_nowait(None)

    async def end(self) -> None:
        self.ended.set()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _answer(self, call: v1.ConverseCall) -> None:
        name, kind = REQUESTS[call.method]
        answer = v1.ConverseAnswer(number=call.number)
        request = kind.FromString(call.request)
        self.packed.append(name in ("Enqueue", "Complete") and request.HasField("packed"))
        if self.packed[-1]:
            assert self.node.reads_packed
            _spell(request)
        try:
            told = await getattr(self.node, name)(request, CallContext(self.context))
            answer.response = told.SerializeToString()
        except Aborted as aborted:
            answer.status = aborted.status
        self.out.put_nowait(v1.ConverseResponse(answers=[answer], reads_packed=self.node.reads_packed))


def _spell(request: Any) -> None:
    """Puts a message an entry in the place of columns."""
    packed = request.packed
    if isinstance(request, v1.EnqueueRequest):
        kinds = list(packed.resource_types) * (packed.count if len(packed.resource_types) == 1 else 1)
        for kind, name in zip(kinds, packed.resource_ids, strict=True):
            request.items.add(resource_type=kind, resource_id=name)
    else:
        attempts = list(packed.attempts) * (len(packed.lease_ids) if len(packed.attempts) == 1 else 1)
        for sequence_id, attempt, fence in zip(packed.sequence_ids, attempts, packed.lease_ids, strict=True):
            request.entries.add(handle=v1.Handle(sequence_id=sequence_id, attempt=attempt, lease_id=fence))
    request.ClearField("packed")
