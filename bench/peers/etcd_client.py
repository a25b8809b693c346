"""A queue on etcd, as a careful user writes it: an item is a key, a claim is a key that lives as long as its owner.

Enqueue puts items. A claim is a transaction: the item is as it was read, nobody has claimed it, then the claim is put
under the worker's etcd lease of 30 s, which is kept alive; when the worker dies its claims go, and its items are free
again with nothing else to do. Completing is a transaction too: the claim is this worker's, then item and claim go.
What is free is looked up once for all workers of a process and dealt out, so they do not fight over the same items.
"""

import asyncio
import contextlib
import itertools
import random
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import grpc
from grpc import aio

from bench.peers.base import LEASE_SECONDS, TRY_SECONDS, Claim, Refused, Worker, body_of, number_of
from bench.peers.etcd_messages import METHODS, message

__all__ = ["MOST_OPS", "Etcd", "EtcdSession"]

# The servers are started with room for so many operations in a transaction.
MOST_OPS = 1024
_ITEMS, _CLAIMS = b"q/i/", b"q/c/"
_END = {_ITEMS: b"q/i0", _CLAIMS: b"q/c0"}
_FILL_ITEMS = 500
_FILL_CALLS = 8
# Free items that are looked up at once, at least.
_LOOK = 128
_PAUSE_SECONDS = 0.002
_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
)

_range, _compare, _op = message("RangeRequest"), message("Compare"), message("RequestOp")
_put, _delete, _txn = message("PutRequest"), message("DeleteRangeRequest"), message("TxnRequest")


class Etcd:
    """The calls, on whichever server the channel picks."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.channel = aio.insecure_channel("ipv4:" + ",".join(addresses), options=_OPTIONS)
        self._calls: dict[str, Any] = {}
        for name, (path, asks, answers) in METHODS.items():
            make = self.channel.stream_stream if name == "keep_alive" else self.channel.unary_unary
            self._calls[name] = make(
                path,
                request_serializer=message(asks).SerializeToString,
                response_deserializer=message(answers).FromString,
            )

    async def call(self, name: str, request: Any, seconds: float = TRY_SECONDS) -> Any:
        """One call."""
        return await self._calls[name](request, timeout=seconds)

    def keep_alive(self) -> Any:
        """A stream of signs of life."""
        return self._calls["keep_alive"]()


class EtcdSession:
    """A channel, and the free items that its process knows of."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.etcd = Etcd(addresses)
        self.free: deque[Any] = deque()
        self.taken: set[bytes] = set()
        self._claimed = 0
        self._look_up: asyncio.Task[None] | None = None
        self._names = itertools.count()
        self._prefix = f"{time.time_ns():020d}-{random.randrange(1 << 32):08x}-".encode()

    def key(self) -> bytes:
        """A new item's name: in the order of time over all processes, near enough."""
        return b"%020d-%s%08d" % (time.time_ns(), self._prefix[-9:], next(self._names))

    async def worker(self, name: str) -> Worker:
        """With a lease of its own."""
        granted = await self.etcd.call("grant", message("LeaseGrantRequest")(TTL=LEASE_SECONDS), 10.0)
        return _Worker(self, name.encode(), granted.ID)

    async def take(self, many: int) -> list[Any]:
        """Free items, as far as is known: at least one."""
        while not self.free:
            if self._look_up is None or self._look_up.done():
                self._look_up = asyncio.create_task(self._look(many))
            # Who asks meanwhile shares the answer.
            await asyncio.shield(self._look_up)
            if not self.free:
                await asyncio.sleep(_PAUSE_SECONDS)
        found = [self.free.popleft() for _ in range(min(many, len(self.free)))]
        self.taken.update(item.key for item in found)
        return found

    async def _look(self, many: int) -> None:
        """Reads the front of the queue and what of it is claimed; the claim itself will be checked."""
        limit = self._claimed + len(self.taken) + max(_LOOK, 4 * many)
        items = _range(key=_ITEMS, range_end=_END[_ITEMS], limit=limit, serializable=True)
        claims = _range(key=_CLAIMS, range_end=_END[_CLAIMS], keys_only=True, serializable=True)
        request = _txn(success=[_op(request_range=items), _op(request_range=claims)])
        answer = await self.etcd.call("txn", request)
        claimed = {claim.key[len(_CLAIMS) :] for claim in answer.responses[1].response_range.kvs}
        self._claimed = len(claimed)
        found = [
            item
            for item in answer.responses[0].response_range.kvs
            if item.key[len(_ITEMS) :] not in claimed and item.key not in self.taken
        ]
        self.free.extend(found)

    async def fill(self, numbers: Sequence[int]) -> None:
        """Large transactions, a few at a time."""
        room = asyncio.Semaphore(_FILL_CALLS)

        async def put(part: Sequence[int]) -> None:
            async with room:
                await self.put(part, 30.0)

        async with asyncio.TaskGroup() as group:
            for at in range(0, len(numbers), _FILL_ITEMS):
                group.create_task(put(numbers[at : at + _FILL_ITEMS]))

    async def put(self, numbers: Sequence[int], seconds: float = TRY_SECONDS) -> None:
        """Items, in one transaction."""
        puts = [_put(key=_ITEMS + self.key(), value=body_of(number)) for number in numbers]
        await self.etcd.call("txn", _txn(success=[_op(request_put=put) for put in puts]), seconds)

    async def depth(self) -> int:
        """Items, claimed or not."""
        return int((await self.etcd.call("range", _range(key=_ITEMS, range_end=_END[_ITEMS], count_only=True))).count)

    async def close(self) -> None:
        """The channel."""
        if self._look_up is not None:
            self._look_up.cancel()
        await self.etcd.channel.close()


class _Worker:
    def __init__(self, session: EtcdSession, name: bytes, lease: int) -> None:
        self._session = session
        self._name = name
        self._lease = lease
        self._alive = asyncio.create_task(self._keep_alive())

    async def _keep_alive(self) -> None:
        """Every third of the lease, over a stream, and over another one if that breaks."""
        while True:
            with contextlib.suppress(aio.AioRpcError):
                stream = self._session.etcd.keep_alive()
                while True:
                    await asyncio.sleep(LEASE_SECONDS / 3)
                    await stream.write(message("LeaseKeepAliveRequest")(ID=self._lease))
                    if await stream.read() is grpc.aio.EOF:
                        break
            await asyncio.sleep(0.5)

    async def enqueue(self, numbers: Sequence[int]) -> None:
        await self._session.put(numbers)

    async def lease(self, many: int) -> list[Claim]:
        while True:
            items = await self._session.take(many)
            try:
                if await self._claim(items):
                    return [Claim(number_of(item.value), item.key[len(_ITEMS) :]) for item in items]
            except BaseException:
                self._session.taken.difference_update(item.key for item in items)
                raise
            # Somebody was quicker with one of them; what is free is looked up afresh for the rest.
            self._session.taken.difference_update(item.key for item in items)
            if len(items) > 1:
                self._session.free.clear()

    async def _claim(self, items: Sequence[Any]) -> bool:
        names = [_CLAIMS + item.key[len(_ITEMS) :] for item in items]
        unchanged = [_compare(target=2, key=item.key, mod_revision=item.mod_revision) for item in items]
        unclaimed = [_compare(target=1, key=name, create_revision=0) for name in names]
        puts = [_op(request_put=_put(key=name, value=self._name, lease=self._lease)) for name in names]
        answer = await self._session.etcd.call("txn", _txn(compare=unchanged + unclaimed, success=puts))
        return bool(answer.succeeded)

    async def complete(self, claims: Sequence[Claim]) -> None:
        names = [claim.handle for claim in claims]
        mine = [_compare(target=3, key=_CLAIMS + name, value=self._name) for name in names]
        keys = [prefix + name for name in names for prefix in (_ITEMS, _CLAIMS)]
        request = _txn(compare=mine, success=[_op(request_delete_range=_delete(key=key)) for key in keys])
        answer = await self._session.etcd.call("txn", request)
        self._session.taken.difference_update(_ITEMS + name for name in names)
        if not answer.succeeded:
            raise Refused("a claim was not this worker's any more")

    async def close(self) -> None:
        self._alive.cancel()
