"""A book of how drills went, a line of JSON for each run: a long campaign can be stopped, and goes on where it was."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import resourcelease
from chaos.drills.outcome import Outcome

__all__ = ["Ledger", "Run", "Terms", "code_digest", "in_a_row", "summary"]

_FAILED, _OK = "FAILED", "ok"
# A line is a run; of its problems the first few are enough to find it again.
_MOST_PROBLEMS, _PROBLEM_CHARS = 3, 300


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run was played under; runs under other terms say nothing about these."""

    drill: str
    setting: str
    nodes: int
    seconds: float
    plant: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one drill, as a line of the book."""

    drill: str
    setting: str
    nodes: int
    seconds: float
    plant: str
    seed: int
    verdict: str
    # The slowest recovery from a fault, and how long it might take; None: it never came, or was not asked for.
    recovery_s: float | None
    limit_s: float | None
    faults: int
    calls: int
    took_s: float
    # Of that, how long the drill was ready to go on and had no processor.
    waited_s: float
    # Which state of the code was tried.
    code: str
    problems: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether all promises held."""
        return self.verdict == _OK

    @property
    def terms(self) -> Terms:
        """What it was played under."""
        return Terms(self.drill, self.setting, self.nodes, self.seconds, self.plant)

    @classmethod
    def of(cls, terms: Terms, outcome: Outcome) -> "Run":
        """The line that a drill which was played deserves."""
        slowest = outcome.slowest
        back = slowest is not None and math.isfinite(slowest.took)
        return cls(
            **asdict(terms),
            seed=outcome.seed,
            verdict=outcome.word,
            recovery_s=round(slowest.took, 2) if slowest and back else None,
            limit_s=slowest.limit if slowest else None,
            faults=len(outcome.faults),
            calls=len(outcome.calls),
            took_s=round(outcome.took_s, 1),
            waited_s=round(outcome.waited_s, 1),
            code=code_digest(),
            problems=tuple(problem[:_PROBLEM_CHARS] for problem in outcome.problems[:_MOST_PROBLEMS]),
        )


class Ledger:
    """All runs of a campaign, those of a file that is there first. Each is on the disk before the next begins."""

    def __init__(self, path: Path | None = None) -> None:
        self.runs: list[Run] = []
        self._path = path
        if path is not None:
            self._read(path)

    def add(self, run: Run) -> None:
        """Writes a run down."""
        self.runs.append(run)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(run)) + "\n")

    def under(self, terms: Terms) -> list[Run]:
        """The runs under these terms, oldest first."""
        return [run for run in self.runs if run.terms == terms]

    def _read(self, path: Path) -> None:
        """Raises ``ValueError`` with file and line where something else than a run stands.

        A last line without an end was being written when the program was killed: that run counts as not played.
        """
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole, _, torn = text.rpartition("\n")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self.runs.append(_run(json.loads(line)))
            except (ValueError, TypeError) as error:
                raise ValueError(f"{path}, line {number} is not a run of a drill: {error}") from error
        if torn:
            path.write_text(whole + "\n" if whole else "", encoding="utf-8")


def _run(values: Any) -> Run:
    kinds: Mapping[str, tuple[type, ...]] = {
        **dict.fromkeys(("drill", "setting", "plant", "verdict", "code"), (str,)),
        **dict.fromkeys(("nodes", "seed", "faults", "calls"), (int,)),
        **dict.fromkeys(("seconds", "took_s", "waited_s"), (int, float)),
        **dict.fromkeys(("recovery_s", "limit_s"), (int, float, type(None))),
        "problems": (list,),
    }
    if not isinstance(values, dict) or set(values) != {field.name for field in fields(Run)}:
        raise ValueError("it has not the fields of one")
    for name, kind in kinds.items():
        if not isinstance(values[name], kind) or isinstance(values[name], bool):
            raise ValueError(f"{name} is {values[name]!r}")
    if values["verdict"] not in (_OK, _FAILED):
        raise ValueError(f"verdict is {values['verdict']!r}")
    return Run(**{**values, "problems": tuple(map(str, values["problems"]))})


def in_a_row(runs: Iterable[Run]) -> int:
    """How many passed since the last failure.

    >>> in_a_row([])
    0
    """
    count = 0
    for run in runs:
        count = count + 1 if run.passed else 0
    return count


def summary(ledger: Ledger, terms: Iterable[Terms]) -> list[str]:
    """The table of a campaign: how often each drill passed, how often in a row, and the slowest recovery of all."""
    lines = [f"{'drill':<18} {'passes':>6} {'failures':>8} {'in a row':>8} {'slowest recovery':>17}"]
    played: list[Run] = []
    for each in terms:
        runs = ledger.under(each)
        played += runs
        passes = sum(run.passed for run in runs)
        lines.append(f"{each.drill:<18} {passes:>6} {len(runs) - passes:>8} {in_a_row(runs):>8} {_slowest(runs):>17}")
    failed = sum(not run.passed for run in played)
    lines.append(
        f"\n{len(played)} runs, {failed} failed, on {len({run.code for run in played})} state(s) of the code; "
        f"{sum(run.faults for run in played):,} faults, {sum(run.calls for run in played):,} calls, "
        f"{sum(run.took_s for run in played) / 60:.0f} minutes, "
        f"{sum(run.waited_s for run in played) / 60:.0f} of them without a processor"
    )
    return lines


def _slowest(runs: list[Run]) -> str:
    told = [(run.recovery_s, run.limit_s) for run in runs if run.recovery_s is not None]
    if not told:
        return "-"
    took, limit = max(told, key=lambda pair: pair[0] or 0.0)
    return f"{took:.1f} / {limit:g} s"


def code_digest() -> str:
    """Tells states of the code apart: the sources of nodes and of drills."""
    digest = hashlib.sha256()
    for root in (Path(resourcelease.__file__).parent, Path(__file__).parents[1]):
        for path in sorted([*root.rglob("*.py"), *root.rglob("*.c")]):
            digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]
