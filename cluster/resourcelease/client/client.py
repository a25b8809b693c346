"""The client: everything a program wants of a cluster, from asyncio."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from resourcelease.client.admin import Administering
from resourcelease.client.following import Following
from resourcelease.client.moving import Moving
from resourcelease.client.options import DEFAULT_NAMESPACE, Backoff, Tls
from resourcelease.client.producing import Producing
from resourcelease.client.working import Working

__all__ = ["Client"]


class Client(Producing, Working, Moving, Following, Administering):
    """A cluster, as a program calls it.

    ``endpoints`` name some of its nodes, as a list or comma-separated; the others are found. Without them the
    environment's ``RESOURCELEASE_ENDPOINTS`` counts, or else 127.0.0.1:7101. The client stays with one node and moves
    to another when that one fails. It begins with the node that leads, which saves every change a step; with
    ``prefer_leader=False`` with any, so that many busy clients spread over the nodes. Calls are tried until they are
    answered or ``timeout`` seconds have passed, under one operation id, so that what is tried twice happens once. Item
    calls that are made at the same time travel together. One client serves a whole process; it belongs to the event
    loop it is first used on.

    ```py
    async with Client(["127.0.0.1:7101", "127.0.0.1:7102"]) as client:
        await client.enqueue("table", "orders", b"...")
    ```
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] | None = None,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        peer_id: str | None = None,
        tls: Tls | None = None,
        timeout: float = 30.0,
        backoff: Backoff | None = None,
        metadata: Mapping[str, str] | None = None,
        prefer_leader: bool = True,
    ) -> None:
        super().__init__(
            endpoints, namespace, peer_id, tls, timeout, backoff or Backoff(), metadata, prefer_leader=prefer_leader
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<Client of {', '.join(self.endpoints)}, namespace {self.namespace}, peer {self.peer_id}>"
