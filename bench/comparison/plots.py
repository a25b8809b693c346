"""Plots as SVG, drawn by hand: bars with their spread, and curves over the percentiles."""

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

__all__ = ["COLOURS", "bars", "curves"]

COLOURS = ("#d9480f", "#1c7ed6", "#2f9e44", "#7048e8", "#868e96", "#adb5bd", "#e8a33d", "#0c8599")

_WIDTH, _ROW, _LEFT, _RIGHT, _TOP = 760, 26, 150, 110, 46
_PLOT_HEIGHT = 300
_STYLE = 'font-family="system-ui, sans-serif" font-size="13"'


def _svg(height: int, title: str, parts: Sequence[str]) -> str:
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {_STYLE}>'
    ground = f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    return "\n".join(
        [head, f"<title>{escape(title)}</title>", ground, _text(14, 26, title, bold=True), *parts, "</svg>", ""]
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", bold: bool = False, grey: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    colour = "#868e96" if grey else "#212529"
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}"{weight}>{escape(text)}</text>'


def bars(title: str, rows: Sequence[tuple[str, float, float, float]], unit: str = "") -> str:
    """A bar a row: its name, value, and the lowest and highest of its rounds.

    >>> "<svg" in bars("lives a second", [("ours", 2.0, 1.0, 3.0)])
    True
    """
    most = max((max(value, high) for _, value, _, high in rows), default=0.0) or 1.0
    room = _WIDTH - _LEFT - _RIGHT
    parts = []
    for at, (name, value, low, high) in enumerate(rows):
        y = _TOP + at * _ROW
        width, middle = value / most * room, y + _ROW / 2 - 2
        parts.append(_text(_LEFT - 8, middle + 5, name, anchor="end", bold=name == "ours"))
        colour = COLOURS[at % len(COLOURS)]
        parts.append(f'<rect x="{_LEFT}" y="{y + 2}" width="{width:.1f}" height="{_ROW - 8}" fill="{colour}"/>')
        if high > low:
            ends = [_LEFT + end / most * room for end in (low, high)]
            parts.append(
                f'<path d="M{ends[0]:.1f} {middle:.1f}H{ends[1]:.1f}M{ends[0]:.1f} {middle - 4:.1f}v8'
                f'M{ends[1]:.1f} {middle - 4:.1f}v8" stroke="#212529" fill="none"/>'
            )
        parts.append(_text(_LEFT + max(width, high / most * room) + 6, middle + 5, f"{_short(value)}{unit}"))
    return _svg(_TOP + len(rows) * _ROW + 12, title, parts)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def curves(title: str, labels: Sequence[str], lines: Mapping[str, Sequence[float | None]], unit: str) -> str:
    """A line a peer over some labels, on a logarithmic scale.

    >>> "p99" in curves("times", ["p50", "p99"], {"ours": [1.0, None]}, "ms")
    True
    """
    values = [value for line in lines.values() for value in line if value]
    low, high = (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))) if values else (0, 1)
    high = max(high, low + 1)
    room, bottom = _WIDTH - _LEFT - _RIGHT, _TOP + _PLOT_HEIGHT

    def point(at: int, value: float) -> tuple[float, float]:
        x = _LEFT + room * (at + 0.5) / len(labels)
        return x, bottom - (math.log10(value) - low) / (high - low) * _PLOT_HEIGHT

    parts = []
    for power in range(low, high + 1):
        y = bottom - (power - low) / (high - low) * _PLOT_HEIGHT
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}" stroke="#dee2e6"/>')
        parts.append(_text(_LEFT - 8, y + 5, f"{10.0**power:,g} {unit}", anchor="end", grey=True))
    parts += [_text(point(at, 10.0**low)[0], bottom + 20, label, anchor="middle") for at, label in enumerate(labels)]
    for number, (name, line) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        points = [point(at, value) for at, value in enumerate(line) if value]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        y = _TOP + 6 + number * 18
        parts.append(f'<rect x="{_WIDTH - _RIGHT + 8}" y="{y - 8}" width="10" height="10" fill="{colour}"/>')
        parts.append(_text(_WIDTH - _RIGHT + 23, y + 2, name, bold=name == "ours"))
    return _svg(bottom + 34, title, parts)
