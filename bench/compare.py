"""Ours beside what people would pick: ``python -m bench.compare [--peers a,b] [--shapes a,b] [--quick] --json FILE``.

Each peer is started fresh on loopback, with its data on the same disk, does the same work through the client that its
users would use in Python, and is stopped before the next one starts. A life of an item is: enqueued, leased to a named
owner for 30 s, completed; 256 bytes; each step is confirmed. Every item is accounted for, or the run says so.

Peers that are not installed are skipped by name; ``python -m bench.install_peers`` gets them.
"""

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.comparison import report
from bench.comparison.page import write_page
from bench.comparison.runs import Bench
from bench.comparison.schedule import Schedule
from bench.comparison.shapes import FULL, QUICK, SHAPES, Effort
from bench.peers import PEERS

__all__ = ["main", "parse"]


def _names(known: Sequence[str], what: str) -> Any:
    def read(text: str) -> list[str]:
        named = [part.strip() for part in text.split(",") if part.strip()]
        for name in named:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is no {what}; there are {', '.join(known)}")
        if not named:
            raise argparse.ArgumentTypeError(f"no {what} named; there are {', '.join(known)}")
        return [name for name in known if name in named]

    return read


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=_names(list(PEERS), "peer"), default=list(PEERS), help="comma-separated")
    parser.add_argument("--shapes", type=_names(list(SHAPES), "shape"), default=list(SHAPES), help="comma-separated")
    parser.add_argument("--quick", action="store_true", help="one short round, in under 10 minutes")
    parser.add_argument("--rounds", type=int, help="instead of 3, or of 1 when quick")
    parser.add_argument("--seconds", type=float, help="instead of what a load lasts")
    parser.add_argument("--depths", help="backlogs, comma-separated; 10000000 takes its time")
    parser.add_argument("--fill-seconds", type=float, help="the most that filling a backlog may take")
    parser.add_argument("--failovers", type=int, help="how often the leader is killed")
    parser.add_argument("--uvloop", action="store_true", help="all clients on uvloop instead of asyncio's own loop")
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()), help="where all data directories go")
    parser.add_argument("--json", type=Path, required=True, help="where the figures go")
    parser.add_argument("--page", type=Path, help="where the page goes, with its plots in a directory of its name")
    return parser.parse_args(arguments)


def effort_of(arguments: argparse.Namespace) -> Effort:
    """How much is run."""
    effort = QUICK if arguments.quick else FULL
    changes: dict[str, Any] = {}
    if arguments.rounds:
        changes |= {"rounds": arguments.rounds, "depth_rounds": arguments.rounds}
    if arguments.seconds:
        changes |= {"seconds": arguments.seconds, "steady_seconds": arguments.seconds}
    if arguments.depths:
        changes["depths"] = tuple(sorted(int(part) for part in arguments.depths.split(",")))
    if arguments.fill_seconds:
        changes["fill_seconds"] = arguments.fill_seconds
    if arguments.failovers:
        changes["failovers"] = arguments.failovers
    return dataclasses.replace(effort, **changes)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Runs everything and makes the report."""
    skipped = {name: reason for name in arguments.peers if (reason := PEERS[name].missing())}
    for name, reason in skipped.items():
        print(f"{name} is skipped: {reason}", file=sys.stderr)
    peers = [name for name in arguments.peers if name not in skipped]
    effort = effort_of(arguments)
    about = {"machine": report.machine(), "started": datetime.now(UTC).isoformat(timespec="seconds")}
    begun = time.monotonic()
    bench = Bench(arguments.dir, effort, uvloop=arguments.uvloop)
    schedule = Schedule(bench, peers, arguments.shapes, effort)
    interrupted = False
    try:
        schedule.run()
    except KeyboardInterrupt:
        interrupted = True
        print("interrupted; what there is is written", file=sys.stderr)
    finally:
        bench.close()
    found = report.results(schedule.runs)
    told = report.ratios(schedule.runs, found, peers)
    return {
        **about,
        "seconds": round(time.monotonic() - begun, 1),
        "interrupted": interrupted,
        "effort": {"quick": arguments.quick, "loop": "uvloop" if arguments.uvloop else "asyncio"} | vars(effort),
        "peers": report.peers_used(peers),
        "skipped": skipped,
        "results": found,
        "ratios": told,
        "targets": report.targets(found, told),
        "failures": schedule.failures,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if every run of every peer went well."""
    parsed = parse(arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    told = compare(parsed)
    parsed.json.parent.mkdir(parents=True, exist_ok=True)
    parsed.json.write_text(json.dumps(told, indent=1) + "\n")
    print(report.table(told))
    for target in told["targets"]:
        print(f"{'met' if target['met'] else 'NOT MET':8} {target['target']}: {target['got']} ({target['wanted']})")
    if parsed.page:
        write_page(told, parsed.page, parsed.json)
    return 1 if told["failures"] or told["interrupted"] else 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
