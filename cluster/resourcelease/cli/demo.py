"""``demo``: three nodes, a workload, and the leader killed with -9 halfway and started again."""

import asyncio
import contextlib
import json
import signal
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from resourcelease.cli.processes import LocalCluster, LocalNode

if TYPE_CHECKING:
    from resourcelease.cli.demoshow import Show
    from resourcelease.cli.demowork import Ledger, Workload
    from resourcelease.client import Client

__all__ = ["demo"]

WORKERS = 4
# Short enough that what a crash leaves behind is handed out again before the demo ends.
LEASE_MS, HEARTBEAT_MS = 5_000, 1_500
# How long after the kill an interruption still belongs to it.
FAILOVER_SECONDS = 10.0
FINISH_SECONDS = 30.0


@click.command()
@click.option("--seconds", default=20.0, show_default=True, metavar="S", help="How long to produce work.")
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(3, 9), help="How many nodes.")
def demo(seconds: float, nodes: int) -> int:
    """Watch three nodes survive the death of their leader.

    Nodes run as processes in a temporary directory; workers lease, write to a store that checks fences, and complete.
    Halfway the leader is killed with -9, and started again. The last line is a JSON object; the exit code is 0 only if
    nothing that was acknowledged was lost, and nothing was granted twice.
    """
    with tempfile.TemporaryDirectory(prefix="resourcelease-demo-") as directory:
        try:
            return asyncio.run(_until_done_or_interrupted(Path(directory), seconds, nodes))
        except OSError as error:
            raise click.ClickException(str(error)) from error


async def _until_done_or_interrupted(directory: Path, seconds: float, nodes: int) -> int:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    cluster = LocalCluster.plan(directory / "cluster", nodes)
    try:
        return await _play(cluster, seconds)
    except asyncio.CancelledError:
        raise click.ClickException("interrupted; all nodes are stopped") from None
    finally:
        await cluster.stop()


async def _play(cluster: LocalCluster, seconds: float) -> int:
    from resourcelease.cli.demoshow import Show
    from resourcelease.cli.demowork import Ledger, Workload
    from resourcelease.client import Client

    async with contextlib.AsyncExitStack() as stack:
        show = stack.enter_context(Show())
        producer = await stack.enter_async_context(Client(cluster.endpoints, peer_id="producer"))
        workers = [await stack.enter_async_context(Client(cluster.endpoints)) for _ in range(WORKERS)]
        cluster.start()
        leader = await cluster.ready(producer)
        await producer.configure(lease_duration_ms=LEASE_MS, heartbeat_interval_ms=HEARTBEAT_MS)
        show.tell(f"{len(cluster.nodes)} nodes run on this machine, {leader} leads", "bold")
        ledger = Ledger()
        workload = Workload(producer, workers, ledger)
        watching = asyncio.create_task(_watch(cluster, producer, ledger, show))
        stack.push_async_callback(_end, watching)
        stack.push_async_callback(workload.stop)
        workload.start()
        started = time.monotonic()
        failover = await _tell_the_story(cluster, producer, workload, show, seconds)
        await _finish(workload, show)
        elapsed = max(ledger.acknowledged_at, default=started) - started
        await _look_up_the_rest(producer, ledger)
        agreed = await _agree(producer, show)
    return _judge(ledger, failover, elapsed, agreed, show)


async def _tell_the_story(
    cluster: LocalCluster, client: "Client", workload: "Workload", show: "Show", seconds: float
) -> float:
    """Work, the kill, the failover, the return; how long nothing was acknowledged, in seconds."""
    show.tell(f"{WORKERS} workers and a producer are at work")
    await _pass(workload, seconds * 0.4)
    victim = await _leader(cluster, client)
    show.tell(f"kill -9 {victim.name}, the leader (process {victim.pid})", "bold red")
    killed = time.monotonic()
    victim.kill()
    first = await _pass_until_leader(cluster, client, victim, workload)
    show.tell(f"{first} leads now", "bold green")
    await _pass(workload, max(0.0, seconds * 0.2 - (time.monotonic() - killed)))
    victim.start()
    show.tell(f"{victim.name} is started again, on the same disk", "bold")
    await _pass(workload, seconds * 0.4)
    failover = workload.ledger.longest_silence(killed, killed + FAILOVER_SECONDS)
    show.tell(f"the failover kept callers waiting for {failover * 1000:.0f} ms at most")
    return failover


async def _leader(cluster: LocalCluster, client: "Client") -> LocalNode:
    name = (await client.status()).leader_id
    return next((node for node in cluster.nodes if node.name == name), cluster.nodes[0])


async def _pass_until_leader(cluster: LocalCluster, client: "Client", victim: LocalNode, workload: "Workload") -> str:
    from resourcelease.client import ResourceLeaseError

    others = [node for node in cluster.nodes if node is not victim]
    while True:
        await _pass(workload, 0.05)
        for node in others:
            with contextlib.suppress(ResourceLeaseError):
                leader = (await client.status(node=node.address)).leader_id
                if leader and leader != victim.name:
                    return leader


async def _pass(workload: "Workload", seconds: float) -> None:
    """Lets time pass, and stops at once if the workload meets what it should not."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(left, 0.1))
        workload.check()


async def _finish(workload: "Workload", show: "Show") -> None:
    """Nothing new is produced; what is there is worked off."""
    await workload.stop_producing()
    show.tell(f"{len(workload.ledger.enqueued):,} items are in; the workers finish what is left")
    until = time.monotonic() + FINISH_SECONDS
    while workload.ledger.missing and time.monotonic() < until:
        await _pass(workload, 0.05)


async def _look_up_the_rest(client: "Client", ledger: "Ledger") -> None:
    """An answer may be lost where the change was not: the cluster has the last word on what nobody heard of."""
    from resourcelease.v1 import ExplainRule

    for item in ledger.missing:
        answer = await client.explain(item, linearizable=True)
        if answer.rule == ExplainRule.EXPLAIN_RULE_COMPLETED:
            ledger.completed[item] = time.monotonic()


async def _agree(client: "Client", show: "Show") -> bool:
    """Whether all nodes, the one that was killed included, hold the same state and history."""
    from resourcelease.client import ResourceLeaseError

    try:
        answer = await client.verify(linearizable=True)
    except ResourceLeaseError as error:
        show.tell(f"the nodes could not be compared: {error}", "yellow")
        return False
    return answer.ok


async def _watch(cluster: LocalCluster, client: "Client", ledger: "Ledger", show: "Show") -> None:
    """Keeps the facts on the screen fresh."""
    from resourcelease.client import ResourceLeaseError

    before, at = 0, time.monotonic()
    while True:
        for node in cluster.nodes:
            show.nodes[node.name] = await _state(node, client)
        with contextlib.suppress(ResourceLeaseError):
            leads = [name for name, state in show.nodes.items() if state == "leads"]
            show.facts["leader"] = leads[0] if leads else "none"
            if leads:
                queues = await client.queues(client.namespace)
                show.facts["pending"] = queues[0].summary.depth.pending if queues else 0
                show.facts["leased"] = queues[0].summary.depth.active if queues else 0
        now, done = time.monotonic(), len(ledger.completed)
        show.facts["enqueued"], show.facts["completed"] = len(ledger.enqueued), done
        show.measure(round((done - before) / max(now - at, 0.001)))
        before, at = done, now
        await asyncio.sleep(0.25)


async def _state(node: LocalNode, client: "Client") -> str:
    from resourcelease.client import ResourceLeaseError

    if node.pid is None:
        return "dead"
    try:
        async with asyncio.timeout(0.5):
            answer = await client.status(node=node.address)
    except (ResourceLeaseError, TimeoutError):
        return "starts"
    return "leads" if answer.leader_id == node.name else "follows"


async def _end(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _judge(ledger: "Ledger", failover: float, elapsed: float, agreed: bool, show: "Show") -> int:
    lost, double = len(ledger.missing), ledger.double_grants
    completed = sum(item in ledger.completed for item in ledger.enqueued)
    rate = completed / elapsed if elapsed > 0 else 0.0
    show.closing(
        [
            ("enqueued and acknowledged", f"{len(ledger.enqueued):,}", bool(ledger.enqueued)),
            ("completed", f"{completed:,}", completed == len(ledger.enqueued)),
            ("lost", f"{lost:,}", not lost),
            ("granted twice", f"{double:,}", not double),
            ("leases lost in the failover, done by others", f"{ledger.lost_leases:,}", True),
            ("writes under an old fence, refused", f"{ledger.stale_writes:,}", True),
            ("longest wait in the failover", f"{failover * 1000:,.0f} ms", True),
            ("whole lives of items a second", f"{rate:,.0f}", True),
            ("nodes agree, byte for byte", "yes" if agreed else "not shown", agreed),
        ]
    )
    summary = {
        "enqueued": len(ledger.enqueued),
        "completed": completed,
        "lost": lost,
        "double_grants": double,
        "failover_ms": round(failover * 1000, 1),
        "lifecycles_per_s": round(rate, 1),
    }
    print(json.dumps(summary), flush=True)
    return 0 if ledger.enqueued and not lost and not double else 1
