"""The figures of a run: one object a peer and shape, ratios, and the table that people see."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.comparison.schedule import OURS, rivals
from bench.comparison.shapes import SHAPES
from bench.comparison.statistics import percentile, rates, ratio, summary_ms
from bench.peers import PEERS

__all__ = ["TARGETS", "machine", "peers_used", "ratios", "results", "table", "targets"]

Runs = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]

# What we want: the ratio's name, at least or at most, how much.
TARGETS: tuple[tuple[str, str, float], ...] = (
    ("1x1", "at least", 1.0),
    ("32x1", "at least", 3.0),
    ("32x10", "at least", 1.5),
    ("32x100", "at least", 1.5),
    ("4p", "at least", 1.5),
    ("half p99", "at most", 1.0),
    ("depth held", "at least", 0.95),
    ("failover p99 s", "at most", 1.0),
)


def machine() -> dict[str, Any]:
    """Where it was run."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    model = [line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    return {
        "cpu": model[0] if model else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        # With its build: a Python is as quick as it was compiled.
        "python": " ".join(sys.version.split()),
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else []


def peers_used(names: Sequence[str]) -> dict[str, Any]:
    """Who took part, in which version, set how."""
    return {
        name: {
            "title": PEERS[name].title,
            "replicated": PEERS[name].replicated,
            "fsyncs": PEERS[name].fsyncs,
            "versions": PEERS[name].versions(),
            "settings": PEERS[name].settings(),
            "notes": list(PEERS[name].notes),
        }
        for name in names
    }


def results(runs: Runs) -> list[dict[str, Any]]:
    """One object a peer and shape; a backlog's levels are shapes of their own, ``depth-1000``."""
    found = []
    for (name, shape), rounds in runs.items():
        if shape == "depth":
            found += _levels(name, rounds)
        elif shape == "failover":
            found.append(_failover(name, rounds))
        else:
            found.append({"peer": name, "shape": shape, **_loads(rounds)})
    return found


def _loads(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    times = {
        step: summary_ms([took for run in rounds for took in run["times_us"][step]]) for step in rounds[0]["times_us"]
    }
    p99s = [summary_ms(run["times_us"]["whole"])["p99_ms"] for run in rounds]
    asked = {"asked_rate": round(rounds[-1]["asked_rate"], 1)} if "asked_rate" in rounds[-1] else {}
    return {
        **rates([run["rate"] for run in rounds]),
        **times.pop("whole"),
        "p99_ms_rounds": p99s,
        "steps": times,
        **asked,
    }


def _levels(name: str, rounds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for at, level in enumerate(rounds[0]["levels"]):
        same = [run["levels"][at] for run in rounds]
        full = level["filled"] >= level["depth"]
        size = rounds[0]["size"] if at == len(rounds[0]["levels"]) - 1 else {}
        fill = {"waiting": level["filled"], "filled": full, "fill_s": level["fill_s"]}
        found.append({"peer": name, "shape": f"depth-{level['depth']}", **_loads(same), **fill, **size})
    return found


def _failover(name: str, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    steps = [took * 1e6 for run in rounds for took in run["step_s"]]
    lives = [took * 1e6 for run in rounds for took in run["life_s"]]
    return {
        "peer": name,
        "shape": "failover",
        "lifecycles_per_s": None,
        "kills": len(steps),
        "p50_ms": summary_ms(steps)["p50_ms"],
        "p99_ms": summary_ms(steps)["p99_ms"],
        "max_ms": round(max(steps) / 1000, 1),
        "whole_p50_ms": summary_ms(lives)["p50_ms"],
        "whole_p99_ms": summary_ms(lives)["p99_ms"],
        "errors": rounds[-1]["errors"],
        "left": rounds[-1]["left"],
    }


def ratios(runs: Runs, found: Sequence[Mapping[str, Any]], peers: Sequence[str]) -> dict[str, Any]:
    """Ours to the best rival, by shape; where there is no rival in the run, nothing is said."""
    by = {(result["peer"], result["shape"]): result for result in found}
    shapes = list(dict.fromkeys(result["shape"] for result in found))
    others = rivals(peers)
    told: dict[str, Any] = {}
    for shape in shapes:
        steady, mine = shape in ("half", "even", "failover"), by.get((OURS, shape))
        key = "p99_ms_rounds" if shape in ("half", "even") else "rounds"
        if mine is None:
            continue
        rounds = {name: _rounds(by[name, shape], key) for name in others if (name, shape) in by}
        found_ratio = ratio(_rounds(mine, key), rounds, less_is_better=steady)
        if found_ratio is not None:
            told[f"{shape} p99" if steady else shape] = found_ratio
    held = {name: _held(by, name) for name in peers}
    told["depth held"] = {name: value for name, value in held.items() if value is not None}
    told["depth held rounds"] = {name: _held_rounds(runs[name, "depth"]) for name in told["depth held"]}
    return told


def _rounds(result: Mapping[str, Any], key: str) -> list[float]:
    if result["shape"] == "failover":
        return [result["p99_ms"]]
    return [value for value in result[key] if value is not None]


def _held(by: Mapping[tuple[str, str], Mapping[str, Any]], name: str) -> float | None:
    """How much of the rate at the smallest backlog is left at the largest that was reached."""
    levels = [result for (peer, shape), result in by.items() if peer == name and shape.startswith("depth-")]
    if len(levels) < 2 or not levels[0]["lifecycles_per_s"] or not levels[-1]["filled"]:
        return None
    return round(float(levels[-1]["lifecycles_per_s"] / levels[0]["lifecycles_per_s"]), 3)


def _held_rounds(rounds: Sequence[Mapping[str, Any]]) -> list[float]:
    """The same in each round."""
    levels = [run["levels"] for run in rounds if run["levels"][0]["rate"]]
    return [round(level[-1]["rate"] / level[0]["rate"], 3) for level in levels]


def targets(found: Sequence[Mapping[str, Any]], told: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each target that the run can say something of."""
    failover = next(
        (result["p99_ms"] for result in found if (result["peer"], result["shape"]) == (OURS, "failover")), None
    )
    judged = []
    for name, sense, wanted in TARGETS:
        if name == "failover p99 s":
            got = None if failover is None else round(failover / 1000, 3)
        else:
            got = told.get(name, {}).get(OURS if name == "depth held" else "ratio")
        if got is not None:
            met = got >= wanted if sense == "at least" else got <= wanted
            judged.append({"target": name, "wanted": f"{sense} {wanted:g}", "got": got, "met": met})
    return judged


def table(report: Mapping[str, Any]) -> str:
    """The figures for a terminal: a row a peer, a column a shape."""
    names = list(report["peers"])
    shapes = list(dict.fromkeys(result["shape"] for result in report["results"]))
    by = {(result["peer"], result["shape"]): result for result in report["results"]}
    order = [shape for known in SHAPES for shape in shapes if shape.partition("-")[0] == known]
    rows = [["", *order]]
    rows += [[name, *(_cell(by.get((name, shape))) for shape in order)] for name in names]
    told = report["ratios"]
    rows.append(["ratio", *(_ratio_cell(told.get(shape) or told.get(f"{shape} p99")) for shape in order)])
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _cell(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return "-"
    if result["shape"] in ("half", "even", "failover"):
        return f"{percentile([result['p99_ms']], 0):,.0f} ms" if result["p99_ms"] is not None else "-"
    return f"{result['lifecycles_per_s']:,.0f}" + ("" if result.get("filled", True) else "*")


def _ratio_cell(told: Mapping[str, Any] | None) -> str:
    return f"{told['ratio']:.2f}" if told else "-"
