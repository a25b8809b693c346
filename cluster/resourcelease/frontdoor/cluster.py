"""AdminService, for the cluster as a whole: status, members, leadership, snapshots."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from importlib import metadata

from resourcelease import v1
from resourcelease.consensus import NotAllowed
from resourcelease.events import Archive
from resourcelease.frontdoor.browse import summary_of
from resourcelease.frontdoor.callers import Caller
from resourcelease.frontdoor.neighbours import Neighbours
from resourcelease.frontdoor.refusals import Refused, refuse
from resourcelease.frontdoor.replica import Replica
from resourcelease.model.errors import Reason
from resourcelease.model.events import RECORD_VERSION
from resourcelease.model.limits import MAX_NAME
from resourcelease.model.ops import ENTRY_VERSION
from resourcelease.storage import FORMAT_VERSION, LmdbStore, SnapshotFailed

__all__ = ["ClusterAdmin"]

# A change of members waits for the new node to catch up; a call without a deadline waits so long.
_CHANGE_S = 60.0
_TRANSFER_S = 5.0
# Rows are written behind; a snapshot waits for those of its moment.
_ROWS_S = 15.0
_LOOK_S = 0.05


class ClusterAdmin:
    """Status, Members, TransferLeadership and Snapshot."""

    def __init__(self, replica: Replica, neighbours: Neighbours, store: LmdbStore, archive: Archive) -> None:
        self._replica = replica
        self._consensus = replica.consensus
        self._neighbours = neighbours
        self._store = store
        self._archive = archive
        self._started_at = time.monotonic()
        # Tells how the files of the history are; the node knows.
        self.history: Callable[[], v1.HistoryStatus] = v1.HistoryStatus

    async def status(self, caller: Caller, request: v1.StatusRequest) -> v1.StatusResponse:
        """How this node is."""
        await self._replica.linearize(request.linearizable, caller.remaining_s())
        first_sequence = await self._archive.first_sequence()
        # Nothing is waited for from here on: a term and the role in another one would look like two leaders.
        status, stored, machine = self._consensus.status(), self._store.load(), self._replica.machine
        queues = [queue for name in machine.namespaces() if (queue := machine.queue(name)) is not None]
        return v1.StatusResponse(
            position=self._replica.position(),
            cluster_id=self._store.identity.cluster_id,
            node_id=status.node_id,
            role=self._role(),
            term=status.term,
            leader_id=status.leader or "",
            leader_address=self._neighbours.address_of(status.leader),
            commit_index=status.commit_index,
            applied_index=status.applied_index,
            stored_index=stored.rows_index,
            first_journal_index=stored.first_index,
            last_journal_index=stored.last_index,
            first_sequence=first_sequence,
            last_sequence=machine.sequence_number,
            wall_time_ms=time.time_ns() // 1_000_000,
            uptime_ms=int((time.monotonic() - self._started_at) * 1000),
            versions=v1.Versions(
                software=metadata.version("resourcelease"),
                entry=ENTRY_VERSION,
                record=RECORD_VERSION,
                directory=FORMAT_VERSION,
            ),
            namespaces=[summary_of(queue) for queue in queues],
            history=self.history(),
        )

    async def members(self, caller: Caller, request: v1.MembersRequest) -> v1.MembersResponse:
        """Lists the nodes, adds one, or removes one."""
        caller.call(request)
        timeout_s = caller.remaining_s() or _CHANGE_S
        match request.WhichOneof("action"):
            case "list":
                await self._replica.linearize(request.linearizable, caller.remaining_s())
            case "add":
                node, address = request.add.node_id, request.add.raft_address
                _check_node(node, "add.node_id")
                _check_address(address, "add.raft_address")
                _check_address(request.add.client_address, "add.client_address")
                await self._change(self._consensus.add_member(node, address, timeout_s))
            case "remove":
                _check_node(request.remove.node_id, "remove.node_id")
                await self._remove(request.remove.node_id, timeout_s)
            case _:
                refuse("say what to do: list, add or remove", "action")
        return v1.MembersResponse(position=self._replica.position(), members=self._members())

    async def transfer_leadership(
        self, caller: Caller, request: v1.TransferLeadershipRequest
    ) -> v1.TransferLeadershipResponse:
        """Hands leadership to another node; answers once that node leads."""
        caller.call(request)
        target = request.target_node_id
        members = self._consensus.status().members
        if target and target not in members:
            known = ", ".join(sorted(members))
            raise Refused(Reason.NOT_FOUND, f"there is no node {target}; there are {known}", "target_node_id")
        before = self._consensus.leader
        timeout_s = min(caller.remaining_s() or _TRANSFER_S, _TRANSFER_S)
        if not target or target != before:
            await self._change(self._consensus.transfer_leadership(target, timeout_s))
            # The old leader knows that it leads no more before it knows who does.
            await self._until(lambda: self._leads(target, before), timeout_s, "the new leader is not known yet")
        return v1.TransferLeadershipResponse(
            position=self._replica.position(),
            leader_id=self._consensus.leader or "",
            term=self._consensus.status().term,
        )

    async def snapshot(self, caller: Caller, request: v1.SnapshotRequest) -> v1.SnapshotResponse:
        """Writes a snapshot to this node's disk."""
        caller.call(request)
        wanted = self._replica.machine.applied_index
        await self._until(
            lambda: self._store.load().rows_index >= wanted, _ROWS_S, f"entry {wanted} is not among the stored rows yet"
        )
        try:
            taken = await asyncio.wrap_future(self._store.snapshot(""))
        except SnapshotFailed as error:
            raise Refused(Reason.CONFLICT, f"{error}; ask again when it is done") from error
        manifest = taken.manifest
        position = self._replica.position()
        position.raft_index, position.raft_term = manifest.index, manifest.term
        return v1.SnapshotResponse(
            position=position,
            node_id=self._consensus.node_id,
            path=str(taken.directory.relative_to(self._store.directory)),
            size_bytes=manifest.size_bytes,
            digest=manifest.sha256,
        )

    async def _remove(self, node: str, timeout_s: float) -> None:
        status = self._consensus.status()
        left = [each for each in status.members if each != node]
        here = [each for each in left if each in status.connected or each == status.node_id]
        if node in status.members and len(here) * 2 <= len(left):
            raise Refused(
                Reason.CONFLICT,
                f"without {node} the cluster would be {', '.join(sorted(left)) or 'empty'}, and of these only "
                f"{', '.join(sorted(here)) or 'none'} can be reached, which is no majority; start the others first",
                "remove.node_id",
            )
        if node == self._consensus.leader and len(self._consensus.status().members) > 1:
            await self._change(self._consensus.transfer_leadership("", min(timeout_s, _TRANSFER_S)))
            await self._until(lambda: self._leads("", node), timeout_s, "the new leader is not known yet")
        await self._change(self._consensus.remove_member(node, timeout_s))

    async def _change(self, change: Awaitable[None]) -> None:
        try:
            await change
        except NotAllowed as error:
            if "no leader is known" in str(error):
                raise Refused(Reason.NO_LEADER, f"{error}; ask again") from error
            raise Refused(Reason.CONFLICT, str(error)) from error

    async def _until(self, done: Callable[[], bool], timeout_s: float, otherwise: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if time.monotonic() >= deadline:
                raise Refused(Reason.CONFLICT, f"{otherwise}; ask again")
            await asyncio.sleep(_LOOK_S)

    def _leads(self, target: str, before: str | None) -> bool:
        leader = self._consensus.leader
        return leader is not None and (leader == target if target else leader != before)

    def _role(self) -> "v1.NodeRole.ValueType":
        if self._consensus.is_leader:
            return v1.NodeRole.NODE_ROLE_LEADER
        return v1.NodeRole.NODE_ROLE_FOLLOWER if self._consensus.leader else v1.NodeRole.NODE_ROLE_CANDIDATE

    def _members(self) -> list[v1.Member]:
        status = self._consensus.status()
        reachable = {*status.connected, status.node_id}
        return [
            v1.Member(
                node_id=node,
                raft_address=address,
                client_address=self._neighbours.address_of(node),
                role=v1.NodeRole.NODE_ROLE_LEADER if node == status.leader else v1.NodeRole.NODE_ROLE_FOLLOWER,
                reachable=node in reachable,
                match_index=self._store.load().last_index if node == status.node_id else 0,
                direct_address=self._neighbours.direct_address_of(node),
            )
            for node, address in sorted(status.members.items())
        ]


def _check_node(node: str, field: str) -> None:
    if not node.strip() or len(node) > MAX_NAME:
        refuse(f"is required: a name of 1 to {MAX_NAME} characters", field)


def _check_address(address: str, field: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        refuse(f"must be host:port, not {address!r}", field)
