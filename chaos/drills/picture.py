"""The picture of a drill, as SVG: throughput, latency, who led, and what was done to the nodes meanwhile."""

from collections.abc import Callable, Iterable, Sequence
from html import escape

from chaos.drills.history import OK, Call
from chaos.drills.outcome import Outcome
from chaos.drills.watch import Look

__all__ = ["picture"]

_WIDTH, _LEFT, _RIGHT = 960, 70, 10
_BIN_S = 0.25
_GRAPH, _LANE, _GAP = 70, 14, 26
_COLOURS = {"leader": "#e8590c", "follower": "#a5c8e8", "silent": "#f1c0c0", "down": "#444"}


def picture(outcome: Outcome) -> str:
    """All of it."""
    end = max([outcome.acted_s, *(call.end for call in outcome.calls)], default=1.0) or 1.0
    x = _scale(end)
    parts: list[str] = []
    top = 18
    answered = [call for call in outcome.calls if call.kind in ("enqueue", "complete") and call.outcome == OK]
    bottom = top + 2 * (_GRAPH + _GAP) + (_LANE + 3) * len({look.node for look in outcome.looks}) + 10
    parts += _faults(outcome, x, bottom, end)
    parts += _graph("changes a second", _rates(answered, end), top, x, "#2b8a3e")
    top += _GRAPH + _GAP
    parts += _graph("slowest, ms", _latencies(answered, end), top, x, "#1864ab")
    top += _GRAPH + _GAP
    for name in sorted({look.node for look in outcome.looks}):
        parts += _lane(name, [look for look in outcome.looks if look.node == name], top, x, end)
        top += _LANE + 3
    parts += _axis(end, top, x)
    height = top + 34
    return (
        f"<svg viewBox='0 0 {_WIDTH} {height}' xmlns='http://www.w3.org/2000/svg' font-family='sans-serif' "
        f"font-size='11'>{''.join(parts)}</svg>"
    )


def _scale(end: float) -> Callable[[float], float]:
    return lambda at: _LEFT + (_WIDTH - _LEFT - _RIGHT) * min(at, end) / end


def _bins(calls: Iterable[Call], end: float) -> list[list[Call]]:
    bins: list[list[Call]] = [[] for _ in range(int(end / _BIN_S) + 1)]
    for call in calls:
        bins[min(int(call.end / _BIN_S), len(bins) - 1)].append(call)
    return bins


def _rates(calls: Iterable[Call], end: float) -> list[float]:
    return [len(each) / _BIN_S for each in _bins(calls, end)]


def _latencies(calls: Iterable[Call], end: float) -> list[float]:
    return [max((call.end - call.start for call in each), default=0.0) * 1000 for each in _bins(calls, end)]


def _graph(title: str, values: Sequence[float], top: int, x: Callable[[float], float], colour: str) -> list[str]:
    most = max(values, default=0.0) or 1.0
    base = top + _GRAPH
    points = [f"{x(at * _BIN_S):.1f},{base - _GRAPH * value / most:.1f}" for at, value in enumerate(values)]
    area = " ".join([f"{x(0):.1f},{base}", *points, f"{x((len(values) - 1) * _BIN_S):.1f},{base}"])
    return [
        f"<polygon points='{area}' fill='{colour}' fill-opacity='.25' stroke='{colour}'/>",
        f"<text x='{_LEFT - 6}' y='{top + 8}' text-anchor='end'>{most:,.0f}</text>",
        f"<text x='{_LEFT - 6}' y='{base}' text-anchor='end'>0</text>",
        f"<text x='{_LEFT}' y='{top - 5}' fill='{colour}'>{title}</text>",
    ]


def _lane(name: str, looks: list[Look], top: int, x: Callable[[float], float], end: float) -> list[str]:
    """One node: what it was from look to look."""
    parts = [f"<text x='{_LEFT - 6}' y='{top + 11}' text-anchor='end'>{escape(name)}</text>"]
    for look, following in zip(looks, [*looks[1:], None], strict=True):
        until = following.at if following is not None else min(look.at + _BIN_S, end)
        width = max(x(until) - x(look.at), 0.5)
        colour = _COLOURS[look.role]
        parts.append(f"<rect x='{x(look.at):.1f}' y='{top}' width='{width:.1f}' height='{_LANE}' fill='{colour}'/>")
    return parts


def _faults(outcome: Outcome, x: Callable[[float], float], bottom: int, end: float) -> list[str]:
    """A grey field from the start of each fault to its end; its words show under the pointer."""
    parts = []
    for fault in outcome.faults:
        left, right = x(fault.start), x(fault.end if fault.end is not None else end)
        parts.append(
            f"<rect x='{left:.1f}' y='4' width='{max(right - left, 1.5):.1f}' height='{bottom}' fill='#000' "
            f"fill-opacity='.09'><title>{escape(fault.words)}</title></rect>"
        )
    return parts


def _axis(end: float, top: int, x: Callable[[float], float]) -> list[str]:
    step = next(step for step in (1, 2, 5, 10, 30, 60, 300, 1800, 10_000) if end / step <= 24)
    ticks = [
        f"<text x='{x(at):.1f}' y='{top + 12}' text-anchor='middle'>{at} s</text>"
        for at in range(0, int(end) + 1, step)
    ]
    at = _LEFT
    for role, colour in _COLOURS.items():
        ticks.append(f"<rect x='{at}' y='{top + 19}' width='10' height='10' fill='{colour}'/>")
        ticks.append(f"<text x='{at + 14}' y='{top + 28}'>{role}</text>")
        at += 80
    ticks.append(f"<text x='{at}' y='{top + 28}'>grey field: a fault</text>")
    return ticks
