"""A cluster of make-believe nodes in this process: one shared queue behind several gRPC servers, and faults to order.

It knows only as much of the rules as a client can notice: operations are remembered by their id, leases are held by
fence, and a call can be lost, refused, held up, or meet a node that is gone.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from fake_conversation import FakeConversation
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2
from grpc import aio

from resourcelease import v1
from resourcelease.client import Backoff, Client
from resourcelease.v1.admin_service_pb2_grpc import AdminServiceServicer, add_AdminServiceServicer_to_server
from resourcelease.v1.event_service_pb2_grpc import EventServiceServicer, add_EventServiceServicer_to_server
from resourcelease.v1.lease_service_pb2_grpc import LeaseServiceServicer, add_LeaseServiceServicer_to_server

__all__ = ["Cluster", "FakeNode", "play", "quick", "refuse", "until"]

STATUS = {
    "NO_LEADER": grpc.StatusCode.UNAVAILABLE,
    "OUTCOME_UNKNOWN": grpc.StatusCode.UNKNOWN,
    "INVALID_ARGUMENT": grpc.StatusCode.INVALID_ARGUMENT,
    "PAUSED": grpc.StatusCode.FAILED_PRECONDITION,
    "CONFLICT": grpc.StatusCode.ALREADY_EXISTS,
    "FORBIDDEN": grpc.StatusCode.PERMISSION_DENIED,
}


async def refuse(
    context: Any, reason: str, message: str = "no", field: str = "", retry_ms: int | None = None, code: Any = None
) -> None:
    """Refuses a call whole, as the contract says it."""
    info = error_details_pb2.ErrorInfo(reason=reason, domain="resourcelease")
    if field:
        info.metadata["field"] = field
    details = [info] if retry_ms is None else [info, error_details_pb2.RetryInfo()]
    if retry_ms is not None:
        details[1].retry_delay.FromMilliseconds(retry_ms)
    packed = []
    for detail in details:
        holder = AnyMessage()
        holder.Pack(detail)
        packed.append(holder)
    code = code or STATUS[reason]
    status = status_pb2.Status(code=code.value[0], message=message, details=packed)
    metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(code, message, trailing_metadata=metadata)


async def until(condition: Callable[[], bool]) -> None:
    """Lets the loop run until something is so that sets no event."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.002)


class Cluster:
    """What all nodes share."""

    def __init__(self) -> None:
        self.pending: deque[tuple[int, v1.ItemPayload]] = deque()
        self.active: dict[int, tuple[int, v1.ItemPayload, str]] = {}
        self.completed: list[int] = []
        self.failed: list[v1.FailEntry] = []
        self.handed_back: list[int] = []
        self.answers: dict[str, Any] = {}
        self.calls: Counter[str] = Counter()
        self.entries: Counter[str] = Counter()
        self.operation_ids: list[tuple[str, str]] = []
        self.events: list[v1.Event] = []
        self.nodes: list[FakeNode] = []
        # The address that members name as the leader's; any node answers all the same.
        self.leader = ""
        self.capacity = 1_000_000
        self.lease_ms = 30_000
        self.heartbeat_ms = 10_000
        self.waiting = 0
        self.next_id = 1
        self.next_fence = 1
        self.changed = asyncio.Condition()

    async def start(self, nodes: int = 1) -> list[str]:
        """Starts nodes and returns their addresses."""
        for _ in range(nodes):
            # The rest of the services answers UNIMPLEMENTED.
            node = FakeNode(self)  # type: ignore[abstract]
            await node.start()
            self.nodes.append(node)
        return [node.address for node in self.nodes]

    async def stop(self) -> None:
        """Stops all nodes."""
        for node in self.nodes:
            await node.stop()

    def once(self, operation_id: str, do: Callable[[], Any]) -> Any:
        """The first answer of an operation, however often it comes."""
        if operation_id not in self.answers:
            self.answers[operation_id] = do()
        return self.answers[operation_id]

    def enqueue(self, items: Any) -> v1.EnqueueResponse:
        """Appends what there is room for."""
        results = []
        for item in items:
            if len(self.pending) + len(self.active) >= self.capacity:
                error = v1.ItemError(reason="QUEUE_FULL", message="the queue is full", retry_after_ms=5)
                results.append(v1.EnqueueResult(error=error))
                continue
            self.pending.append((self.next_id, item))
            results.append(v1.EnqueueResult(enqueued=v1.Enqueued(sequence_id=self.next_id)))
            self.next_id += 1
        return v1.EnqueueResponse(results=results)

    def grant(self, peer: str, most: int) -> list[v1.Lease]:
        """Leases what is pending."""
        leases: list[v1.Lease] = []
        while self.pending and len(leases) < most:
            sequence, item = self.pending.popleft()
            fence, self.next_fence = self.next_fence, self.next_fence + 1
            self.active[fence] = (sequence, item, peer)
            handle = v1.Handle(sequence_id=sequence, attempt=1, lease_id=fence)
            leases.append(v1.Lease(handle=handle, payload=item, remaining_ms=self.lease_ms))
        return leases

    def take_away(self, fence: int) -> None:
        """Ends a lease behind its holder's back."""
        self.pending.append(self.active.pop(fence)[:2])

    def complete(self, entries: Any) -> v1.CompleteResponse:
        """Ends items whose lease lives."""
        results = []
        for entry in entries:
            found = self.active.pop(entry.handle.lease_id, None)
            if found is None:
                results.append(v1.CompleteResult(error=lost(entry.handle)))
            else:
                self.completed.append(found[0])
                results.append(v1.CompleteResult(completed=v1.Completed()))
        return v1.CompleteResponse(results=results)

    def fail(self, entries: Any) -> v1.FailResponse:
        """Ends attempts, or takes leases back."""
        results = []
        for entry in entries:
            found = self.active.pop(entry.handle.lease_id, None)
            if found is None:
                results.append(v1.FailResult(error=lost(entry.handle)))
                continue
            if entry.give_back:
                self.handed_back.append(found[0])
                self.pending.appendleft(found[:2])
            else:
                self.failed.append(entry)
            results.append(v1.FailResult(failed=v1.Failed()))
        return v1.FailResponse(results=results)

    def heartbeat(self, handles: Any) -> v1.HeartbeatResponse:
        """Extends what lives."""
        results = [
            v1.HeartbeatResult(extended=v1.Extended())
            if handle.lease_id in self.active
            else v1.HeartbeatResult(error=lost(handle))
            for handle in handles
        ]
        return v1.HeartbeatResponse(results=results, remaining_ms=self.lease_ms)

    async def notify(self) -> None:
        """Something changed: whoever waits looks again."""
        async with self.changed:
            self.changed.notify_all()


def lost(handle: v1.Handle) -> v1.ItemError:
    """The error for a lease that is over."""
    return v1.ItemError(reason="LEASE_LOST", message=f"the lease on item {handle.sequence_id} is over")


class FakeNode(LeaseServiceServicer, AdminServiceServicer, EventServiceServicer):
    """One server. ``faults`` are awaited, one per call, before or after the call takes effect."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.address = ""
        self.before: deque[Callable[[Any], Any]] = deque()
        self.after: deque[Callable[[Any], Any]] = deque()
        self.frozen = False
        self.largest = 16 * 1024 * 1024
        self.streams = 0
        # The status with which it declines conversations, as a node of an earlier release does; how often it did.
        self.declines: grpc.StatusCode | None = None
        self.declined = 0
        # Whether it says that it reads columns, which a node of an earlier release does not.
        self.reads_packed = False
        # Awaited as a conversation begins.
        self.meets: Callable[[Any], Any] | None = None
        self.conversations: list[FakeConversation] = []
        self.work_calls: list[Any] = []
        self._server: aio.Server | None = None

    async def start(self) -> None:
        """Listens, on the same port as before if there was one."""
        self._server = aio.server(options=(("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)))
        add_LeaseServiceServicer_to_server(self, self._server)
        add_AdminServiceServicer_to_server(self, self._server)
        add_EventServiceServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """Goes away at once."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _change(self, kind: str, request: Any, context: Any, do: Callable[[], Any]) -> Any:
        cluster = self.cluster
        cluster.calls[kind] += 1
        cluster.operation_ids.append((kind, request.operation_id))
        if self.frozen:
            await asyncio.Event().wait()
        if self.before:
            await self.before.popleft()(context)
        answer = cluster.once(request.operation_id, do)
        await cluster.notify()
        if self.after:
            await self.after.popleft()(context)
        return answer

    async def Enqueue(self, request: Any, context: Any) -> Any:
        self.cluster.entries["Enqueue"] += len(request.items)
        if request.ByteSize() > self.largest:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "received message larger than max")
        return await self._change("Enqueue", request, context, lambda: self.cluster.enqueue(request.items))

    async def Lease(self, request: Any, context: Any) -> Any:
        deadline = asyncio.get_running_loop().time() + request.wait_ms / 1000
        while not self.cluster.pending and (left := deadline - asyncio.get_running_loop().time()) > 0:
            self.cluster.waiting += 1
            async with self.cluster.changed:
                try:
                    async with asyncio.timeout(left):
                        await self.cluster.changed.wait()
                except TimeoutError:
                    break
                finally:
                    self.cluster.waiting -= 1
        if not self.cluster.pending and not self.before:
            self.cluster.calls["Lease"] += 1
            return v1.LeaseResponse()

        def grant() -> v1.LeaseResponse:
            return v1.LeaseResponse(leases=self.cluster.grant(request.peer_id, request.max_items))

        return await self._change("Lease", request, context, grant)

    async def Complete(self, request: Any, context: Any) -> Any:
        self.cluster.entries["Complete"] += len(request.entries)
        return await self._change("Complete", request, context, lambda: self.cluster.complete(request.entries))

    async def Fail(self, request: Any, context: Any) -> Any:
        return await self._change("Fail", request, context, lambda: self.cluster.fail(request.entries))

    async def Heartbeat(self, request: Any, context: Any) -> Any:
        return await self._change("Heartbeat", request, context, lambda: self.cluster.heartbeat(request.handles))

    async def Status(self, request: Any, context: Any) -> Any:
        if self.frozen:
            await asyncio.Event().wait()
        return v1.StatusResponse(node_id=self.address, role=v1.NodeRole.NODE_ROLE_LEADER)

    async def Members(self, request: Any, context: Any) -> Any:
        roles = {self.cluster.leader: v1.NodeRole.NODE_ROLE_LEADER}
        members = [
            v1.Member(
                node_id=node.address,
                client_address=node.address,
                role=roles.get(node.address, v1.NodeRole.NODE_ROLE_FOLLOWER),
            )
            for node in self.cluster.nodes
        ]
        return v1.MembersResponse(members=members)

    async def Subscribe(self, request: Any, context: Any) -> AsyncIterator[Any]:
        at = request.from_sequence
        head = len(self.cluster.events)
        yield v1.SubscribeResponse(next_sequence=at, head_sequence=head)
        while True:
            fresh = self.cluster.events[at - 1 : at + 1]
            if fresh:
                at += len(fresh)
                yield v1.SubscribeResponse(events=fresh, next_sequence=at, head_sequence=head)
                if self.after:
                    await self.after.popleft()(context)
            elif request.to_sequence:
                return
            else:
                async with self.cluster.changed:
                    await self.cluster.changed.wait()

    async def Converse(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        if self.declines is not None:
            self.declined += 1
            await context.abort(self.declines, "no conversations here")
        if self.meets is not None:
            await self.meets(context)
        conversation = FakeConversation(self, context)
        self.conversations.append(conversation)
        reading = asyncio.create_task(conversation.read(requests))
        try:
            while (message := await conversation.out.get()) is not None:
                yield message
        finally:
            reading.cancel()
            await asyncio.gather(reading, conversation.end(), return_exceptions=True)

    async def Work(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        cluster = self.cluster
        if self.frozen:
            await asyncio.Event().wait()
        first = await anext(requests)
        stream = _Stream(cluster, first, context)
        self.streams += 1
        self.work_calls.append(stream)
        yield v1.WorkResponse(
            opened=v1.WorkOpened(
                node_id=self.address, lease_duration_ms=cluster.lease_ms, heartbeat_interval_ms=cluster.heartbeat_ms
            )
        )
        reading = asyncio.create_task(stream.read(requests, self))
        pushing = asyncio.create_task(stream.push())
        try:
            while (message := await stream.out.get()) is not None:
                yield message
        finally:
            reading.cancel()
            pushing.cancel()
            await asyncio.gather(reading, pushing, return_exceptions=True)


class _Stream:
    """One worker's stream on one node."""

    def __init__(self, cluster: Cluster, first: Any, context: Any) -> None:
        self.cluster = cluster
        self.peer = first.peer_id
        self.first = first
        self.context = context
        self.credit = first.credit
        self.out: asyncio.Queue[Any] = asyncio.Queue()
        for handle in first.open.held:
            if handle.lease_id not in cluster.active:
                self.lose(handle)

    def lose(self, handle: v1.Handle) -> None:
        gone = v1.LostLease(handle=handle, error=lost(handle))
        self.out.put_nowait(v1.WorkResponse(lost=v1.WorkLost(leases=[gone])))

    async def push(self) -> None:
        while True:
            leases = self.cluster.grant(self.peer, self.credit)
            if leases:
                self.credit -= len(leases)
                self.out.put_nowait(v1.WorkResponse(leases=v1.WorkLeases(leases=leases, credit_left=self.credit)))
            async with self.cluster.changed:
                await self.cluster.changed.wait()

    async def read(self, requests: Any, node: FakeNode) -> None:
        async for request in requests:
            self.credit = max(0, self.credit + request.credit)
            kind = request.WhichOneof("frame")
            if kind is not None and not node.frozen:
                await self._frame(kind, request, node)
            await self.cluster.notify()
        self.out.put_nowait(None)

    async def _frame(self, kind: str, request: Any, node: FakeNode) -> None:
        cluster = self.cluster
        cluster.calls[f"Work.{kind}"] += 1
        cluster.operation_ids.append((kind, request.operation_id))
        if node.before:
            refused = await node.before.popleft()(self.context)
            if refused is not None:
                done = v1.WorkDone(operation_id=request.operation_id, error=refused)
                self.out.put_nowait(v1.WorkResponse(done=done))
                return
        done = v1.WorkDone(operation_id=request.operation_id)
        frame = getattr(request, kind)
        do = {
            "complete": lambda: cluster.complete(frame.entries),
            "fail": lambda: cluster.fail(frame.entries),
            "heartbeat": lambda: cluster.heartbeat(frame.handles),
            "hand_back": lambda: cluster.fail([v1.FailEntry(handle=h, give_back=True) for h in frame.handles]),
        }[kind]
        getattr(done, kind).CopyFrom(cluster.once(request.operation_id, do))
        if node.after:
            await node.after.popleft()(self.context)
        self.out.put_nowait(v1.WorkResponse(done=done))


def play(story: Callable[[Cluster, list[str]], Awaitable[Any]], nodes: int = 1) -> Any:
    """Runs a story against a fresh cluster of so many nodes."""

    async def whole() -> Any:
        cluster = Cluster()
        addresses = await cluster.start(nodes)
        try:
            async with asyncio.timeout(30):
                return await story(cluster, addresses)
        finally:
            await cluster.stop()

    return asyncio.run(whole())


def quick(addresses: list[str], **options: Any) -> Client:
    """A client that does not wait long."""
    return Client(addresses, **{"timeout": 5.0, "backoff": Backoff(0.005, 0.02), **options})
