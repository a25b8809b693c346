"""All checkers on what one drill left behind."""

from chaos.drills.checkers import (
    events_tell_the_same,
    linearizable,
    nothing_is_lost,
    one_line_of_events,
    one_verdict,
    store_was_protected,
)
from chaos.drills.cluster import Cluster
from chaos.drills.outcome import Outcome
from chaos.drills.scene import Drill

__all__ = ["judge", "leftovers", "log_problems"]

# Of each checker, so many sentences are enough to begin with.
_MOST = 5
# What a node says when it has met something that nobody thought of.
_ALARMS = ("Traceback (most recent call last)", "ConsensusBroken", "stumbled")
# What gRPC says when a caller gives up in the moment in which it is answered, as those who watch the nodes do.
_HARMLESS = ("ExecuteBatchError",)


def judge(outcome: Outcome, drill: Drill, cluster: Cluster) -> list[str]:
    """What all checkers have to say."""
    calls, told = outcome.calls, outcome.told
    peaceful = any(call.kind == "look" for call in calls)
    problems = [
        *_some(one_verdict(calls)),
        *_some(store_was_protected(calls)),
        *_some(nothing_is_lost(calls) if peaceful else []),
        *_some(one_line_of_events(told.events, told.breaks)),
        *_some(events_tell_the_same(told.events, calls, whole=not told.breaks) if peaceful else []),
        *_some(linearizable(calls, drill.plan.lease_ms / 1000 / drill.fastest_clock)),
    ]
    outcome.notes += [f"a subscriber met a gap: {gap}" for gap in told.gaps]
    return problems + log_problems(cluster, outcome.expected_words) + leftovers(cluster)


def leftovers(cluster: Cluster) -> list[str]:
    """Files that a node makes for a while only, and that are still there after it has stopped in order."""
    problems = []
    for node in cluster.nodes.values():
        found = [node.data / "install", node.data / "install.plan", *node.data.glob("snapshots/work-*")]
        problems += [f"{node.name} has left {path.relative_to(node.data)} behind" for path in found if path.exists()]
    return problems


def log_problems(cluster: Cluster, expected: list[str]) -> list[str]:
    """Alarms in the nodes' logs."""
    problems = []
    for node in cluster.nodes.values():
        for line in node.words().splitlines():
            if any(alarm in line for alarm in _ALARMS) and not any(word in line for word in (*expected, *_HARMLESS)):
                problems.append(f"{node.name} says in its log: {line[:300]}")
                break
    return problems


def _some(problems: list[str]) -> list[str]:
    if len(problems) <= _MOST:
        return problems
    return [*problems[:_MOST], f"... and {len(problems) - _MOST} more of this kind"]
