"""The command line of the drills."""

import argparse
import asyncio
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from chaos.drills.campaign import campaign
from chaos.drills.catalog import DRILLS
from chaos.drills.catalog.upgrades import NAME as UPGRADE
from chaos.drills.catalog.upgrades import rolling_upgrade_from
from chaos.drills.cluster import Cluster
from chaos.drills.ledger import Ledger, Terms
from chaos.drills.outcome import Outcome
from chaos.drills.planted import PLANTS
from chaos.drills.releases import why_no_release
from chaos.drills.report import write_report
from chaos.drills.run import run_drill
from chaos.drills.scene import Drill
from chaos.drills.settings import SETTINGS, why_skipped

__all__ = ["heed_signals", "main"]

SECONDS = 14.0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chaos.drills", description="Real nodes, broken on purpose while clients are at work."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="drills; all, if none is named")
    parser.add_argument("--nodes", type=_at_least(3), default=3, metavar="N", help="how many nodes (3)")
    parser.add_argument(
        "--seconds", type=_seconds, default=SECONDS, metavar="S", help=f"length of a drill ({SECONDS:g})"
    )
    parser.add_argument("--setting", choices=list(SETTINGS), default="loopback", help="how faults are made")
    parser.add_argument("--seed", type=int, default=0, metavar="K", help="draws what is left to chance; 0: the clock")
    parser.add_argument("--repeat", type=_at_least(1), default=1, metavar="N", help="until N in a row have passed")
    parser.add_argument("--ledger", type=Path, metavar="FILE", help="a book of all runs, to stop and go on later")
    parser.add_argument("--stop", action="store_true", help="end at the first failure")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep everything there, not only what fails")
    parser.add_argument("--quick", action="store_true", help="the quickest drills only")
    parser.add_argument("--plant", choices=sorted(PLANTS), metavar="NAME", help="a defect in all nodes; it should fail")
    parser.add_argument("--from", dest="release", metavar="REF", help="what is upgraded: a git ref or a wheel (v*)")
    parser.add_argument("--list", action="store_true", help="list the drills")
    return parser


def _at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{value} is less than {least}")
        return value

    return number


def _seconds(text: str) -> float:
    if not 1.0 <= (value := float(text)) <= 86_400.0:
        raise argparse.ArgumentTypeError(f"{value:g} is not between 1 and 86400")
    return value


def heed_signals() -> None:
    """Asked to stop, as interrupted: nodes, namespaces and mounts are taken down either way.

    By way of SIGINT, which asyncio turns into the end of its main task. An exception that is raised wherever the
    program just is may be raised in a callback of gRPC, which drops it, and with it the order to stop.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda _number, _frame: signal.raise_signal(signal.SIGINT))


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
    if reason := SETTINGS[arguments.setting]().why_not():
        print(f"--setting {arguments.setting} cannot be used here: {reason}", file=sys.stderr)
        return 2
    if arguments.release and (reason := why_no_release(arguments.release)):
        print(f"--from: {reason}", file=sys.stderr)
        return 2
    seed = arguments.seed or int(time.time()) % 1_000_000
    home = arguments.keep or Path(tempfile.mkdtemp(prefix="resourcelease-drills-"))
    home.mkdir(parents=True, exist_ok=True)
    if arguments.repeat > 1 or arguments.ledger is not None:
        return _repeated(arguments, home, seed)
    outcomes: list[Outcome] = []
    try:
        for drill in _chosen(arguments):
            outcomes.append(_one(drill, arguments, home, seed))
            if arguments.stop and outcomes[-1].problems:
                break
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 1
    finally:
        if outcomes:
            page = home / "index.html"
            write_report(page, outcomes, arguments.setting)
            _table(outcomes, page)
    return 0 if all(outcome.passed or outcome.skipped for outcome in outcomes) else 1


def _repeated(arguments: argparse.Namespace, home: Path, seed: int) -> int:
    try:
        ledger = Ledger(arguments.ledger)
    except (OSError, ValueError) as error:
        print(f"the ledger cannot be read: {error}", file=sys.stderr)
        return 2
    drills = {_terms(drill, arguments): drill for drill in _chosen(arguments)}

    def play(terms: Terms, seed: int) -> Outcome:
        return _one(drills[terms], arguments, home, seed)

    return campaign(list(drills), play, ledger, times=arguments.repeat, seed=seed, stop=arguments.stop)


def _terms(drill: Drill, arguments: argparse.Namespace) -> Terms:
    nodes = max(arguments.nodes, drill.nodes_min)
    return Terms(drill.name, arguments.setting, nodes, arguments.seconds, arguments.plant or "")


def _chosen(arguments: argparse.Namespace) -> list[Drill]:
    if arguments.names:
        return [_as_asked(DRILLS[name], arguments) for name in arguments.names]
    return [_as_asked(drill, arguments) for drill in DRILLS.values() if drill.quick or not arguments.quick]


def _as_asked(drill: Drill, arguments: argparse.Namespace) -> Drill:
    return rolling_upgrade_from(arguments.release) if arguments.release and drill.name == UPGRADE else drill


def _one(drill: Drill, arguments: argparse.Namespace, home: Path, seed: int) -> Outcome:
    nodes = max(arguments.nodes, drill.nodes_min)
    directory = home / f"{drill.name}-{time.strftime('%H%M%S')}-{seed}"
    directory.mkdir(parents=True)
    live = _Line(drill.name)
    setting = SETTINGS[arguments.setting]()
    words = [f"python -m chaos.drills {drill.name}", f"--nodes {nodes} --seconds {arguments.seconds:g} --seed {seed}"]
    if arguments.plant:
        words.append(f"--plant {arguments.plant}")
    if arguments.release:
        words.append(f"--from {arguments.release}")
    if arguments.setting != "loopback":
        words.append(f"--setting {arguments.setting}")

    async def whole() -> Outcome:
        if reason := why_skipped(setting, drill, arguments.plant or ""):
            return Outcome(drill.name, drill.holds, seed, nodes, skipped=reason)
        try:
            cluster: Cluster = await setting.found(directory, nodes, drill)
        except (OSError, subprocess.CalledProcessError) as error:
            return Outcome(drill.name, drill.holds, seed, nodes, problems=[f"there was no cluster to break: {error}"])
        return await run_drill(
            drill, cluster, directory, seconds=arguments.seconds, seed=seed, tell=live.tell, plant=arguments.plant or ""
        )

    try:
        outcome = asyncio.run(whole())
    except BaseException:
        setting.clear(keep=False)
        raise
    left = setting.clear(keep=bool(outcome.problems))
    outcome.again = " ".join(words)
    live.end(outcome)
    if outcome.problems or arguments.keep is not None:
        write_report(directory / "index.html", [outcome], arguments.setting)
    if outcome.problems:
        (directory / "problems.txt").write_text("\n".join([outcome.again, *outcome.problems, *outcome.notes]) + "\n")
        (directory / "events.txt").write_text("".join(f"{event!s}---\n" for event in outcome.told.events))
        busy = f"without a processor: {outcome.waited_s:.1f} s of {outcome.took_s:.1f} s"
        for line in (busy, f"kept: {directory}", *left, f"again: {outcome.again}"):
            print(f"    {line}", flush=True)
    elif left:
        print("\n".join(f"    {line}" for line in left), flush=True)
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
