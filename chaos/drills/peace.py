"""After the last fault: what is open is worked off, and the cluster is asked about everything once more."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping

from chaos.drills.history import OK, Call
from chaos.drills.watch import Usage
from resourcelease import v1
from resourcelease.client import Client, ResourceLeaseError
from resourcelease.model.options import QueueOptions

__all__ = ["WORK_OFF_S", "agreed", "looked_up", "remembered_mib", "usage_problems", "worked_off"]

WORK_OFF_S = 40.0
# Every node reads its whole history for it, which takes long where many share two processors.
AGREE_S = 60.0

# What a node may have grown by, beyond its size before the faults. Its tail of events and its journal are in memory, so
# the drill says how much of that.
MORE_FILES = 40
MORE_THREADS = 16
# A node remembers the request id of an item for so long after its end, in about half a KiB each, and may hold on to
# twice that after it has loaded them.
_REMEMBERED_S = QueueOptions().dedup_window_ms / 1000.0
_REMEMBERED_KIB = 1.0

_DEAD = v1.ItemState.ITEM_STATE_DEAD
_COMPLETED = v1.EventType.EVENT_TYPE_COMPLETED


async def worked_off(client: Client, seconds: float = WORK_OFF_S) -> list[str]:
    """Waits until nothing is open; a sentence for each of the first items that still are."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(ResourceLeaseError):
            depths = [queue.summary.depth for queue in await client.queues(linearizable=True)]
            if not any(depth.pending + depth.active + depth.delayed for depth in depths):
                return []
        await asyncio.sleep(0.2)
    states = ("PENDING", "DELAYED", "ACTIVE")
    left = [item.sequence_id async for item in client.items(states=states, linearizable=True)]
    why = [(await client.explain(number)).words for number in left[:3]]
    return [f"{len(left)} items were not worked off in {seconds:g} s of peace, {left[:20]}: {' '.join(why)}"]


async def looked_up(client: Client, calls: Iterable[Call], events: Iterable[v1.Event]) -> dict[int, str]:
    """Where each item is that anybody heard of: done, dead, waiting or gone.

    What is not listed is gone or done; those whose completion nobody was told of are asked for one by one. What was
    done long ago the cluster has forgotten, and the events tell of it.
    """
    items, told_done = set(), set()
    for call in calls:
        if call.item:
            items.add(call.item)
        if call.kind == "complete" and call.outcome == OK:
            told_done.add(call.item)
    listed = {item.sequence_id: item async for item in client.items(linearizable=True, page_size=1000)}
    completed = {event.handle.sequence_id for event in events if event.type == _COMPLETED}
    places: dict[int, str] = {}
    for number in sorted(items | set(listed)):
        if number in listed:
            places[number] = "dead" if listed[number].state == _DEAD else "waiting"
        elif number in told_done:
            places[number] = "done"
        else:
            rule = (await client.explain(number)).rule
            done = rule == v1.ExplainRule.EXPLAIN_RULE_COMPLETED or (
                rule == v1.ExplainRule.EXPLAIN_RULE_GONE and number in completed
            )
            places[number] = "done" if done else "gone"
    return places


async def agreed(client: Client) -> list[str]:
    """All nodes hold the same state and history; a sentence for each that does not."""
    until = time.monotonic() + AGREE_S
    while True:
        problems: list[str] = []
        try:
            answer = await client.verify(linearizable=True, timeout=AGREE_S)
            if answer.ok:
                return []
            problems = [f"{node.node_id}: {problem}" for node in answer.nodes for problem in node.problems]
        except ResourceLeaseError as error:
            problems = [str(error)]
        if time.monotonic() > until:
            return [f"the nodes do not agree: {'; '.join(problems) or 'no reason was given'}"]
        await asyncio.sleep(0.5)


def remembered_mib(calls: Iterable[Call], now: float) -> float:
    """What a node may have grown by because it remembers what it was asked for within that time."""
    named = {call.request for call in calls if call.kind == "enqueue" and call.end > now - _REMEMBERED_S}
    return len(named) * _REMEMBERED_KIB / 1024


def usage_problems(usages: Mapping[str, tuple[Usage | None, Usage]], more_mib: float) -> list[str]:
    """Memory, files and threads that have not come back to where they were."""
    problems = []
    for name, (before, after) in usages.items():
        if before is None:
            continue
        for what, had, has, more in (
            ("MiB of memory", before.resident_mib, after.resident_mib, more_mib),
            ("open files", before.files, after.files, MORE_FILES),
            ("threads", before.threads, after.threads, MORE_THREADS),
        ):
            if has > had + more:
                problems.append(f"{name} had {had:.0f} {what} before the faults and has {has:.0f} in peace")
    return problems
