"""The operator's calls: looking into a cluster, and steering it. They answer the messages of the wire as they are."""

from collections.abc import AsyncIterator, Iterable
from typing import Any

from resourcelease import v1
from resourcelease.client.core import Core

__all__ = ["Administering", "item_state"]

PAGE = 1000


class Administering(Core):
    """Status, browsing, options, members."""

    async def status(self, *, linearizable: bool = False, node: str | None = None) -> v1.StatusResponse:
        """How a node is, and what it knows of the cluster: the node in use, or the one at address ``node``."""
        request = v1.StatusRequest(linearizable=linearizable)
        answer: v1.StatusResponse = await self._ask_at(node, "Status", request)
        return answer

    async def peers(
        self, *peer_ids: str, namespace: str | None = None, linearizable: bool = False
    ) -> AsyncIterator[v1.Peer]:
        """The peers that the cluster knows, by name; all, or those named."""
        request = v1.PeersRequest(
            namespace=namespace or self.namespace, linearizable=linearizable, peer_ids=peer_ids, page_size=PAGE
        )
        async for answer in self._pages("Peers", request):
            for peer in answer.peers:
                yield peer

    async def queues(self, *namespaces: str, linearizable: bool = False) -> list[v1.Queue]:
        """The namespaces with their options and depths; all, or those named."""
        request = v1.QueuesRequest(namespaces=namespaces, linearizable=linearizable)
        answer: v1.QueuesResponse = await self._read("Queues", request)
        return list(answer.queues)

    async def items(
        self,
        *sequence_ids: int,
        request_id: str = "",
        states: Iterable[str | int] = (),
        resource_type: str = "",
        resource_id: str = "",
        held_by: str = "",
        include_bodies: bool = False,
        page_size: int = 100,
        namespace: str | None = None,
        linearizable: bool = False,
    ) -> AsyncIterator[v1.Item]:
        """Browses the items of a namespace, or looks some up. ``states`` are names such as ``"PENDING"``."""
        request = v1.ItemsRequest(
            namespace=namespace or self.namespace,
            linearizable=linearizable,
            sequence_ids=sequence_ids,
            request_id=request_id,
            states=[item_state(state) for state in states],
            resource_type=resource_type,
            resource_id=resource_id,
            peer_id=held_by,
            include_bodies=include_bodies,
            page_size=page_size,
        )
        async for answer in self._pages("Items", request):
            for item in answer.items:
                yield item

    async def explain(
        self, sequence_id: int, *, namespace: str | None = None, linearizable: bool = False
    ) -> v1.ExplainResponse:
        """Why an item waits, or what became of it; ``words`` of the answer is a sentence for people."""
        request = v1.ExplainRequest(
            namespace=namespace or self.namespace, linearizable=linearizable, sequence_id=sequence_id
        )
        answer: v1.ExplainResponse = await self._read("Explain", request)
        return answer

    async def configure(self, *, namespace: str | None = None, **options: Any) -> v1.QueueOptions:
        """Changes options of a namespace, by their names in ``QueueOptions``, and returns all that are in force.

        ```py
        await client.configure(max_attempts=3, lease_duration_ms=60_000)
        ```
        """
        request = v1.ConfigureRequest(**self._of(namespace), options=v1.QueueOptions(**options))
        answer: v1.ConfigureResponse = await self._caller.change("Configure", request)
        return answer.options

    async def pause(self, *, namespace: str | None = None) -> None:
        """Stops granting in a namespace; everything else goes on."""
        await self._caller.change("Pause", v1.PauseRequest(**self._of(namespace)))

    async def resume(self, *, namespace: str | None = None) -> None:
        """Grants again."""
        await self._caller.change("Resume", v1.ResumeRequest(**self._of(namespace)))

    async def redrive(
        self, *sequence_ids: int, limit: int = 0, delay: float = 0.0, namespace: str | None = None
    ) -> list[v1.RedriveResult]:
        """Puts dead letters back to work: those named, or the ``limit`` oldest. One result each."""
        request = v1.RedriveRequest(
            **self._of(namespace), sequence_ids=sequence_ids, limit=limit, delay_ms=int(delay * 1000)
        )
        answer: v1.RedriveResponse = await self._caller.change("Redrive", request)
        return list(answer.results)

    async def members(self, *, linearizable: bool = False) -> list[v1.Member]:
        """The nodes of the cluster."""
        return await self._members(v1.MembersRequest(list=v1.ListMembers(), linearizable=linearizable))

    async def add_member(self, node_id: str, *, raft_address: str, client_address: str) -> list[v1.Member]:
        """Adds a node, which has been started and told to join; returns the members after it."""
        node = v1.AddMember(node_id=node_id, raft_address=raft_address, client_address=client_address)
        return await self._members(v1.MembersRequest(**self._of(None), add=node))

    async def remove_member(self, node_id: str) -> list[v1.Member]:
        """Removes a node; returns the members after it."""
        return await self._members(v1.MembersRequest(**self._of(None), remove=v1.RemoveMember(node_id=node_id)))

    async def transfer(self, to: str = "") -> v1.TransferLeadershipResponse:
        """Hands leadership to a node, or to the one that is furthest along."""
        request = v1.TransferLeadershipRequest(**self._of(None), target_node_id=to)
        answer: v1.TransferLeadershipResponse = await self._caller.change("TransferLeadership", request)
        return answer

    async def snapshot(self, *, node: str | None = None, timeout: float | None = None) -> v1.SnapshotResponse:
        """Has a node write a snapshot to its own disk; answers when it is durable."""
        request = v1.SnapshotRequest(**self._of(None), operation_id=self._caller.operation_id())
        answer: v1.SnapshotResponse = await self._ask_at(node, "Snapshot", request, timeout)
        return answer

    async def verify(
        self,
        *node_ids: str,
        from_sequence: int = 0,
        to_sequence: int = 0,
        linearizable: bool = False,
        timeout: float | None = None,
    ) -> v1.VerifyResponse:
        """Compares the nodes: state and history must be the same on all."""
        request = v1.VerifyRequest(
            linearizable=linearizable, node_ids=node_ids, from_sequence=from_sequence, to_sequence=to_sequence
        )
        answer: v1.VerifyResponse = await self._read("Verify", request, timeout)
        return answer

    async def _read(self, method: str, request: Any, timeout: float | None = None) -> Any:
        self._must_be_open()
        return await self._caller.read(method, request, timeout)

    async def _members(self, request: v1.MembersRequest) -> list[v1.Member]:
        self._must_be_open()
        answer: v1.MembersResponse = await self._caller.change("Members", request)
        self._nodes.learn(answer.members)
        return list(answer.members)

    async def _ask_at(self, address: str | None, method: str, request: Any, timeout: float | None = None) -> Any:
        self._must_be_open()
        if address is None:
            return await self._caller.read(method, request, timeout)
        return await self._caller.once(address, method, request, timeout)

    async def _pages(self, method: str, request: Any) -> AsyncIterator[Any]:
        while True:
            answer = await self._read(method, request)
            yield answer
            if not answer.next_page_token:
                return
            request.page_token = answer.next_page_token


def item_state(name: str | int) -> Any:
    """The number of an item's state, by its name with or without the prefix.

    >>> item_state("pending")
    1
    """
    if isinstance(name, int):
        return name
    full = name.upper() if name.upper().startswith("ITEM_STATE_") else f"ITEM_STATE_{name.upper()}"
    names = v1.ItemState.keys()
    if full not in names:
        known = ", ".join(key.removeprefix("ITEM_STATE_") for key in names[1:])
        raise ValueError(f"there is no state {name!r}; there are {known}")
    return v1.ItemState.Value(full)
