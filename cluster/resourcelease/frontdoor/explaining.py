"""Why an item waits, in the rules of the wire."""

from typing import TypeAlias

from resourcelease import v1
from resourcelease.frontdoor.refusals import Refused
from resourcelease.machine import Machine
from resourcelease.machine.explain import Explanation, Rule
from resourcelease.model.errors import Reason

__all__ = ["explain"]

_R = v1.ExplainRule
_Told: TypeAlias = "tuple[v1.ExplainRule.ValueType, str, dict[str, str]]"


def explain(machine: Machine, namespace: str, sequence_id: int) -> _Told:
    """Rule, words and fields; raises ``Refused`` for an item that never was."""
    found = machine.explain(namespace, sequence_id)
    rule, words = found.rule, found.words
    if rule in (Rule.UNKNOWN_NAMESPACE, Rule.UNKNOWN_ITEM):
        field = "namespace" if rule is Rule.UNKNOWN_NAMESPACE else "sequence_id"
        raise Refused(Reason.NOT_FOUND, words, field)
    if rule is Rule.SETTLED:
        if found.fence:
            return _R.EXPLAIN_RULE_COMPLETED, words, {"completed_by": str(found.fence)}
        return _R.EXPLAIN_RULE_GONE, words, {}
    if rule is Rule.PAUSED:
        return _R.EXPLAIN_RULE_PAUSED, words, {}
    if rule is Rule.LEASED:
        left_ms = max(0, found.until_ms - machine.clock_ms)
        fields = {"peer_id": found.peer, "lease_id": str(found.fence), "remaining_ms": str(left_ms)}
        return _R.EXPLAIN_RULE_LEASED, words, fields
    if rule is Rule.DELAYED:
        fields = {"ready_at_ms": str(found.until_ms), "ready_in_ms": str(max(0, found.until_ms - machine.clock_ms))}
        return _R.EXPLAIN_RULE_DELAYED, words, fields
    if rule is Rule.DEAD:
        return _R.EXPLAIN_RULE_DEAD, words, _spent(machine, namespace, sequence_id)
    return _in_line(machine, namespace, found)


def _spent(machine: Machine, namespace: str, sequence_id: int) -> dict[str, str]:
    view, queue = machine.item(namespace, sequence_id), machine.queue(namespace)
    assert view is not None
    assert queue is not None
    return {"attempts_used": str(view.attempts_used), "max_attempts": str(queue.options.max_attempts)}


def _in_line(machine: Machine, namespace: str, found: Explanation) -> _Told:
    queue = machine.queue(namespace)
    assert queue is not None
    if found.rule is Rule.NO_PEER and queue.options.enforce_peer_health:
        peers = machine.peers()
        disconnected = sum(1 for peer in peers if peer.disconnected)
        fields = {"peers": str(len(peers)), "disconnected": str(disconnected)}
        return _R.EXPLAIN_RULE_NO_HEALTHY_PEER, found.words, fields
    if found.ahead:
        fields = {"ahead": str(found.ahead), "ahead_by_priority": str(found.ahead_by_priority)}
        return _R.EXPLAIN_RULE_BEHIND, found.words, fields
    return _R.EXPLAIN_RULE_NEXT, found.words, {}
