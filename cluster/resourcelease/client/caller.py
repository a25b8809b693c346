"""One call, made until it is answered: on another node if need be, and always under its one operation id."""

import asyncio
import itertools
import random
import secrets
from typing import Any

from grpc import aio

from resourcelease.client.conversation import METHODS, Conversations, NotSpoken
from resourcelease.client.errors import NoLeader, OutcomeUnknown, ResourceLeaseError, Unreachable, error_of_status
from resourcelease.client.lane import Runway
from resourcelease.client.nodes import Node, Nodes
from resourcelease.client.options import Backoff
from resourcelease.client.packing import List
from resourcelease.client.watch import Watch

__all__ = ["Caller"]

# With less time than this left no further try is begun: it would only bring its outcome in doubt.
LEAST_ATTEMPT = 0.1
# The most tries that a node is told of.
MOST_TRIED = 1_000_000


class Caller:
    """Makes calls on the nodes of a cluster."""

    def __init__(self, nodes: Nodes, timeout: float, backoff: Backoff) -> None:
        self.nodes = nodes
        # Shared by all lanes whose calls this makes.
        self.runway = Runway()
        self._conversations = Conversations(nodes, self.runway)
        self.timeout = timeout
        self.backoff = backoff
        self.chance = random.Random()  # noqa: S311
        self._prefix = secrets.token_hex(8)
        self._numbers = itertools.count(1)

    def operation_id(self) -> str:
        """A new name for an operation."""
        return f"{self._prefix}-{next(self._numbers)}"

    def left(self, since: float) -> float:
        """Seconds left for a call whose first caller has waited since then; a fair share for the others in any case."""
        return max(self.timeout - (asyncio.get_running_loop().time() - since), self.timeout / 2)

    async def read(self, method: str, request: Any, timeout: float | None = None) -> Any:
        """Makes a call that changes nothing."""
        try:
            return await self.call(method, request, timeout=timeout)
        except Unreachable:
            raise
        except OutcomeUnknown as error:
            raise Unreachable(error.message) from error

    async def change(
        self,
        method: str,
        request: Any,
        timeout: float | None = None,
        wait: float | None = None,
        entries: List | None = None,
    ) -> Any:
        """Makes a call that changes something, under an operation id of its own unless the request has one.

        ``wait`` is for calls that wait at the node: how many seconds, of which the node is told what is left.
        ``entries`` is the list that the request carries, where that may travel in two forms.
        """
        if not request.operation_id:
            request.operation_id = self.operation_id()
        return await self.call(method, request, timeout=timeout, wait=wait, entries=entries)

    async def once(self, address: str, method: str, request: Any, timeout: float | None = None) -> Any:
        """Asks one node and no other."""
        try:
            return await self._attempt(self.nodes.at(address), method, request, timeout or self.timeout, None)
        except Unreachable:
            raise
        except OutcomeUnknown as error:
            raise Unreachable(error.message) from error

    async def call(
        self,
        method: str,
        request: Any,
        *,
        timeout: float | None = None,
        wait: float | None = None,
        entries: List | None = None,
    ) -> Any:
        """Makes the call until it is answered, refused for good, or out of time."""
        now = asyncio.get_running_loop().time
        started = now()
        deadline = started + (self.timeout if timeout is None else timeout) + (wait or 0.0)
        doubt = False
        await self.nodes.look_around()
        for attempt in itertools.count():
            node = self.nodes.current()
            if wait is not None:
                request.wait_ms = max(0, int((started + wait - now()) * 1000))
            if method == "Lease":
                request.tried = min(attempt, MOST_TRIED)
            try:
                answer = await self._attempt(node, method, request, max(deadline - now(), 0.001), entries)
            except ResourceLeaseError as error:
                if not error.transient:
                    raise
                doubt = doubt or not isinstance(error, NoLeader | Unreachable)
                await self._before_next(node, error, attempt, deadline, doubt)
            else:
                self.nodes.answered(node)
                return answer
        raise AssertionError("unreachable")

    async def _before_next(
        self, node: Node, error: ResourceLeaseError, attempt: int, deadline: float, doubt: bool
    ) -> None:
        """Moves on to another node and waits as long as is right; raises if there is no time left for that."""
        now = asyncio.get_running_loop().time()
        self.nodes.failed(node)
        another = self.nodes.current().resting_until <= now and not isinstance(error, NoLeader)
        pause = 0.0 if another else self.backoff.wait(attempt, self.chance, error.retry_after)
        if now + pause + LEAST_ATTEMPT < deadline:
            await asyncio.sleep(pause)
            return
        if doubt and isinstance(error, NoLeader | Unreachable):
            raise OutcomeUnknown(f"an earlier try was not answered, and now: {error}") from error
        others = [address for address in self.nodes.addresses if address != node.address]
        known = f" (other nodes known: {', '.join(others)})" if others else ""
        tries = "one try" if attempt == 0 else f"{attempt + 1} tries"
        raise type(error)(f"{error}, after {tries}{known}")

    async def close(self) -> None:
        """Gives up what is under way in conversations."""
        await self._conversations.close()

    async def _attempt(self, node: Node, method: str, request: Any, timeout: float, entries: List | None) -> Any:
        """One try on one node: in the conversation with it, where there is one."""
        spoken = METHODS.get(method)
        if spoken is not None:
            until = asyncio.get_running_loop().time() + timeout
            try:
                return await self._conversations.ask(node, spoken, request, timeout, entries)
            except NotSpoken:
                timeout = max(until - asyncio.get_running_loop().time(), 0.001)
        if entries is not None:
            request = type(request).FromString(request.SerializeToString() + entries.spelled())
        return await self._alone(node, method, request, timeout)

    async def _alone(self, node: Node, method: str, request: Any, timeout: float) -> Any:
        """One try by a call of its own."""
        try:
            call = node.method(method)(request, timeout=timeout, metadata=self.nodes.metadata or None)
        except aio.UsageError as error:
            raise RuntimeError("the client is closed") from error
        watch = Watch(self.nodes, node, call)
        try:
            return await call
        except aio.AioRpcError as error:
            raise error_of_status(error, node.address) from error
        except aio.UsageError as error:
            raise RuntimeError("the client is closed") from error
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if watch.gave_up and not (task and task.cancelling()):
                raise OutcomeUnknown(f"{node.address} does not answer") from None
            raise
        finally:
            watch.stop()
