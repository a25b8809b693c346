"""Plots as SVG, drawn here: they stand in the page itself and load nothing."""

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import NamedTuple

__all__ = ["COLOURS", "Band", "bars", "columns", "lines", "span_of", "timeline"]

# Told apart also by those who do not see red and green alike.
COLOURS = (
    "#3b6fb6", "#e08e2b", "#4c9f70", "#b5483a", "#7d5ba6", "#8a6d3b", "#c26b9c", "#6b7280", "#a8a032", "#2fa3b5",
    "#1d3f72", "#f3c178", "#1f5c3a", "#e39b90", "#c3b1de", "#4a3717", "#f0c9de", "#b8bec7",
)  # fmt: skip
_WIDTH, _LEFT, _RIGHT, _TOP, _BOTTOM = 860, 64, 12, 10, 34


class Band(NamedTuple):
    """A stretch of a timeline: from ``begin`` to ``end``, in parts of the whole."""

    row: int
    begin: float
    end: float
    colour: str
    title: str


def columns(labels: Sequence[str], series: Mapping[str, Sequence[float]], *, height: int = 230) -> str:
    """Stacked columns: for each label, the values of all series on top of each other."""
    totals = [sum(values[place] for values in series.values()) for place in range(len(labels))]
    plot = _Plot(height, max(totals, default=0))
    step = plot.width / max(len(labels), 1)
    base = [0.0] * len(labels)
    for number, (name, values) in enumerate(series.items()):
        for place, value in enumerate(values):
            if value:
                top = plot.y(base[place] + value)
                title = f"{labels[place]}, {name}: {value:,.0f}"
                plot.box(_LEFT + step * place + step * 0.1, top, step * 0.8, plot.y(base[place]) - top, number, title)
                base[place] += value
    return plot.done(labels, list(series))


def lines(labels: Sequence[str], series: Mapping[str, Sequence[float | None]], *, height: int = 230) -> str:
    """A line for each series, of times in milliseconds; where a value is None the line is broken."""
    most = max((value for values in series.values() for value in values if value is not None), default=0)
    plot = _Plot(height, most, span_of)
    step = plot.width / max(len(labels), 1)
    for number, (name, values) in enumerate(series.items()):
        colour, path, drawn = COLOURS[number % len(COLOURS)], "", False
        for place, value in enumerate(values):
            if value is None:
                drawn = False
                continue
            x, y = _LEFT + step * (place + 0.5), plot.y(value)
            path += f"{'L' if drawn else 'M'}{x:.1f} {y:.1f}"
            drawn = True
            title = escape(f"{labels[place]}, {name}: {span_of(value)}")
            plot.add(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"><title>{title}</title></circle>')
        plot.add(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
    return plot.done(labels, list(series))


def bars(rows: Sequence[tuple[str, float]], *, colours: Sequence[str] = COLOURS[:1]) -> str:
    """A bar for each row, its name before it and its value behind it; ``colours`` one for each, or one for all."""
    most, left, step = max((value for _, value in rows), default=0) or 1, 300, 22
    parts = []
    for place, (name, value) in enumerate(rows):
        y, width = place * step, (_WIDTH - left - 80) * value / most
        colour = colours[place] if len(colours) > 1 else colours[0]
        shown = name if len(name) <= 46 else name[:45] + "…"
        parts.append(
            f'<text x="{left - 8}" y="{y + 15}" text-anchor="end">{escape(shown)}<title>{escape(name)}</title></text>'
            f'<rect x="{left}" y="{y + 3}" width="{max(width, 1):.1f}" height="{step - 7}" fill="{colour}"/>'
            f'<text x="{left + width + 6:.1f}" y="{y + 15}">{value:,.0f}</text>'
        )
    return _svg(len(rows) * step + 4, parts)


def timeline(names: Sequence[str], bands: Sequence[Band], ends: tuple[str, str]) -> str:
    """Who held what when: a row for each name, a band for each lease."""
    left, step = 220, 20
    width, height, right = _WIDTH - left - _RIGHT, len(names) * step, _WIDTH - _RIGHT
    parts = [
        f'<text x="{left - 8}" y="{row * step + 14}" text-anchor="end">{escape(name[:32])}<title>{escape(name)}</title>'
        f'</text><line x1="{left}" x2="{right}" y1="{(row + 1) * step}" y2="{(row + 1) * step}" class="grid"/>'
        for row, name in enumerate(names)
    ]
    for band in bands:
        x, wide = left + width * band.begin, max(width * (band.end - band.begin), 1.5)
        parts.append(
            f'<rect x="{x:.1f}" y="{band.row * step + 3}" width="{wide:.1f}" height="{step - 6}" rx="2" '
            f'fill="{band.colour}"><title>{escape(band.title)}</title></rect>'
        )
    parts.append(f'<text x="{left}" y="{height + 18}">{escape(ends[0])}</text>')
    parts.append(f'<text x="{_WIDTH - _RIGHT}" y="{height + 18}" text-anchor="end">{escape(ends[1])}</text>')
    return _svg(height + 26, parts)


class _Plot:
    """Axes, a grid and what is drawn between them."""

    def __init__(self, height: int, most: float, told: Callable[[float], str] | None = None) -> None:
        self.width = _WIDTH - _LEFT - _RIGHT
        self._height = height
        self._most = _round_up(most) if told is None else _round_up_ms(most)
        told = told or _short
        self._parts: list[str] = []
        for part in range(5):
            value = self._most * part / 4
            y = self.y(value)
            self.add(f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
            self.add(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{told(value)}</text>')

    def y(self, value: float) -> float:
        """Where a value is."""
        return _TOP + (self._height - _TOP - _BOTTOM) * (1 - value / self._most)

    def add(self, part: str) -> None:
        """Draws something."""
        self._parts.append(part)

    def box(self, x: float, y: float, width: float, height: float, number: int, title: str) -> None:
        """A filled box."""
        self.add(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 1):.1f}" height="{max(height, 0.5):.1f}" '
            f'fill="{COLOURS[number % len(COLOURS)]}"><title>{escape(title)}</title></rect>'
        )

    def done(self, labels: Sequence[str], names: Sequence[str]) -> str:
        """The plot with its labels, as many as have room, and its legend."""
        step = self.width / max(len(labels), 1)
        every = max(1, -(-len(labels) // 8))
        for place in range(0, len(labels), every):
            x = _LEFT + step * (place + 0.5)
            self.add(f'<text x="{x:.1f}" y="{self._height - 14}" text-anchor="middle">{escape(labels[place])}</text>')
        keys = "".join(
            f'<span><i style="background:{COLOURS[number % len(COLOURS)]}"></i>{escape(name)}</span>'
            for number, name in enumerate(names)
        )
        return f'{_svg(self._height, self._parts)}<p class="legend">{keys}</p>'


def _svg(height: int, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'


def _round_up(value: float) -> float:
    """The next number that reads well.

    >>> _round_up(0), _round_up(37), _round_up(1234)
    (1, 40, 2000)
    """
    if value <= 0:
        return 1
    size = 1
    while size * 10 < value:
        size *= 10
    return next(size * part for part in (1, 2, 4, 5, 8, 10) if size * part >= value)


_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def span_of(ms: float) -> str:
    """Milliseconds as people say them.

    >>> span_of(0), span_of(250), span_of(1500), span_of(3_688_000), span_of(7_200_000)
    ('0', '250 ms', '1.5 s', '1 h 1 min', '2 h')
    """
    for (size, name), (less, below) in zip(_UNITS, (*_UNITS[1:], (1, "ms")), strict=True):
        if ms >= size:
            if name == "s":
                return f"{ms / size:.3g} s"
            whole, rest = divmod(round(ms / less), size // less)
            return f"{whole} {name} {rest} {below}" if rest else f"{whole} {name}"
    return f"{ms:.3g} ms" if ms else "0"


def _round_up_ms(ms: float) -> float:
    """The next time that reads well in quarters.

    >>> _round_up_ms(31_000), _round_up_ms(3_688_000), _round_up_ms(7)
    (40000, 7200000, 8)
    """
    for size in (86_400_000, 3_600_000, 60_000):
        if ms > size:
            parts = (1, 2, 4, 8, 12, 20, 40, 60)
            return next((size * part for part in parts if size * part >= ms), size * _round_up(ms / size))
    return _round_up(ms)


def _short(value: float) -> str:
    """A number in little room.

    >>> _short(1500), _short(0.5), _short(2_000_000)
    ('1.5k', '0.5', '2M')
    """
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"
