"""Why an item waits: the one rule that holds it back, in words and as fields."""

from enum import StrEnum
from typing import NamedTuple

from resourcelease.machine.state import Namespace, State
from resourcelease.machine.views import ItemView, item

__all__ = ["Explanation", "Rule", "explain"]


class Rule(StrEnum):
    """What can be said of an item. Backpressure is none: it holds back callers, not items."""

    UNKNOWN_NAMESPACE = "unknown_namespace"
    UNKNOWN_ITEM = "unknown_item"
    SETTLED = "settled"
    DEAD = "dead"
    LEASED = "leased"
    PAUSED = "paused"
    DELAYED = "delayed"
    NO_PEER = "no_healthy_peer_asked"
    ORDER = "order"
    NEXT = "next"


class Explanation(NamedTuple):
    """The rule, one line of words, and the numbers in them where they apply."""

    rule: Rule
    words: str
    # Items that go before this one, while it is pending.
    ahead: int = 0
    # When the rule ends by itself, on the lease clock; 0 if it does not.
    until_ms: int = 0
    peer: str = ""
    # Of the lease that it is under, or that completed it.
    fence: int = 0
    # Of those ahead, the ones with a higher priority.
    ahead_by_priority: int = 0


def explain(state: State, namespace: str, sequence_id: int) -> Explanation:
    """The rule that holds an item where it is."""
    ns = state.namespaces.get(namespace)
    if ns is None:
        return Explanation(Rule.UNKNOWN_NAMESPACE, f"there is no namespace {namespace}")
    view = item(state, ns, sequence_id)
    if view is None:
        return _gone(state, ns, sequence_id)
    name = f"item {sequence_id} ({view.item.resource_type} {view.item.resource_id})"
    if view.place == "dead":
        return Explanation(Rule.DEAD, f"{name} is a dead letter ({_death(view)}); redrive it to try again")
    if view.place == "active":
        left_ms = view.deadline_ms - state.clock_ms
        words = f"{name} is leased to {view.peer} under fence {view.fence}, for another {left_ms} ms"
        return Explanation(Rule.LEASED, words, until_ms=view.deadline_ms, peer=view.peer, fence=view.fence)
    if view.place == "delayed":
        words = f"{name} is delayed for another {view.due_ms - state.clock_ms} ms"
        if ns.paused:
            words += f"; and namespace {namespace} is paused"
        return Explanation(Rule.DELAYED, words, until_ms=view.due_ms)
    ahead = ns.ready.ahead_of(view.priority, sequence_id)
    if ns.paused:
        words = f"{name} is pending with {ahead} ahead of it, and namespace {namespace} is paused"
        return Explanation(Rule.PAUSED, words, ahead=ahead)
    if not _asked_by_healthy_peer(state, ns):
        words = f"{name} is pending with {ahead} ahead of it, and no healthy peer asks for work in {namespace}"
        return Explanation(Rule.NO_PEER, words, ahead=ahead)
    if ahead:
        words = f"{name} is pending with {ahead} ahead of it (priority {view.priority})"
        return Explanation(Rule.ORDER, words, ahead=ahead, ahead_by_priority=ns.ready.above(view.priority))
    return Explanation(Rule.NEXT, f"{name} is next: the next lease in {namespace} takes it")


def _gone(state: State, ns: Namespace, sequence_id: int) -> Explanation:
    how = ns.settled.get(sequence_id, state.clock_ms)
    if how is not None:
        words = f"under fence {how}" if isinstance(how, int) else ""
        verb = "completed" if isinstance(how, int) else how.how
        fence = how if isinstance(how, int) else 0
        return Explanation(Rule.SETTLED, f"item {sequence_id} was {verb} {words}".rstrip(), fence=fence)
    if 1 <= sequence_id < ns.next_id:
        return Explanation(Rule.SETTLED, f"item {sequence_id} is gone: it was completed, drained or discarded")
    return Explanation(Rule.UNKNOWN_ITEM, f"item {sequence_id} was never enqueued in {ns.name}")


def _death(view: ItemView) -> str:
    error = f": {view.last_error.code} {view.last_error.message}" if view.last_error else ""
    return f"{view.cause} on attempt {view.attempt}{error}"


def _asked_by_healthy_peer(state: State, ns: Namespace) -> bool:
    oldest_ms = state.clock_ms - ns.options.peer_grace_ms
    for peer in state.peers.values():
        here = peer.at.get(ns.name)
        if here is not None and here.heard_ms >= oldest_ms and not peer.disconnected:
            return True
    return False
