"""Version gates and effects: doing a thing once although its runner may die."""

from typing import Any

from resourcelease.machine.checks import invalid, is_count, is_id, is_name
from resourcelease.machine.decision import Decision, created, unknown
from resourcelease.machine.state import Effect, Namespace, State
from resourcelease.model import limits
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.eventdata import EffectData, EventType
from resourcelease.model.events import Record
from resourcelease.model.ops import BeginEffect, FinishEffect, RequireVersion
from resourcelease.model.results import EffectState, VersionFixed

__all__ = ["begin_effect", "finish_effect", "replay_effect", "replay_version", "require_version"]

_MAX_VERSION = 1 << 31


def require_version(state: State, op: RequireVersion) -> Decision:
    """The version of a change: whoever asks first decides for everyone."""
    if not is_name(op.change_id):
        return Decision(invalid(f"a change id is a name of 1 to {limits.MAX_NAME} characters", "change_id"), [])
    if not (is_count(op.minimum, _MAX_VERSION) and is_count(op.maximum, _MAX_VERSION) and op.minimum <= op.maximum):
        return Decision(invalid("versions are whole numbers, the minimum not above the maximum", "maximum"), [])
    found = created(state, op.call)
    if isinstance(found, Refusal):
        return Decision(found, [])
    ns, records = found
    fixed = ns.versions.get(op.change_id)
    if fixed is not None:
        if op.minimum <= fixed.version <= op.maximum:
            return Decision(VersionFixed(fixed.version), [])
        message = f"{op.change_id} is fixed at version {fixed.version}, outside {op.minimum} to {op.maximum}"
        return Decision(Refusal(Reason.CONFLICT, message, "change_id"), [])
    if len(ns.versions) >= limits.MAX_GATES:
        return Decision(Refusal(Reason.QUEUE_FULL, f"{limits.MAX_GATES} changes have a version already"), [])
    data = EffectData("version", op.change_id, 0, 0, 0, op.maximum)
    record = Record(EventType.EFFECT, data, call=op.call)
    if op.call.operation_id:
        record.answer = [op.call.take, 13, op.maximum]
    return Decision(VersionFixed(op.maximum), [*records, record])


def begin_effect(state: State, op: BeginEffect) -> Decision:
    """Makes the caller the runner, or gives it the result that there is."""
    checked = _checked(state, op)
    if not isinstance(checked, Namespace):
        return Decision(checked, [])
    ns = checked
    effect = ns.effects.get(op.effect_id)
    if effect is not None:
        if effect.finished:
            return Decision(EffectState(True, effect.result), [])
        if effect.fence == op.fence:
            return Decision(EffectState(False, b""), [])
        runner = ns.leases.get(effect.sequence_id)
        if (runner is not None and runner[0] == effect.fence) or effect.fence > op.fence:
            message = f"effect {op.effect_id} is run under fence {effect.fence}, and yours is {op.fence}"
            return Decision(Refusal(Reason.CONFLICT, message, "effect_id"), [])
    elif len(ns.effects) >= limits.MAX_EFFECTS and not any(effect.finished for effect in ns.effects.values()):
        return Decision(Refusal(Reason.QUEUE_FULL, f"{limits.MAX_EFFECTS} effects are running already"), [])
    data = EffectData("begin", op.effect_id, op.sequence_id, op.attempt, op.fence, None)
    record = Record(EventType.EFFECT, data, call=op.call)
    if op.call.operation_id:
        record.answer = [op.call.take, 14, [False, b""]]
    return Decision(EffectState(False, b""), [record])


def finish_effect(state: State, op: FinishEffect) -> Decision:
    """Stores the result, unless there is one."""
    if type(op.result) is not bytes or len(op.result) > limits.MAX_EFFECT_RESULT:
        return Decision(invalid(f"a result has at most {limits.MAX_EFFECT_RESULT} bytes", "result"), [])
    checked = _checked(state, op)
    if not isinstance(checked, Namespace):
        return Decision(checked, [])
    ns = checked
    effect = ns.effects.get(op.effect_id)
    if effect is None:
        return Decision(Refusal(Reason.NOT_FOUND, f"effect {op.effect_id} has not begun", "effect_id"), [])
    if effect.finished:
        return Decision(EffectState(True, effect.result), [])
    if effect.fence != op.fence:
        message = f"effect {op.effect_id} is run under fence {effect.fence}, and yours is {op.fence}"
        return Decision(Refusal(Reason.CONFLICT, message, "effect_id"), [])
    data = EffectData("finish", op.effect_id, op.sequence_id, op.attempt, op.fence, op.result)
    record = Record(EventType.EFFECT, data, call=op.call)
    if op.call.operation_id:
        record.answer = [op.call.take, 15, [True, op.result]]
    return Decision(EffectState(True, op.result), [record])


def replay_version(state: State, ns: Namespace | None, content: int) -> VersionFixed:
    """The first answer again."""
    return VersionFixed(content)


def replay_effect(state: State, ns: Namespace | None, content: list[Any]) -> EffectState:
    """The first answer again."""
    finished, result = content
    return EffectState(finished, result)


def _checked(state: State, op: BeginEffect | FinishEffect) -> Namespace | Refusal:
    if not op.call.peer:
        return invalid("say which peer this is", "peer_id")
    if not is_name(op.effect_id):
        return invalid(f"an effect id is a name of 1 to {limits.MAX_NAME} characters", "effect_id")
    if not (is_id(op.sequence_id) and is_id(op.attempt) and is_id(op.fence)):
        return invalid("an effect runs under a lease: name its handle", "handle")
    ns = state.namespaces.get(op.call.namespace)
    if ns is None:
        return _refusal(unknown(op.call))
    lease = ns.leases.get(op.sequence_id)
    if lease is None or lease[0] != op.fence or ns.attempt_of(op.sequence_id) != op.attempt:
        return Refusal(Reason.LEASE_LOST, f"the lease on item {op.sequence_id} is over; stop working on it", "handle")
    if lease[1].principal and lease[1].principal != op.call.principal:
        return Refusal(Reason.FORBIDDEN, f"the lease belongs to {lease[1].principal}", "handle")
    return ns


def _refusal(decision: Decision) -> Refusal:
    assert isinstance(decision.result, Refusal)
    return decision.result


def oldest_finished(effects: dict[str, Effect]) -> str:
    """The longest-begun effect that has its result."""
    return next(name for name, effect in effects.items() if effect.finished)
