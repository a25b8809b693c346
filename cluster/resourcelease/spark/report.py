"""The report: one page of HTML that loads nothing, for people who answer for what was done."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any, NamedTuple

from resourcelease.spark.lineage_anomalies import ANOMALIES
from resourcelease.spark.plots import COLOURS, Band, bars, columns, lines, span_of, timeline

__all__ = ["Findings", "page"]

Row = Mapping[str, Any]

_OUTCOMES = dict(zip(("completed", "given_back", "drained", "held", "expired", "failed"), (
    COLOURS[2], COLOURS[1], COLOURS[4], COLOURS[0], COLOURS[5], COLOURS[3],
), strict=True))  # fmt: skip


# Lines in one plot; the tables have all.
_LINES_MAX = 10


class Findings(NamedTuple):
    """What the page tells; tables are short, as they were collected."""

    title: str
    # Facts about the log, in words.
    facts: Mapping[str, str]
    outcomes: Mapping[str, int]
    # How many anomalies of each kind, and the first of them.
    counted: Mapping[str, int]
    anomalies: Sequence[Row]
    activity: Sequence[Row]
    times: Sequence[Row]
    failures: Sequence[Row]
    churn: Sequence[Row]
    # Leases of the resources that were leased most, in order.
    busiest: Sequence[Row]
    # The items with the longest paths.
    paths: Sequence[Row]


def page(found: Findings) -> str:
    """The whole page."""
    sections = [
        ("Is anything wrong?", _anomalies(found)),
        ("How leases ended", _ends(found.outcomes)),
        ("Events by hour", _by_hour(found.activity, "type", "events")),
        ("Waiting for a lease", _times(found.times, "waited_ms")),
        ("Holding a lease", _times(found.times, "held_ms")),
        ("Who held what", _holders(found.busiest)),
        ("Failures by peer and resource", _failures(found.failures)),
        ("Peers coming and going", _churn(found.churn)),
        ("The longest paths", _paths(found.paths)),
    ]
    facts = "".join(
        f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for name, value in found.facts.items()
    )
    body = "".join(f"<section><h2>{escape(name)}</h2>{content}</section>" for name, content in sections)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(found.title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f'<h1>{escape(found.title)}</h1><div class="facts">{facts}</div>{body}</body></html>'
    )


def _ends(outcomes: Mapping[str, int]) -> str:
    """In the colours that outcomes have on the whole page."""
    rows = sorted(outcomes.items(), key=lambda one: -one[1])
    if not rows:
        return _nothing("no leases")
    return bars([(_words(name), count) for name, count in rows], colours=[_OUTCOMES[name] for name, _ in rows])


def _anomalies(found: Findings) -> str:
    total = sum(found.counted.values())
    if not total:
        checked = "; ".join(f"no case where {text}" for text in ANOMALIES.values())
        return f'<p class="good">Nothing: the log is in order.</p><p class="note">Looked for: {escape(checked)}.</p>'
    kinds = "".join(
        f"<li><b>{count:,}</b> {escape(kind)}: {escape(ANOMALIES[kind])}</li>" for kind, count in found.counted.items()
    )
    shown = _table(("kind", "namespace", "item", "sequence_number", "detail"), found.anomalies)
    return f'<p class="bad">{total:,} found.</p><ul>{kinds}</ul>{shown}'


def _by_hour(rows: Sequence[Row], by: str, value: str) -> str:
    hours = sorted({row["hour"] for row in rows})
    names = sorted({row[by] for row in rows})
    series = {name: [0.0] * len(hours) for name in names}
    for row in rows:
        series[row[by]][hours.index(row["hour"])] += row[value]
    return columns(_hours(hours), series) if rows else _nothing("no events")


def _times(rows: Sequence[Row], measure: str) -> str:
    hours = sorted({row["hour"] for row in rows})
    series: dict[str, list[float | None]] = {}
    for row in rows:
        for part in ("median", "p95"):
            values = series.setdefault(f"{row['namespace']} {part}", [None] * len(hours))
            values[hours.index(row["hour"])] = row[f"{measure}_{part}"]
    drawn = lines(_hours(hours), dict(list(series.items())[:_LINES_MAX])) if rows else _nothing("no leases")
    names = [f"{measure}_{part}" for part in ("mean", "median", "p95", "max")]
    spelled = [{**row, **{name: None if row[name] is None else span_of(row[name]) for name in names}} for row in rows]
    table = _table(("namespace", "hour", "leases", *names), spelled)
    return f'{drawn}<p class="note">By the lease clock, which stands still while the cluster has no leader.</p>{table}'


def _holders(rows: Sequence[Row]) -> str:
    known = [row for row in rows if row["granted_at"] is not None]
    if not known:
        return _nothing("no leases")
    begin = min(row["granted_at"] for row in known)
    end = max(row["ended_at"] or row["granted_at"] for row in known)
    whole = (end - begin).total_seconds() or 1.0
    names = list(dict.fromkeys(f"{row['resource_type']}/{row['resource_id']}" for row in known))
    bands = []
    for row in known:
        until = row["ended_at"] or end
        held = f"{_words(row['outcome'])}, {span_of(row['held_ms'])}" if row["held_ms"] is not None else row["outcome"]
        who = f"{row['peer_id']}" + (f" as {row['principal']}" if row["principal"] else "")
        bands.append(
            Band(
                names.index(f"{row['resource_type']}/{row['resource_id']}"),
                max(0.0, (row["granted_at"] - begin).total_seconds() / whole),
                min(1.0, max(0.0, (until - begin).total_seconds() / whole)),
                _OUTCOMES[row["outcome"]],
                f"item {row['item']}, attempt {row['attempt']}, fence {row['fence']}: {who}, {held}",
            )
        )
    keys = "".join(
        f'<span><i style="background:{colour}"></i>{_words(name)}</span>' for name, colour in _OUTCOMES.items()
    )
    drawn = timeline(names, bands, (_when(begin), _when(end)))
    return (
        f'{drawn}<p class="legend">{keys}</p><p class="note">The resources that were leased most; point at a band.</p>'
    )


def _failures(rows: Sequence[Row]) -> str:
    if not rows:
        return _nothing("no lease failed or expired")
    named = [
        (
            f"{row['peer_id']}: {row['resource_type']}/{row['resource_id']} {row['error_code'] or row['outcome']}",
            row["leases"],
        )
        for row in rows[:12]
    ]
    names = (
        "namespace",
        "peer_id",
        "resource_type",
        "resource_id",
        "outcome",
        "error_code",
        "leases",
        "last_at",
        "last_message",
    )
    return bars(named, colours=COLOURS[3:4]) + _table(names, rows)


def _churn(rows: Sequence[Row]) -> str:
    hours = sorted({row["hour"] for row in rows})
    kinds = ("handovers", "joined", "connected", "disconnected", "removed")
    series = {kind: [0.0] * len(hours) for kind in kinds}
    for row in rows:
        for kind in kinds:
            series[kind][hours.index(row["hour"])] += row[kind]
    return (columns(_hours(hours), series) if rows else _nothing("no peers")) + _table(
        ("namespace", "hour", "peers", "leases", *kinds), rows
    )


def _paths(rows: Sequence[Row]) -> str:
    told = [
        {
            **row,
            "path": " → ".join(f"{step['peer_id']} ({_words(step['outcome'])})" for step in row["path"]),
            "resource": f"{row['resource_type']}/{row['resource_id']}",
        }
        for row in rows
    ]
    return _table(("namespace", "item", "resource", "state", "leases", "path"), told)


def _table(names: Sequence[str], rows: Iterable[Row], limit: int = 50) -> str:
    rows = list(rows)
    head = "".join(f"<th>{escape(_words(name.replace('_ms', '')))}</th>" for name in names)
    lines_ = ["".join(_cell(row[name]) for name in names) for row in rows[:limit]]
    more = (
        f'<p class="note">The first {limit} of {len(rows):,}; all are in the Parquet files.</p>'
        if len(rows) > limit
        else ""
    )
    body = "".join(f"<tr>{line}</tr>" for line in lines_)
    opened = " open" if len(rows) <= 12 else ""
    return f"<details{opened}><summary>Table</summary><table><tr>{head}</tr>{body}</table>{more}</details>"


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        text = _when(value) if isinstance(value, datetime) else "" if value is None else str(value)
        return f"<td>{escape(text)}</td>"
    return f'<td class="n">{value:,.0f}</td>'


def _words(name: str) -> str:
    return name.replace("_", " ")


def _nothing(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def _hours(hours: Sequence[datetime]) -> list[str]:
    return [hour.strftime("%d %b %H:%M") for hour in hours]


def _when(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S")


_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;background:#f6f7f9;
  max-width:960px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.5rem}h2{font-size:1.1rem;margin:0 0 .6rem}
section,.facts div{background:#fff;border:1px solid #dde2e8;border-radius:8px}
section{padding:1rem 1.2rem;margin:1rem 0;overflow-x:auto}
.facts{display:flex;flex-wrap:wrap;gap:.6rem}.facts div{padding:.5rem .9rem}
.facts b{display:block;font-size:1.15rem}.facts span,.note{color:#616e7c;font-size:.85rem}
.good{color:#25603f;font-weight:600}.bad{color:#a02c1f;font-weight:600}
svg{width:100%;height:auto}svg text{font-size:11px;fill:#52606d}.grid{stroke:#e4e7eb;stroke-width:1}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1rem;font-size:.82rem;margin:.4rem 0}
.legend i{display:inline-block;width:10px;height:10px;margin-right:5px}
table{border-collapse:collapse;font-size:.84rem;margin-top:.5rem}
th,td{text-align:left;padding:.2rem .7rem .2rem 0;border-bottom:1px solid #eef0f3}
td.n{text-align:right;font-variant-numeric:tabular-nums}
summary{cursor:pointer;color:#616e7c;font-size:.85rem;margin-top:.4rem}
@media print{section{break-inside:avoid}body{background:#fff}}
"""
