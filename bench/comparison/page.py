"""The page ``docs/benchmarks.md``: written by a run, from its figures alone."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.comparison.plots import bars, curves
from bench.comparison.shapes import SHAPES

__all__ = ["UNFAIR", "write_page"]

UNFAIR = (
    "All servers and all clients share the machine's cores. What a peer's server saves, its client gets, and the other "
    "way round; on machines of their own the figures would be others. All peers' nodes share one disk as well: an "
    "fsync of three nodes is three fsyncs there, where in real life they happen at once.",
    "All clients are Python ones. Where a server is fast, what is measured is mostly its client. A peer with a quick "
    "client in another language may do far more than is seen here.",
    "Our nodes are Python too, so how that was built decides more here than for the others: one compiled without "
    "profile-guided optimisation, as version managers do it, is slower than that of a distribution, which is "
    "what most run in production. Which one it was stands at the top.",
    "Our client joins the calls that tasks of one process make at the same time. It does so for every user, so it is "
    "measured so. Users of the other clients could write such a layer; what it would bring them is to be seen in the "
    "shapes with lists of 10 and 100.",
    "We know our system better than the others. Each adapter is one module under `bench/peers/`, written as its "
    "documentation recommends; if you know a better way, it will be measured.",
    "The tests with a backlog fill it once, and then run with it. Before the first, each peer has done the same work "
    "for some seconds, so that they differ in the backlog and not in how long a peer has been at work: what remembers "
    "recent calls, as ours does, is slower once it has some to remember. A backlog that could not be filled in the "
    "time allowed is measured at what was reached (marked with *). Before each of them some free memory is used and "
    "given back, so that no peer pays for the first use of a virtual machine's pages; and what the fill, or the peer "
    "before, left in the page cache is written out before a load begins.",
    "Failover is measured with each system's own timing of elections, as it ships. A longer timeout is a choice, and "
    "on a real network often a good one.",
    "`half` gives each peer half of what it does itself at 32x1, so that a faster peer is measured under more load; "
    "`even` gives all of them one rate, half of what the slowest of the replicated, fsyncing ones does.",
    "At a rate, a life is due at its moment, and what it waits for the client's loop or for a worker counts. "
    "The timers of asyncio are about a millisecond late, for all peers alike; at thousands of lives a second a few "
    "begin together.",
)


def write_page(told: Mapping[str, Any], page: Path, figures: Path) -> None:
    """The page, and its plots in a directory of the page's name."""
    plots = page.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    drawn = _plots(told, plots)
    sections = [
        _head(told, os.path.relpath(figures, page.parent)),
        _targets(told),
        *_shapes(told, {name: os.path.relpath(path, page.parent) for name, path in drawn.items()}),
        _peers(told),
        "## What a reader could call unfair\n" + "\n".join(f"- {one}" for one in (*UNFAIR, *_notes(told))),
        _failures(told),
    ]
    page.write_text("\n\n".join(section for section in sections if section) + "\n")


def _head(told: Mapping[str, Any], figures: str) -> str:
    machine, effort = told["machine"], told["effort"]
    kind = "a quick one" if effort["quick"] else "a full one"
    took = f"{effort['rounds']} round(s), {told['seconds'] / 60:.0f} minutes"
    place = f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']:g} GiB, {machine['system']}"
    return f"""# Benchmarks

Written by `python -m bench.compare` (a run of {told["started"]}, {kind}: {took}).
All its figures are in [{Path(figures).name}]({figures}).

Each peer is started fresh on loopback with its data on the same disk, does the same work through the client that its
users would take in Python, and is stopped before the next one starts. One *life* of an item: it is enqueued (256
bytes), leased to a named owner for 30 s, and completed; each step is confirmed before the next, and every item is
accounted for.

{place}, Python {machine["python"]}, clients on {effort["loop"]};
load at the start {machine["load_at_start"]:g}."""


def _targets(told: Mapping[str, Any]) -> str:
    if not told["targets"]:
        return ""
    rows = [[one["target"], one["wanted"], f"{one['got']:g}", "yes" if one["met"] else "no"] for one in told["targets"]]
    words = "Ratios of ours to the best peer that replicates and fsyncs before it answers, as ours does."
    return f"## What we want, and what it is\n{words}\n\n{_table(['', 'wanted', 'this run', 'met'], rows)}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _by_shape(told: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    order = list(told["peers"])
    found: dict[str, list[Mapping[str, Any]]] = {}
    for result in sorted(told["results"], key=lambda result: order.index(result["peer"])):
        found.setdefault(result["shape"], []).append(result)
    known = list(SHAPES)
    return dict(sorted(found.items(), key=lambda pair: known.index(pair[0].partition("-")[0])))


def _plots(told: Mapping[str, Any], directory: Path) -> dict[str, Path]:
    drawn = {}
    for shape, found in _by_shape(told).items():
        if shape in ("half", "even"):
            labels = ["p50", "p99", "p99.9"]
            lines = {one["peer"]: [one["p50_ms"], one["p99_ms"], one["p999_ms"]] for one in found}
            picture = curves(f"whole life, {SHAPES[shape]}", labels, lines, "ms")
        elif shape == "failover":
            picture = bars(
                "kill -9 of the leader to the next confirmed step, median and worst",
                [(one["peer"], one["p50_ms"], one["p50_ms"], one["max_ms"]) for one in found],
                " ms",
            )
        else:
            rows = [(one["peer"], one["lifecycles_per_s"], one["lowest"], one["highest"]) for one in found]
            picture = bars(f"lives a second: {_title(shape)}", rows)
        drawn[shape] = directory / f"{shape}.svg"
        drawn[shape].write_text(picture)
    return drawn


def _title(shape: str) -> str:
    kind, _, depth = shape.partition("-")
    if depth:
        return f"{SHAPES[kind].replace('a backlog', f'a backlog of {int(depth):,}')}"
    return SHAPES[shape]


def _shapes(told: Mapping[str, Any], drawn: Mapping[str, str]) -> list[str]:
    sections = []
    for shape, found in _by_shape(told).items():
        ratio = told["ratios"].get(shape) or told["ratios"].get(f"{shape} p99")
        said = ""
        if ratio:
            what = "p99 is" if shape in ("half", "even", "failover") else "rate is"
            said = (
                f"\n\nOur {what} {ratio['ratio']:g} times that of {ratio['best_peer']}, the best that replicates "
                f"and fsyncs (rounds: {ratio['lowest']:g} to {ratio['highest']:g})."
            )
        rows = _failover_rows(found) if shape == "failover" else _load_rows(found)
        sections.append(f"## {_title(shape)}\n![{shape}]({drawn[shape]})\n\n{rows}{said}")
    return sections


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"


def _load_rows(found: Sequence[Mapping[str, Any]]) -> str:
    head = [
        "peer",
        "lives/s",
        "rounds",
        "p50 ms",
        "p99 ms",
        "p99.9 ms",
        "enqueue p50/p99",
        "lease p50/p99",
        "complete p50/p99",
    ]
    sized = any("memory_bytes_per_item" in one for one in found)
    rows = []
    for one in found:
        star = "" if one.get("filled", True) else f"* ({one['waiting']:,} waiting)"
        steps = [
            f"{_ms(one['steps'][step]['p50_ms'])} / {_ms(one['steps'][step]['p99_ms'])}"
            for step in ("enqueue", "lease", "complete")
        ]
        times = [_ms(one["p50_ms"]), _ms(one["p99_ms"]), _ms(one["p999_ms"])]
        rows.append(
            [
                one["peer"],
                f"{one['lifecycles_per_s']:,.0f}{star}",
                f"{one['lowest']:,.0f} to {one['highest']:,.0f}",
                *times,
                *steps,
            ]
        )
        if sized:
            size = [f"{one[key]:,}" if key in one else "-" for key in ("memory_bytes_per_item", "disk_bytes_per_item")]
            rows[-1] += size
    return _table([*head, "memory B/item", "disk B/item"] if sized else head, rows)


def _failover_rows(found: Sequence[Mapping[str, Any]]) -> str:
    head = [
        "peer",
        "kills",
        "next step p50 ms",
        "p99 ms",
        "worst ms",
        "next whole life p50 ms",
        "p99 ms",
        "errors callers saw",
    ]
    rows = []
    for one in found:
        errors = ", ".join(f"{kind} {count}" for kind, count in one["errors"].items()) or "none"
        times = [_ms(one[key]) for key in ("p50_ms", "p99_ms", "max_ms", "whole_p50_ms", "whole_p99_ms")]
        rows.append([one["peer"], str(one["kills"]), *times, errors])
    return _table(head, rows)


def _peers(told: Mapping[str, Any]) -> str:
    rows = []
    for name, peer in told["peers"].items():
        promise = [
            "several nodes" if peer["replicated"] else "one node",
            "on disk" if peer["fsyncs"] else "not all on disk",
        ]
        versions = ", ".join(f"{key} {value}" for key, value in peer["versions"].items())
        settings = ", ".join(f"{key} {value}" for key, value in peer["settings"].items())
        rows.append([name, peer["title"], ", ".join(promise), versions, settings])
    skipped = [f"\n{name} was skipped: {reason}." for name, reason in told["skipped"].items()]
    return "## Who took part\n" + _table(["", "", "an answer means", "versions", "settings"], rows) + "".join(skipped)


def _notes(told: Mapping[str, Any]) -> list[str]:
    return [f"{peer['title']}: {note}" for peer in told["peers"].values() for note in peer["notes"]]


def _failures(told: Mapping[str, Any]) -> str:
    if not told["failures"]:
        return ""
    lines = [f"- {one['peer']}, {one['shape']}, round {one['round'] + 1}: {one['error']}" for one in told["failures"]]
    return "## What failed\n" + "\n".join(lines)
