"""Every no has its status, its reason, and what to do; every field at fault its path."""

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from frontdoor.cluster_fixture import Cluster, Runner, fresh, items, refusal, until
from resourcelease import v1
from resourcelease.consensus import Busy, NoLeader, NotAllowed, OutcomeUnknown, TooLarge
from resourcelease.frontdoor.refusals import STATUS, Refused, item_error, refused_by_consensus, trailers
from resourcelease.model.errors import Reason, Refusal

HANDLE = v1.Handle(sequence_id=1, attempt=1, lease_id=1)
GOOD: dict[str, Any] = {"operation_id": "x", "peer_id": "w"}
MANY = 10_001


def test_every_reason_has_a_status_and_every_name_is_the_contracts() -> None:
    assert {reason.value for reason in STATUS} == set(v1.ErrorReason.keys()) - {"ERROR_REASON_UNSPECIFIED"}
    for reason in Reason:
        code, message, metadata = trailers(Refused(reason, "why", "items[0]"))
        status = status_pb2.Status.FromString(dict(metadata)["grpc-status-details-bin"])
        info = error_details_pb2.ErrorInfo()
        status.details[0].Unpack(info)
        assert (code, message) == (STATUS[reason], "why")
        assert (info.reason, info.domain, info.metadata["field"]) == (reason.value, "resourcelease", "items[0]")
        waits = reason in (Reason.QUEUE_FULL, Reason.BACKPRESSURE, Reason.NO_LEADER)
        assert (len(status.details) == 2) == waits
        assert item_error(Refusal(reason, "why")).HasField("retry_after_ms") == waits


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (NoLeader("x"), Reason.NO_LEADER),
        (OutcomeUnknown("x"), Reason.OUTCOME_UNKNOWN),
        (Busy("x"), Reason.QUEUE_FULL),
        (TooLarge("x"), Reason.INVALID_ARGUMENT),
        (NotAllowed("x"), Reason.CONFLICT),
    ],
)
def test_what_consensus_raises_is_a_refusal(error: Exception, reason: Reason) -> None:
    assert refused_by_consensus(error).refusal.reason is reason


WRONG: list[tuple[str, Any, str]] = [
    ("lease.Enqueue", v1.EnqueueRequest(), "items"),
    ("lease.Enqueue", v1.EnqueueRequest(items=items("a") * MANY), "items"),
    ("lease.Enqueue", v1.EnqueueRequest(items=items("a"), operation_id="o" * 129), "operation_id"),
    ("lease.Enqueue", v1.EnqueueRequest(items=items("a"), namespace="n" * 257), "namespace"),
    ("lease.Enqueue", v1.EnqueueRequest(items=items("a"), peer_id="p" * 257), "peer_id"),
    ("lease.Enqueue", v1.EnqueueRequest(items=items("a"), namespace=" "), "namespace"),
    ("lease.Lease", v1.LeaseRequest(), "peer_id"),
    ("lease.Lease", v1.LeaseRequest(max_items=-1, **GOOD), "max_items"),
    ("lease.Lease", v1.LeaseRequest(max_items=MANY, **GOOD), "max_items"),
    ("lease.Lease", v1.LeaseRequest(max_bytes=-1, **GOOD), "max_bytes"),
    ("lease.Lease", v1.LeaseRequest(wait_ms=-1, **GOOD), "wait_ms"),
    ("lease.Heartbeat", v1.HeartbeatRequest(**GOOD), "handles"),
    ("lease.Heartbeat", v1.HeartbeatRequest(handles=[HANDLE], all_of_peer=True, **GOOD), "all_of_peer"),
    ("lease.Heartbeat", v1.HeartbeatRequest(all_of_peer=True), "peer_id"),
    ("lease.Complete", v1.CompleteRequest(**GOOD), "entries"),
    ("lease.Complete", v1.CompleteRequest(entries=[v1.CompleteEntry()], **GOOD), "entries[0].handle.sequence_id"),
    (
        "lease.Complete",
        v1.CompleteRequest(
            entries=[v1.CompleteEntry(handle=HANDLE)] * 2
            + [v1.CompleteEntry(handle=v1.Handle(sequence_id=1, attempt=1, lease_id=-4))],
            **GOOD,
        ),
        "entries[2].handle.lease_id",
    ),
    ("lease.Fail", v1.FailRequest(**GOOD), "entries"),
    (
        "lease.Fail",
        v1.FailRequest(entries=[v1.FailEntry(handle=HANDLE, give_back=True, requeue=True)], **GOOD),
        "entries[0].requeue",
    ),
    ("lease.Fail", v1.FailRequest(entries=[v1.FailEntry(handle=HANDLE, delay_ms=-1)], **GOOD), "entries[0].delay_ms"),
    (
        "lease.Fail",
        v1.FailRequest(entries=[v1.FailEntry(handle=HANDLE, error=v1.Failure(message="m" * 4097))], **GOOD),
        "entries[0].error.message",
    ),
    ("lease.Drain", v1.DrainRequest(**GOOD), "bundle_id"),
    ("lease.Drain", v1.DrainRequest(bundle_id="b", page=-1, **GOOD), "page"),
    ("lease.Drain", v1.DrainRequest(bundle_id="b", limit=-1, **GOOD), "limit"),
    ("lease.Restore", v1.RestoreRequest(**GOOD), "page"),
    ("lease.Restore", v1.RestoreRequest(page=b"no page", **GOOD), "page"),
    ("lease.RequireVersion", v1.RequireVersionRequest(**GOOD), "change_id"),
    ("lease.RequireVersion", v1.RequireVersionRequest(change_id="c", min_version=-1, **GOOD), "min_version"),
    ("lease.RequireVersion", v1.RequireVersionRequest(change_id="c", min_version=2, **GOOD), "max_version"),
    ("lease.BeginEffect", v1.BeginEffectRequest(effect_id="e", **GOOD), "handle.sequence_id"),
    ("lease.FinishEffect", v1.FinishEffectRequest(handle=HANDLE, **GOOD), "effect_id"),
    (
        "lease.FinishEffect",
        v1.FinishEffectRequest(effect_id="e", handle=HANDLE, result=bytes(65537), **GOOD),
        "result",
    ),
    ("admin.Configure", v1.ConfigureRequest(options=v1.QueueOptions(capacity=0)), "options.capacity"),
    ("admin.Configure", v1.ConfigureRequest(options=v1.QueueOptions(high_watermark=5)), "options.low_watermark"),
    ("admin.Redrive", v1.RedriveRequest(), "sequence_ids"),
    ("admin.Redrive", v1.RedriveRequest(limit=-1), "limit"),
    ("admin.Redrive", v1.RedriveRequest(sequence_ids=[1, 0]), "sequence_ids[1]"),
    ("admin.Items", v1.ItemsRequest(page_size=-1), "page_size"),
    ("admin.Items", v1.ItemsRequest(page_token="x"), "page_token"),
    ("admin.Explain", v1.ExplainRequest(), "sequence_id"),
    ("admin.Members", v1.MembersRequest(), "action"),
    ("admin.Members", v1.MembersRequest(add=v1.AddMember()), "add.node_id"),
    ("admin.Members", v1.MembersRequest(add=v1.AddMember(node_id="n", raft_address="h")), "add.raft_address"),
    ("admin.Members", v1.MembersRequest(remove=v1.RemoveMember()), "remove.node_id"),
]


def test_what_is_wrong_in_itself_names_its_field(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs = await trio.via("follower")
        for method, request, field in WRONG:
            service, _, name = method.partition(".")
            call = getattr(getattr(stubs, service), name)
            told = await refusal(call(request, timeout=10))
            assert told == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT", field, False), (method, request)

    run(scenario())


def test_what_is_not_there_is_not_found(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, nowhere = await trio.via("follower"), fresh("nowhere")
        calls: list[Any] = [
            stubs.admin.Items(v1.ItemsRequest(namespace=nowhere), timeout=10),
            stubs.admin.Explain(v1.ExplainRequest(namespace=nowhere, sequence_id=1), timeout=10),
            stubs.admin.Resume(v1.ResumeRequest(namespace=nowhere, operation_id="r"), timeout=10),
            stubs.admin.TransferLeadership(v1.TransferLeadershipRequest(target_node_id="n9"), timeout=10),
            stubs.admin.Verify(v1.VerifyRequest(node_ids=["n9"]), timeout=10),
            stubs.lease.Complete(
                v1.CompleteRequest(namespace=nowhere, entries=[v1.CompleteEntry(handle=HANDLE)], **GOOD), timeout=10
            ),
            stubs.lease.Drain(v1.DrainRequest(namespace=nowhere, bundle_id="b", **GOOD), timeout=10),
        ]
        for call in calls:
            code, reason, *_ = await refusal(call)
            assert (code, reason) == (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"), call

    run(scenario())


def test_the_same_operation_id_for_another_kind_of_call(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace = await trio.via("leader"), fresh()
        request = v1.EnqueueRequest(namespace=namespace, items=items("a"), **GOOD)
        await stubs.lease.Enqueue(request, timeout=10)
        told = await refusal(stubs.lease.Lease(v1.LeaseRequest(namespace=namespace, **GOOD), timeout=10))
        assert told == (grpc.StatusCode.ALREADY_EXISTS, "CONFLICT", "operation_id", False)

    run(scenario())


def test_an_unhealthy_peer_is_told_at_once(trio: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        stubs, namespace, peer = await trio.via("leader"), fresh(), fresh("peer")
        options = v1.QueueOptions(enforce_peer_health=True)
        await stubs.admin.Configure(v1.ConfigureRequest(namespace=namespace, options=options), timeout=10)
        put = v1.EnqueueRequest(namespace=namespace, items=items("a", "b"))
        await stubs.lease.Enqueue(put, timeout=10)
        [held] = (await stubs.lease.Lease(v1.LeaseRequest(namespace=namespace, peer_id=peer), timeout=10)).leases
        fail = v1.FailRequest(namespace=namespace, peer_id=peer)
        fail.entries.add(handle=held.handle, requeue=False)
        await stubs.lease.Fail(fail, timeout=10)
        told = await refusal(stubs.lease.Lease(v1.LeaseRequest(namespace=namespace, peer_id=peer), timeout=10))
        assert told[:2] == (grpc.StatusCode.FAILED_PRECONDITION, "PEER_UNHEALTHY")
        beat = v1.HeartbeatRequest(namespace=namespace, peer_id=peer, all_of_peer=True)
        await stubs.lease.Heartbeat(beat, timeout=10)
        again = await stubs.lease.Lease(v1.LeaseRequest(namespace=namespace, peer_id=peer), timeout=10)
        assert len(again.leases) == 1

    run(scenario())


def test_without_a_leader_a_call_is_told_so(run: Runner, tmp_path_factory: pytest.TempPathFactory) -> None:
    async def scenario() -> None:
        cluster = Cluster(tmp_path_factory.mktemp("lonely"), 3, {"limits.answer_ms": 300})
        try:
            await cluster.start("n1")
            stubs = cluster.stubs["n1"]
            put = v1.EnqueueRequest(items=items("a"), **GOOD)
            told = await refusal(stubs.lease.Enqueue(put, timeout=5))
            assert told == (grpc.StatusCode.UNAVAILABLE, "NO_LEADER", "", True)
            lease = await refusal(stubs.lease.Lease(v1.LeaseRequest(**GOOD), timeout=5))
            assert lease == told
            read = await refusal(stubs.admin.Status(v1.StatusRequest(linearizable=True), timeout=5))
            assert read == told
            status = await stubs.admin.Status(v1.StatusRequest(), timeout=5)
            assert (status.leader_id, status.leader_address) == ("", "")
        finally:
            await cluster.stop_all()

    run(scenario())


def test_calls_of_one_client_are_bounded(solo: Cluster, run: Runner) -> None:
    async def scenario() -> None:
        await solo.start("n1", **{"limits.calls_per_peer": 2, "limits.streams_per_peer": 1})
        stubs = solo.stubs["n1"]
        waiting: list[Any] = [
            stubs.lease.Lease(v1.LeaseRequest(peer_id="w", wait_ms=20_000), timeout=30) for _ in range(2)
        ]
        await until(lambda: solo.nodes["n1"].door.waiting == 2)
        told = await refusal(stubs.lease.Lease(v1.LeaseRequest(peer_id="w"), timeout=10))
        assert (told[0], told[3]) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)
        for call in waiting:
            call.cancel()

    run(scenario())
