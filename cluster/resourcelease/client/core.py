"""What all parts of the client share: the nodes, the caller, and the lanes that join calls."""

import secrets
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol, TypeVar

from resourcelease import v1
from resourcelease.client.acks import CallAcks
from resourcelease.client.caller import Caller
from resourcelease.client.desk import Desk
from resourcelease.client.errors import ResourceLeaseError, error_of_item
from resourcelease.client.items import Enqueued, NewItem
from resourcelease.client.lane import Lane
from resourcelease.client.nodes import Nodes
from resourcelease.client.options import DEFAULT_NAMESPACE, Backoff, Tls, endpoints_of, own_peer_id
from resourcelease.client.packing import Items
from resourcelease.client.stream import LeaseStream

__all__ = ["Core"]

# Lanes of unusual waits are forgotten when there are more of them than this.
MOST_LANES = 64


Key = TypeVar("Key")


class _Idle(Protocol):
    @property
    def idle(self) -> bool: ...


Kept = TypeVar("Kept", bound=_Idle)


class Core:
    """A connection to a cluster; see ``Client``, which adds the calls."""

    def __init__(
        self,
        endpoints: str | Iterable[str] | None,
        namespace: str,
        peer_id: str | None,
        tls: Tls | None,
        timeout: float,
        backoff: Backoff,
        metadata: Mapping[str, str] | None,
        *,
        prefer_leader: bool = False,
    ) -> None:
        if timeout <= 0:
            raise ValueError(f"timeout is {timeout}; it must be more than 0 seconds")
        self.namespace = namespace or DEFAULT_NAMESPACE
        """Where calls go that name no namespace."""
        self.peer_id = peer_id or (tls or Tls()).own_name(own_peer_id())
        """Who calls."""
        self.timeout = timeout
        self._nodes = Nodes(endpoints_of(endpoints), tls, metadata or {}, prefer_leader=prefer_leader)
        self._caller = Caller(self._nodes, timeout, backoff)
        self._enqueueing: dict[tuple[str, float | None], Lane[NewItem, Enqueued]] = {}
        self._acking: dict[tuple[str, str], CallAcks] = {}
        self._desks: dict[tuple[str, str, float], Desk] = {}
        self._streams: dict[LeaseStream, None] = {}
        self._stream_count = 0
        # Streams without a name have one that is theirs alone, also where several processes share a name.
        self._stream_prefix = self.peer_id if peer_id is None else f"{self.peer_id}/{secrets.token_hex(3)}"
        self._closed = False

    @property
    def endpoints(self) -> list[str]:
        """The nodes that are known, given or found."""
        return self._nodes.addresses

    async def close(self) -> None:
        """Closes everything: streams give back their leases, calls under way are given up."""
        if self._closed:
            return
        self._closed = True
        for stream in list(self._streams):
            await stream.aclose()
        for desk in self._desks.values():
            await desk.close()
        for acks in self._acking.values():
            await acks.close()
        for lane in self._enqueueing.values():
            await lane.close()
        await self._caller.close()
        await self._nodes.close()

    def _of(self, namespace: str | None, peer_id: str | None = None) -> dict[str, Any]:
        """The fields that every change begins with."""
        self._must_be_open()
        return {"namespace": namespace or self.namespace, "peer_id": peer_id or self.peer_id}

    def _must_be_open(self) -> None:
        if self._closed:
            raise RuntimeError("the client is closed")

    def _lane(self, namespace: str, wait: float | None) -> Lane[NewItem, Enqueued]:
        lane = self._enqueueing.get((namespace, wait))
        if lane is None:
            self._must_be_open()
            _forget_idle(self._enqueueing)

            async def send(items: list[NewItem], oldest: float) -> Sequence[Enqueued | ResourceLeaseError]:
                return await self._enqueue(namespace, items, wait, self._caller.left(oldest))

            lane = self._enqueueing[namespace, wait] = Lane(send, self._caller.runway)
        return lane

    async def _enqueue(
        self, namespace: str, items: Sequence[NewItem], wait: float | None, timeout: float
    ) -> list[Enqueued | ResourceLeaseError]:
        request = v1.EnqueueRequest(namespace=namespace, peer_id=self.peer_id)
        # Half of the time for waiting at the node leaves the other half for another node, if this one goes.
        room = min(timeout / 2 if wait is None else wait, timeout)
        rest = max(timeout - room, timeout / 4)
        answer: v1.EnqueueResponse = await self._caller.change(
            "Enqueue", request, rest, wait=room, entries=Items(items)
        )
        if first := answer.first_sequence_id:
            return [Enqueued(sequence_id, False) for sequence_id in range(first, first + len(items))]
        return [
            error_of_item(result.error)
            if result.HasField("error")
            else Enqueued(result.enqueued.sequence_id, result.enqueued.duplicate)
            for result in answer.results
        ]

    def _acks(self, namespace: str | None, peer_id: str | None) -> CallAcks:
        key = (namespace or self.namespace, peer_id or self.peer_id)
        acks = self._acking.get(key)
        if acks is None:
            self._must_be_open()
            acks = self._acking[key] = CallAcks(self._caller, *key)
        return acks

    def _desk(self, namespace: str | None, peer_id: str | None, wait: float) -> Desk:
        key = (namespace or self.namespace, peer_id or self.peer_id, wait)
        desk = self._desks.get(key)
        if desk is None:
            self._must_be_open()
            _forget_idle(self._desks)
            desk = self._desks[key] = Desk(self._caller, *key, self._acks(namespace, peer_id))
        return desk


def _forget_idle(lanes: MutableMapping[Key, Kept]) -> None:
    if len(lanes) >= MOST_LANES:
        for key in [key for key, lane in lanes.items() if lane.idle]:
            del lanes[key]
