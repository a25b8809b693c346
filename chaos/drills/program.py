"""The command line of the drills."""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from chaos.drills.catalog import DRILLS
from chaos.drills.cluster import Cluster
from chaos.drills.loopback import Loopback
from chaos.drills.namespaces import Namespaces
from chaos.drills.outcome import Outcome
from chaos.drills.planted import PLANTS
from chaos.drills.report import write_report
from chaos.drills.run import run_drill
from chaos.drills.scene import Drill

__all__ = ["main"]

SECONDS = 14.0
SETTINGS: dict[str, type[Loopback] | type[Namespaces]] = {"loopback": Loopback, "namespaces": Namespaces}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.drills", description="Real nodes, broken on purpose while clients are at work."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="drills; all, if none is named")
    parser.add_argument("--nodes", type=int, default=3, metavar="N", help="how many nodes (3)")
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=f"length of a drill ({SECONDS:g})")
    parser.add_argument("--setting", choices=list(SETTINGS), default="loopback", help="how faults are made")
    parser.add_argument("--seed", type=int, default=0, metavar="K", help="draws what is left to chance; 0: the clock")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep everything there, not only what fails")
    parser.add_argument("--quick", action="store_true", help="the quickest drills only")
    parser.add_argument("--plant", choices=sorted(PLANTS), metavar="NAME", help="a defect in all nodes; it should fail")
    parser.add_argument("--list", action="store_true", help="list the drills")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs drills; 0 if all promises held, 1 if not."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        for drill in DRILLS.values():
            print(f"{drill.name:<20} {drill.holds} (service back within {drill.recover_s:g} s)")
        return 0
    unknown = [name for name in arguments.names if name not in DRILLS]
    if unknown:
        print(f"there is no drill {unknown[0]!r}; --list shows them", file=sys.stderr)
        return 2
    seed = arguments.seed or int(time.time()) % 1_000_000
    home = arguments.keep or Path(tempfile.mkdtemp(prefix="resourcelease-drills-"))
    home.mkdir(parents=True, exist_ok=True)
    outcomes = []
    try:
        for drill in _chosen(arguments):
            outcomes.append(_one(drill, arguments, home, seed))  # noqa: PERF401 those before an interrupt count
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    finally:
        if outcomes:
            page = home / "index.html"
            write_report(page, outcomes, arguments.setting)
            _table(outcomes, page)
    return 0 if all(outcome.passed or outcome.skipped for outcome in outcomes) else 1


def _chosen(arguments: argparse.Namespace) -> list[Drill]:
    if arguments.names:
        return [DRILLS[name] for name in arguments.names]
    return [drill for drill in DRILLS.values() if drill.quick or not arguments.quick]


def _one(drill: Drill, arguments: argparse.Namespace, home: Path, seed: int) -> Outcome:
    nodes = max(arguments.nodes, drill.nodes_min)
    directory = home / f"{drill.name}-{time.strftime('%H%M%S')}-{seed}"
    directory.mkdir(parents=True)
    live = _Line(drill.name)
    setting = SETTINGS[arguments.setting]()
    words = [f"python -m chaos.drills {drill.name}", f"--nodes {nodes} --seconds {arguments.seconds:g} --seed {seed}"]
    if arguments.plant:
        words.append(f"--plant {arguments.plant}")
    if arguments.setting != "loopback":
        words.append(f"--setting {arguments.setting}")

    async def whole() -> Outcome:
        reason = setting.why_not() or drill.why_skipped()
        if drill.delays and not setting.delays:
            reason = "delays need the proxy: --setting loopback"
        if drill.names and not setting.names:
            reason = "names that go away need --setting namespaces"
        if reason:
            return Outcome(drill.name, drill.holds, seed, nodes, skipped=reason)
        cluster: Cluster = await setting.found(directory, nodes, drill)
        return await run_drill(
            drill, cluster, directory, seconds=arguments.seconds, seed=seed, tell=live.tell, plant=arguments.plant or ""
        )

    outcome = asyncio.run(whole())
    outcome.again = " ".join(words)
    live.end(outcome)
    if outcome.problems:
        (directory / "problems.txt").write_text("\n".join([outcome.again, *outcome.problems, *outcome.notes]) + "\n")
        (directory / "events.txt").write_text("".join(f"{event!s}---\n" for event in outcome.told.events))
        print(f"    kept: {directory}\n    again: {outcome.again}", flush=True)
    elif arguments.keep is None:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome


class _Line:
    """The one line of a drill: what happens now, on a terminal; in the end how it went."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began = time.monotonic()
        self._on_terminal = sys.stdout.isatty()

    def tell(self, words: str) -> None:
        """Shows what happens."""
        if self._on_terminal:
            took = time.monotonic() - self._began
            print(f"\r\x1b[K{self._name:<18} {took:5.1f} s  {words[:80]}", end="", flush=True)

    def end(self, outcome: Outcome) -> None:
        """Shows how it went."""
        slowest = outcome.slowest
        back = f"back in {slowest.took:.1f} of {slowest.limit:g} s" if slowest else ""
        line = f"{self._name:<18} {outcome.word:<7} {outcome.took_s:5.1f} s  {len(outcome.calls):6,} calls  {back}"
        print(("\r\x1b[K" if self._on_terminal else "") + line + (f"  {outcome.skipped}" if outcome.skipped else ""))
        for problem in outcome.problems:
            print(f"    {problem[:1000]}")
        sys.stdout.flush()


def _table(outcomes: list[Outcome], page: Path) -> None:
    heads = f"{'drill':<18} {'verdict':<8} {'faults':>6} {'calls':>7} {'answered':>8} {'unknown':>7}"
    print(f"\n{heads} {'slowest recovery':>17}")
    for outcome in outcomes:
        slowest = outcome.slowest
        back = f"{slowest.took:.1f} / {slowest.limit:g} s" if slowest else "-"
        unknown = sum(call.unknown for call in outcome.calls)
        print(
            f"{outcome.name:<18} {outcome.word:<8} {len(outcome.faults):>6} {len(outcome.calls):>7,} "
            f"{outcome.acknowledged:>8,} {unknown:>7,} {back:>17}"
        )
    failed = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"\n{len(outcomes)} drills, {failed} failed; the story of each: {page}")
