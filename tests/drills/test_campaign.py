"""A campaign goes on until each drill has passed so often in a row, over stops and failures, and says how it went."""

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.drills.campaign import campaign
from chaos.drills.ledger import Ledger, Run, Terms
from chaos.drills.outcome import Outcome
from chaos.drills.program import main
from chaos.drills.scene import Fault, Recovery

KILL = Terms("kill-leader", "loopback", 3, 4.0)
CUT = Terms("power-cut", "loopback", 3, 4.0)


class Stage:
    """Plays drills as it was told to: by drill, the numbers of the runs that fail, or why it cannot be played."""

    def __init__(self, fails: dict[str, set[int]] | None = None, skipped: str = "") -> None:
        self.fails = fails or {}
        self.skipped = skipped
        self.played: list[tuple[str, int]] = []
        # Whether failures are the drill's own.
        self.stumbles = False
        # Ends as if interrupted after so many runs.
        self.most = 1000

    def __call__(self, terms: Terms, seed: int) -> Outcome:
        if len(self.played) == self.most:
            raise KeyboardInterrupt
        self.played.append((terms.drill, seed))
        outcome = Outcome(terms.drill, "", seed, terms.nodes)
        outcome.skipped = self.skipped if terms == CUT else ""
        if sum(name == terms.drill for name, _ in self.played) in self.fails.get(terms.drill, set()):
            outcome.problems.append("it was lost")
        outcome.stumbled = self.stumbles and bool(outcome.problems)
        outcome.faults.append(Fault("kill", 1.0))
        outcome.recoveries += [Recovery("the start", 9.0, 15.0), Recovery("it", 0.5 + seed / 100, 6.0)]
        return outcome


def run(stage: Stage, ledger: Ledger, times: int = 3, *, stop: bool = False) -> tuple[int, str]:
    told: list[str] = []
    code = campaign([KILL, CUT], stage, ledger, times=times, seed=10, stop=stop, tell=told.append)
    return code, "\n".join(told)


def row(told: str, drill: str) -> list[str]:
    return next(line.split() for line in told.splitlines() if line.startswith(drill))


def test_every_drill_is_played_so_often_in_rounds_with_seeds_of_their_own() -> None:
    stage = Stage()
    code, told = run(stage, Ledger())
    assert code == 0
    assert stage.played == [(name, seed) for seed in (10, 11, 12) for name in ("kill-leader", "power-cut")]
    assert row(told, "kill-leader") == ["kill-leader", "3", "0", "3", "0.6", "/", "6", "s"]
    assert "6 runs, 0 failed" in told


def test_a_failure_counts_and_ends_the_row() -> None:
    code, told = run(Stage({"kill-leader": {2}}), Ledger())
    assert code == 1
    assert row(told, "kill-leader")[1:4] == ["2", "1", "1"]
    assert row(told, "power-cut")[1:4] == ["3", "0", "3"]


def test_the_first_failure_can_end_it() -> None:
    stage = Stage({"kill-leader": {2}})
    code, _ = run(stage, Ledger(), stop=True)
    assert code == 1
    assert len(stage.played) == 3


def test_a_drill_that_goes_wrong_itself_ends_it() -> None:
    stage, ledger = Stage({"power-cut": {1}}), Ledger()
    stage.stumbles = True
    code, told = run(stage, ledger)
    assert code == 1
    assert [(run.drill, run.passed) for run in ledger.runs] == [("kill-leader", True), ("power-cut", False)]
    assert "no use in going on" in told


def test_a_drill_that_cannot_be_played_here_is_neither_a_pass_nor_a_failure() -> None:
    stage, ledger = Stage(skipped="no root"), Ledger()
    code, told = run(stage, ledger)
    assert code == 0
    assert [name for name, _ in stage.played].count("power-cut") == 1
    assert {run.drill for run in ledger.runs} == {"kill-leader"}
    assert "power-cut" not in told


def test_it_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path, stage = tmp_path / "ledger", Stage()
    stage.most = 3
    assert run(stage, Ledger(path))[0] == 1
    again = Stage()
    code, told = run(again, Ledger(path))
    assert code == 0
    assert again.played == [("kill-leader", 12), ("power-cut", 11), ("power-cut", 12)]
    assert row(told, "power-cut")[1:4] == ["3", "0", "3"]
    assert run(Stage(), Ledger(path))[0] == 0


def test_after_a_failure_only_what_lacks_passes_in_a_row_is_played_again(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    run(Stage({"kill-leader": {2}}), Ledger(path))
    again = Stage()
    code, told = run(again, Ledger(path))
    assert code == 0
    assert again.played == [("kill-leader", 13), ("kill-leader", 14)]
    assert row(told, "kill-leader")[1:4] == ["4", "1", "3"]


def test_runs_under_other_terms_do_not_count(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    run(Stage(), ledger)
    assert len(ledger.under(KILL)) == 3
    assert ledger.under(replace(KILL, nodes=5)) == []
    assert ledger.under(replace(KILL, setting="namespaces")) == []


def test_a_line_that_was_cut_off_is_a_run_that_was_not_played(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    run(Stage(), Ledger(path), times=2)
    path.write_text(path.read_text()[:-20])
    ledger = Ledger(path)
    assert len(ledger.runs) == 3
    run(Stage(), ledger, times=2)
    assert Ledger(path).runs == ledger.runs
    assert len(ledger.runs) == 4


@pytest.mark.parametrize(
    "change", [("verdict", '"ok"', '"fine"'), ("nodes", "3", '"3"'), ("seed", "10", "true"), ("code", '"', "7")]
)
def test_a_line_that_is_no_run_is_refused_by_file_and_number(tmp_path: Path, change: tuple[str, str, str]) -> None:
    path = tmp_path / "ledger"
    run(Stage(), Ledger(path), times=1)
    name, old, new = change
    lines = path.read_text().splitlines()
    changed = lines[0].replace(f'"{name}": {old}', f'"{name}": {new}', 1)
    assert changed != lines[0]
    path.write_text("\n".join([changed, *lines[1:]]) + "\n")
    with pytest.raises(ValueError, match="line 1 is not a run of a drill"):
        Ledger(path)
    assert main(["kill-leader", "--ledger", str(path)]) == 2


def test_service_that_never_came_back_has_no_figure() -> None:
    outcome = Outcome("kill-leader", "", 1, 3, problems=["it did not"])
    outcome.recoveries += [Recovery("the start", 1.0, 15.0), Recovery("it", float("inf"), 6.0)]
    line = Run.of(KILL, outcome)
    assert (line.recovery_s, line.limit_s, line.passed) == (None, 6.0, False)


@pytest.mark.parametrize("words", [["--repeat", "0"], ["--nodes", "2"], ["--seconds", "nan"], ["--seconds", "0"]])
def test_numbers_that_make_no_sense_are_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err
