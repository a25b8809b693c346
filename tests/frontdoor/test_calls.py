"""Every method, asked of the leader and of a follower."""

import asyncio

import pytest

from frontdoor.cluster_fixture import Cluster, Runner, Stubs, ack, fresh, items
from resourcelease import v1

ROLES = pytest.mark.parametrize("role", ["leader", "follower"])


async def lease(stubs: Stubs, namespace: str, peer: str = "w", count: int = 1) -> list[v1.Lease]:
    request = v1.LeaseRequest(
        namespace=namespace, operation_id=fresh("op"), peer_id=peer, max_items=count, wait_ms=5000
    )
    return list((await stubs.lease.Lease(request, timeout=10)).leases)


async def enqueue(stubs: Stubs, namespace: str, *names: str, **fields: object) -> v1.EnqueueResponse:
    request = v1.EnqueueRequest(
        namespace=namespace, operation_id=fresh("op"), peer_id="p", items=items(*names, **fields)
    )
    return await stubs.lease.Enqueue(request, timeout=10)


@ROLES
def test_the_life_of_an_item(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        body = {"body": b"x" * 10, "priority": 0, "partition_key": "k", "payload_encoding": "json"}
        told = await enqueue(stubs, namespace, "orders", attributes={"a": "b"}, request_id="r1", **body)
        assert [result.enqueued.sequence_id for result in told.results] == [1]
        assert told.depth.pending == 1
        assert told.position.raft_index > 0

        [first] = await lease(stubs, namespace)
        assert first.payload.resource_id == "orders"
        assert (first.payload.body, first.payload.body_size, first.payload.priority) == (b"x" * 10, 10, 0)
        assert first.payload.HasField("priority")
        assert dict(first.payload.attributes) == {"a": "b"}
        assert (first.payload.partition_key, first.payload.payload_encoding) == ("k", "json")
        assert first.payload.request_id == "r1"
        assert 0 < first.remaining_ms <= 30_000
        assert first.handle.attempt == 1
        assert not first.HasField("last_handle")

        beat = v1.HeartbeatRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w", handles=[first.handle])
        extended = await stubs.lease.Heartbeat(beat, timeout=10)
        assert extended.results[0].HasField("extended")
        assert extended.deadline_ms >= first.deadline_ms

        error = v1.Failure(code="TIMEOUT", message="slow", metadata={"after": "1s"})
        fail = v1.FailRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w")
        fail.entries.add(handle=first.handle, error=error)
        assert (await stubs.lease.Fail(fail, timeout=10)).results[0].HasField("failed")

        [second] = await lease(stubs, namespace, "w2")
        assert second.handle.attempt == 2
        assert second.last_error == error
        assert second.last_handle == first.handle
        assert (second.last_peer_id, second.last_outcome) == ("w", v1.LeaseOutcome.LEASE_OUTCOME_FAILED)

        complete = v1.CompleteRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w2", entries=ack(second))
        for _ in range(2):
            assert (await stubs.lease.Complete(complete, timeout=10)).results[0].HasField("completed")
        complete.operation_id, complete.peer_id = fresh("op"), "w"
        complete.entries[0].handle.CopyFrom(first.handle)
        late = (await stubs.lease.Complete(complete, timeout=10)).results[0].error
        assert (late.reason, late.field) == ("LEASE_LOST", "entries[0].handle")
        assert not late.HasField("retry_after_ms")

        again = await enqueue(stubs, namespace, "orders", request_id="r1")
        assert again.results[0].enqueued == v1.Enqueued(sequence_id=1, duplicate=True)

    run(scenario())


@ROLES
def test_a_list_is_answered_entry_by_entry(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        request = v1.EnqueueRequest(namespace=namespace, operation_id=fresh("op"), items=items("a", "", "c"))
        told = await stubs.lease.Enqueue(request, timeout=10)
        assert [result.enqueued.sequence_id for result in told.results] == [1, 0, 2]
        assert told.results[1].error.reason == "INVALID_ARGUMENT"
        assert told.results[1].error.field == "items[1].resource_id"
        again = await stubs.lease.Enqueue(request, timeout=10)
        assert again.results == told.results

        await enqueue(stubs, namespace, "d", "e")
        leases = await lease(stubs, namespace, count=10)
        fail = v1.FailRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w")
        fail.entries.add(handle=leases[0].handle, give_back=True)
        fail.entries.add(handle=leases[1].handle, error=v1.Failure(message="no code"), requeue=False)
        fail.entries.add(handle=leases[2].handle, delay_ms=60_000)
        fail.entries.add(handle=v1.Handle(sequence_id=4, attempt=9, lease_id=leases[3].handle.lease_id))
        for _ in range(2):
            results = (await stubs.lease.Fail(fail, timeout=10)).results
            assert [result.WhichOneof("result") for result in results] == ["failed", "failed", "failed", "error"]
            assert results[3].error.field == "entries[3].handle"
        found = await stubs.admin.Items(v1.ItemsRequest(namespace=namespace, linearizable=True), timeout=10)
        states = {item.sequence_id: (v1.ItemState.Name(item.state)[11:], item.attempts_used) for item in found.items}
        assert states == {1: ("PENDING", 0), 2: ("DEAD", 1), 3: ("DELAYED", 1), 4: ("ACTIVE", 0)}
        assert found.items[1].last_error.message == "no code"

    run(scenario())


@ROLES
def test_a_peer_heartbeats_for_all_it_holds(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        await enqueue(stubs, namespace, "a", "b")
        leases = await lease(stubs, namespace, count=2)
        request = v1.HeartbeatRequest(namespace=namespace, operation_id=fresh("op"), peer_id="w", all_of_peer=True)
        beat = await stubs.lease.Heartbeat(request, timeout=10)
        assert not beat.results
        assert beat.deadline_ms >= leases[0].deadline_ms
        assert beat.remaining_ms > 0

    run(scenario())


@ROLES
def test_bundles_leave_and_come_back(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        await enqueue(stubs, namespace, *"abc", body=b"data")
        drain = v1.DrainRequest(namespace=namespace, operation_id="d0", peer_id="ops", bundle_id="b", limit=2)
        first = await stubs.lease.Drain(drain, timeout=10)
        assert (first.summary.items, first.summary.more, first.summary.cluster_id) == (2, True, "test")
        assert (await stubs.lease.Drain(drain, timeout=10)).page == first.page
        drain.operation_id, drain.page = "d1", 1
        second = await stubs.lease.Drain(drain, timeout=10)
        assert (second.summary.items, second.summary.more) == (1, False)

        other = fresh()
        restore = v1.RestoreRequest(namespace=other, operation_id="r0", peer_id="ops", page=first.page)
        told = await stubs.lease.Restore(restore, timeout=10)
        assert (told.restored, told.present) == (2, 0)
        assert told.summary.digest == first.summary.digest
        restore.operation_id = "r1"
        told = await stubs.lease.Restore(restore, timeout=10)
        assert (told.restored, told.present) == (0, 2)
        assert [each.payload.body for each in await lease(stubs, other, count=5)] == [b"data"] * 2

    run(scenario())


@ROLES
def test_versions_and_effects(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh()
        version = v1.RequireVersionRequest(
            namespace=namespace, operation_id="v", peer_id="w", change_id="tax", min_version=1, max_version=3
        )
        assert (await stubs.lease.RequireVersion(version, timeout=10)).version == 3
        await enqueue(stubs, namespace, "a")
        [held] = await lease(stubs, namespace)
        begin = v1.BeginEffectRequest(
            namespace=namespace, operation_id="b", peer_id="w", effect_id="mail", handle=held.handle
        )
        assert not (await stubs.lease.BeginEffect(begin, timeout=10)).finished
        finish = v1.FinishEffectRequest(
            namespace=namespace, operation_id="f", peer_id="w", effect_id="mail", handle=held.handle, result=b"sent"
        )
        assert (await stubs.lease.FinishEffect(finish, timeout=10)).result == b"sent"
        begin.operation_id = "b2"
        again = await stubs.lease.BeginEffect(begin, timeout=10)
        assert (again.finished, again.result) == (True, b"sent")

    run(scenario())


@ROLES
def test_namespaces_are_steered_and_looked_at(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via(role), fresh("resourcelease.shard")
        options = v1.QueueOptions(capacity=7, high_watermark=5, low_watermark=2, max_attempts=1)
        configure = v1.ConfigureRequest(namespace=namespace, operation_id=fresh("op"), options=options)
        told = await stubs.admin.Configure(configure, timeout=10)
        assert (told.options.capacity, told.options.high_watermark) == (7, 5)
        assert told.options.lease_duration_ms == 30_000
        assert told.position.shard_id == namespace.partition(".")[2]
        off = v1.ConfigureRequest(
            namespace=namespace, operation_id=fresh("op"), options=v1.QueueOptions(high_watermark=0)
        )
        assert not (await stubs.admin.Configure(off, timeout=10)).options.HasField("high_watermark")

        await enqueue(stubs, namespace, "a", "b")
        [held] = await lease(stubs, namespace, peer := fresh("peer"))
        await stubs.admin.Pause(v1.PauseRequest(namespace=namespace, operation_id=fresh("op")), timeout=10)
        queues = await stubs.admin.Queues(v1.QueuesRequest(namespaces=[namespace], linearizable=True), timeout=10)
        [queue] = queues.queues
        assert (queue.summary.paused, queue.summary.depth.pending, queue.summary.depth.active) == (True, 1, 1)
        assert (queue.next_sequence_id, queue.options.capacity) == (3, 7)
        assert queue.oldest_pending_age_ms >= 0
        paused = await stubs.admin.Explain(v1.ExplainRequest(namespace=namespace, sequence_id=2), timeout=10)
        assert paused.rule == v1.ExplainRule.EXPLAIN_RULE_PAUSED
        held_by = await stubs.admin.Explain(v1.ExplainRequest(namespace=namespace, sequence_id=1), timeout=10)
        assert held_by.rule == v1.ExplainRule.EXPLAIN_RULE_LEASED
        assert held_by.fields["peer_id"] == peer
        await stubs.admin.Resume(v1.ResumeRequest(namespace=namespace, operation_id=fresh("op")), timeout=10)

        peers = await stubs.admin.Peers(v1.PeersRequest(peer_ids=[peer], namespace=namespace), timeout=10)
        assert [(each.peer_id, each.healthy, each.active_leases) for each in peers.peers] == [(peer, True, 1)]

        fail = v1.FailRequest(namespace=namespace, operation_id=fresh("op"), peer_id=peer)
        fail.entries.add(handle=held.handle)
        await stubs.lease.Fail(fail, timeout=10)
        dead = await stubs.admin.Explain(v1.ExplainRequest(namespace=namespace, sequence_id=1), timeout=10)
        assert dead.rule == v1.ExplainRule.EXPLAIN_RULE_DEAD
        assert dict(dead.fields) == {"attempts_used": "1", "max_attempts": "1"}
        redrive = v1.RedriveRequest(namespace=namespace, operation_id=fresh("op"), sequence_ids=[2, 1])
        results = (await stubs.admin.Redrive(redrive, timeout=10)).results
        assert results[0].error.reason == "NOT_FOUND"
        assert results[1].redriven.sequence_id == 1

    run(scenario())


def test_items_are_browsed_in_pages(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("follower"), fresh()
        await enqueue(stubs, namespace, *(f"r{i}" for i in range(25)), body=b"b")
        await enqueue(stubs, namespace, "named", request_id="q1")
        [held] = await lease(stubs, namespace, "holder")
        request = v1.ItemsRequest(namespace=namespace, linearizable=True, page_size=10)
        seen: list[int] = []
        while True:
            page = await stubs.admin.Items(request, timeout=10)
            seen += [item.sequence_id for item in page.items]
            assert all(not item.payload.body for item in page.items)
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        assert seen == list(range(1, 27))

        async def ids(**filters: object) -> list[int]:
            wanted = v1.ItemsRequest(namespace=namespace, **filters)  # type: ignore[arg-type]
            return [item.sequence_id for item in (await stubs.admin.Items(wanted, timeout=10)).items]

        assert await ids(peer_id="holder") == [held.handle.sequence_id]
        assert await ids(states=[v1.ItemState.ITEM_STATE_ACTIVE]) == [held.handle.sequence_id]
        assert await ids(request_id="q1") == [26]
        assert await ids(sequence_ids=[3, 99, 2]) == [2, 3]
        assert await ids(resource_id="r7") == [8]

    run(scenario())


@ROLES
def test_the_cluster_is_looked_at(trio: Cluster, run: Runner, role: str) -> None:
    async def scenario() -> None:
        stubs, leader = await trio.via(role), await trio.leader()
        status = await stubs.admin.Status(v1.StatusRequest(linearizable=True), timeout=10)
        assert (status.cluster_id, status.leader_id) == ("test", leader)
        assert status.role == (v1.NodeRole.NODE_ROLE_LEADER if role == "leader" else v1.NodeRole.NODE_ROLE_FOLLOWER)
        assert status.leader_address == trio.nodes[leader].grpc_address
        assert status.applied_index <= status.commit_index
        assert status.versions.software
        listed = v1.MembersRequest(list=v1.ListMembers(), linearizable=True)
        members = (await stubs.admin.Members(listed, timeout=10)).members
        assert [each.node_id for each in members] == ["n1", "n2", "n3"]
        assert all(each.reachable for each in members)
        addresses = {each.node_id: each.client_address for each in members}
        assert addresses == {name: node.grpc_address for name, node in trio.nodes.items()}

        verified = await stubs.admin.Verify(v1.VerifyRequest(linearizable=True), timeout=20)
        assert verified.ok, verified
        assert len({node.events_digest for node in verified.nodes}) == 1

        snapshot = await stubs.admin.Snapshot(v1.SnapshotRequest(), timeout=20)
        assert (trio.directory / snapshot.node_id / snapshot.path / "manifest.json").exists()
        assert snapshot.size_bytes > 0

    run(scenario())


def test_leadership_is_handed_over(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, before = await trio.via("follower"), await trio.leader()
        target = next(name for name in trio.nodes if name != before)
        request = v1.TransferLeadershipRequest(target_node_id=target)
        told = await stubs.admin.TransferLeadership(request, timeout=10)
        assert told.leader_id == target
        assert await trio.leader() == target

    run(scenario())


def test_anonymous_callers_are_told_apart_by_host(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        request = v1.EnqueueRequest(namespace=namespace, items=items("a"))
        one, two = await asyncio.gather(*(stubs.lease.Enqueue(request, timeout=10) for _ in range(2)))
        assert {one.results[0].enqueued.sequence_id, two.results[0].enqueued.sequence_id} == {1, 2}
        lease_request = v1.LeaseRequest(namespace=namespace)
        granted = await stubs.lease.Lease(lease_request, timeout=10, metadata=(("x-peer-id", "by-header"),))
        assert len(granted.leases) == 1
        peers = await stubs.admin.Peers(v1.PeersRequest(peer_ids=["by-header", "host:127.0.0.1"]), timeout=10)
        assert [each.peer_id for each in peers.peers] == ["by-header"]

    run(scenario())
