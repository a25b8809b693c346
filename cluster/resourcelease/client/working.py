"""Leasing, and what becomes of leases."""

import asyncio
from collections.abc import Mapping, Sequence

from resourcelease import v1
from resourcelease.client.core import Core
from resourcelease.client.errors import ResourceLeaseError, SomeRefused, error_of_item
from resourcelease.client.lane import MOST_ENTRIES
from resourcelease.client.lease import Acks, Lease, complete_all, fail_entry, way_of
from resourcelease.client.stream import LeaseStream

__all__ = ["Working"]

Held = Lease | v1.Handle


class Working(Core):
    """The worker's calls."""

    async def lease(
        self, n: int = 1, *, wait: float = 0.0, namespace: str | None = None, peer_id: str | None = None
    ) -> list[Lease]:
        """Takes up to ``n`` items; waits up to ``wait`` seconds for the first if there is none.

        Leases taken so are kept alive by heartbeats from ``async with lease`` on; before that, and without it, they
        run out at ``lease.deadline`` unless ``heartbeat`` is called.

        ```py
        for lease in await client.lease(10, wait=20):
            async with lease:
                ...
        ```
        """
        if not 1 <= n <= 10_000:
            raise ValueError(f"n is {n}; it must be 1 to 10000")
        return await self._desk(namespace, peer_id, wait).ask(n)

    def leases(
        self,
        peer_id: str | None = None,
        credit: int = 16,
        *,
        namespace: str | None = None,
        exclusive: bool | None = None,
    ) -> LeaseStream:
        """An endless stream of leases, pushed as items arrive, with at most ``credit`` of them unsettled.

        It heartbeats by itself and moves to another node when its own fails. Without ``peer_id`` it gets a name of
        its own. ``exclusive`` says that nobody else uses that name: leases that were lost on the way when a node died
        are then given back at once, instead of running out. It is assumed for the stream's own name only.

        What the stream holds stays held until it is closed, by ``aclose``, ``async with``, or with the client.

        ```py
        async for lease in client.leases(credit=16):
            async with lease:
                store.write(lease.resource_id, fence=lease.fence)
        ```
        """
        self._must_be_open()
        own = peer_id is None
        if peer_id is None:
            self._stream_count += 1
            peer_id = f"{self._stream_prefix}/{self._stream_count}"
        stream = LeaseStream(
            self._caller,
            namespace or self.namespace,
            peer_id,
            credit,
            exclusive=own if exclusive is None else exclusive,
        )
        self._streams[stream] = None
        stream.on_close = self._streams.pop
        return stream

    async def complete(self, lease: Held, *, namespace: str | None = None, peer_id: str | None = None) -> None:
        """Ends an item well; by its lease, or by the bare handle."""
        if isinstance(lease, Lease):
            await lease.complete()
        else:
            await self._acks(namespace, peer_id).completing.put(_parts(lease))

    async def fail(
        self,
        lease: Held,
        message: str = "",
        *,
        code: str = "",
        metadata: Mapping[str, str] | None = None,
        requeue: bool = True,
        delay: float | None = None,
        namespace: str | None = None,
        peer_id: str | None = None,
    ) -> None:
        """Ends an attempt badly: tried again after ``delay`` seconds, or a dead letter with ``requeue=False``."""
        if isinstance(lease, Lease):
            await lease.fail(message, code=code, metadata=metadata, requeue=requeue, delay=delay)
        else:
            entry = fail_entry(lease, message, code=code, metadata=metadata, requeue=requeue, delay=delay)
            await self._acks(namespace, peer_id).failing.put(entry)

    async def give_back(self, lease: Held, *, namespace: str | None = None, peer_id: str | None = None) -> None:
        """Returns a lease unused: no attempt is spent."""
        if isinstance(lease, Lease):
            await lease.give_back()
        else:
            await self._acks(namespace, peer_id).failing.put(v1.FailEntry(handle=lease, give_back=True))

    async def heartbeat(
        self,
        lease: Held | None = None,
        *,
        namespace: str | None = None,
        peer_id: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Extends a lease; without one, every lease that the peer holds, at the cost of one.

        ``metadata`` goes with the event, also of a lease that is kept alive otherwise.
        """
        if metadata:
            handles = [] if lease is None else [_handle(lease)]
            of = self._of(namespace, peer_id)
            told = v1.HeartbeatRequest(**of, handles=handles, all_of_peer=lease is None, metadata=dict(metadata))
            answer: v1.HeartbeatResponse = await self._caller.change("Heartbeat", told)
            for result in answer.results:
                if result.HasField("error"):
                    raise error_of_item(result.error)
        elif isinstance(lease, Lease):
            await lease.heartbeat()
        elif lease is not None:
            await self._acks(namespace, peer_id).beating.put(lease)
        else:
            request = v1.HeartbeatRequest(**self._of(namespace, peer_id), all_of_peer=True)
            await self._caller.change("Heartbeat", request)

    async def complete_many(
        self, leases: Sequence[Held], *, namespace: str | None = None, peer_id: str | None = None
    ) -> None:
        """Ends many items well, in one call with what others complete then; ``SomeRefused.results`` says which not.

        A lease goes the way it came, under the name that holds it. The namespace and the peer are for bare handles.
        """
        results: list[ResourceLeaseError | None] = [None] * len(leases)
        ways: dict[Acks | None, list[int]] = {}
        for at, lease in enumerate(leases):
            ways.setdefault(way_of(lease) if isinstance(lease, Lease) else None, []).append(at)

        async def settle(places: list[int]) -> None:
            held = [leases[at] for at in places]
            known = [lease for lease in held if isinstance(lease, Lease)]
            if known:
                verdicts = await complete_all(known)
            else:
                bare = [_parts(lease) for lease in held if isinstance(lease, v1.Handle)]
                verdicts = await self._acks(namespace, peer_id).completing.put_many(bare)
            for at, verdict in zip(places, verdicts, strict=True):
                results[at] = verdict

        parts = [
            places[at : at + MOST_ENTRIES] for places in ways.values() for at in range(0, len(places), MOST_ENTRIES)
        ]
        if len(parts) == 1:
            await settle(parts[0])
        else:
            await asyncio.gather(*map(settle, parts))
        if any(results):
            raise SomeRefused(results)


def _parts(handle: v1.Handle) -> tuple[int, int, int]:
    return handle.sequence_id, handle.attempt, handle.lease_id


def _handle(lease: Held) -> v1.Handle:
    return lease.handle if isinstance(lease, Lease) else lease
