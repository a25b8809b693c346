"""configure, pause, resume, and backpressure: what holds for a whole namespace."""

from typing import Any

from resourcelease.machine.checks import invalid
from resourcelease.machine.decision import Decision, created, unknown
from resourcelease.machine.state import Namespace, State
from resourcelease.model.errors import Refusal
from resourcelease.model.eventdata import BackpressureData, EventType, SettingsData
from resourcelease.model.events import Record
from resourcelease.model.ops import Call, Configure, Pause, Resume
from resourcelease.model.options import QueueOptions, changed_options
from resourcelease.model.results import Configured

__all__ = ["backpressure", "configure", "pause", "replay_settings", "resume"]


def configure(state: State, op: Configure) -> Decision:
    """Changes options; those not named stay."""
    if type(op.options) is not dict or not all(type(name) is str for name in op.options):
        return Decision(invalid("options are a map", "options"), [])
    found = created(state, op.call)
    if isinstance(found, Refusal):
        return Decision(found, [])
    ns, records = found
    options = changed_options(ns.options, op.options)
    if isinstance(options, Refusal):
        return Decision(options, [])
    return _settled(ns, op.call, 7, options, ns.paused, new=bool(records))


def pause(state: State, op: Pause) -> Decision:
    """No more grants."""
    found = created(state, op.call)
    if isinstance(found, Refusal):
        return Decision(found, [])
    ns, records = found
    return _settled(ns, op.call, 8, ns.options, True, new=bool(records))


def resume(state: State, op: Resume) -> Decision:
    """Grants again."""
    ns = state.namespaces.get(op.call.namespace)
    if ns is None:
        return unknown(op.call)
    return _settled(ns, op.call, 9, ns.options, False, new=False)


def backpressure(ns: Namespace) -> list[Record]:
    """The record that switches backpressure, if the depth of the queue now says so."""
    high, low = ns.options.high_watermark, ns.options.low_watermark
    pending = ns.ready.size
    if high is None or low is None:
        active = False
    elif ns.backpressure:
        active = pending > low
    else:
        active = pending >= high
    if active == ns.backpressure:
        return []
    data = BackpressureData(active, high or 0, low or 0)
    return [Record(EventType.BACKPRESSURE, data, call=Call(ns.name))]


def replay_settings(state: State, ns: Namespace | None, content: list[Any]) -> Configured:
    """The first answer again."""
    options, paused = content
    return Configured(QueueOptions(**options), paused)


def _settled(ns: Namespace, call: Call, code: int, options: QueueOptions, paused: bool, *, new: bool) -> Decision:
    result = Configured(options, paused)
    if not new and options == ns.options and paused == ns.paused:
        return Decision(result, [])
    settings = options.as_map()
    record = Record(EventType.CONFIGURED, SettingsData(settings, paused), call=call)
    if call.operation_id:
        record.answer = [call.take, code, [settings, paused]]
    return Decision(result, [record])
