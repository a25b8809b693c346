"""Each planted defect is noticed by a drill, so what drills do not notice is likely not there."""

import asyncio
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

from chaos.drills import planted
from chaos.drills.catalog import DRILLS
from chaos.drills.loopback import Loopback
from chaos.drills.outcome import Outcome
from chaos.drills.planted import PLANTS, SENSELESS
from chaos.drills.run import run_drill
from chaos.simulation.machines import Watched
from chaos.simulation.plants import PLANTS as SIMULATED
from resourcelease.node.statewatch import StateWatch


class Show(NamedTuple):
    """Where a defect shows, how long a drill that takes, and how often it may have to be played."""

    drill: str
    seconds: float = 4.0
    tries: int = 1


SHOWN: dict[str, Show] = {
    "no-sync": Show("power-loss", 6.0),
    "no-fallback": Show("lonely-leader", 6.0),
    "no-stall": Show("slow-disk", 6.0),
    "no-fsync": Show("power-loss", 6.0),
    "no-reqid": Show("power-cut", 4.0, 3),
    "apply-twice": Show("kill-leader"),
    "false-yes": Show("kill-leader"),
    "false-no": Show("kill-leader"),
    "wrong-fence": Show("kill-leader"),
    "reused-fence": Show("kill-leader"),
    "any-fence": Show("kill-leader"),
    "two-holders": Show("kill-leader"),
    "early-expiry": Show("kill-leader"),
    "no-verdicts": Show("kill-leader"),
    "no-answers": Show("mix", 12.0, 3),
    "no-requests": Show("kill-leader"),
    # Rows must have been written before the cut.
    "drop-requests": Show("power-cut", 24.0),
    "drop-items": Show("power-cut", 14.0),
    "divergence": Show("kill-leader"),
    "hidden-event": Show("kill-leader"),
    "wall-clock": Show("clock-jump", 6.0),
    "twins": Show("cloned-node"),
}
# Left to the simulator, and why.
LEFT: dict[str, str] = {
    "no-trim": "a cut in the log heals with the next append, unless the leader dies between the two",
    "no-snapcommit": "needs a leader to fall between a snapshot's first piece and its last",
    "no-snapseq": "needs two snapshots at once on their way to one node",
    "no-align": "needs a power cut between the pieces of an installation, which is a moment",
    "no-term": "needs an acknowledgement of an earlier term to arrive late",
    "no-ci": "needs an entry at the journal's end that another leader replaces",
    "no-stranger": "costs elections after a removal, and a removed node is stopped here",
    "no-newborn": "needs an election while a node that lost its disk has not caught up",
    "no-proof": "needs an election while a node that lost its disk has caught up with a part of what it had",
    "lost-vote": "needs a node to die between two requests for its vote in one term",
    "drop-answers": "needs a call that is made again after a cut, and rows that were written between its two tries",
    "no-due": "clients never rest here, so that there is always a next call",
    "no-effects": "the workload begins no effects",
    "silent-change": "the same on all nodes; only a fold of the events tells",
}
# Those that `make test` tries.
QUICK = ["two-holders", "reused-fence"]


def play(plant: str, show: Show, directory: Path) -> Outcome:
    """The drill with the defect in all nodes."""

    async def whole() -> Outcome:
        drill = DRILLS[show.drill]
        cluster = await Loopback().found(directory, 3, drill)
        return await run_drill(
            drill, cluster, directory, seconds=show.seconds, seed=7, tell=lambda _: None, plant=plant, work_off_s=4.0
        )

    return asyncio.run(whole())


def notice(plant: str, directory: Path) -> None:
    show = SHOWN[plant]
    reason = DRILLS[show.drill].why_skipped()
    if reason:
        pytest.skip(reason)
    for number in range(show.tries):
        (directory / str(number)).mkdir()
        outcome = play(plant, show, directory / str(number))
        if outcome.problems:
            assert not outcome.stumbled, outcome.problems
            # A node that cannot even start with the defect shows nothing.
            assert outcome.recoveries, outcome.problems
            return
    pytest.fail(f"{show.drill} has not noticed it")


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_planted_is_what_a_node_is_made_of(monkeypatch: pytest.MonkeyPatch, plant: str) -> None:
    def patched(module: str, name: str, make: Callable[[Any], Any]) -> None:
        found = importlib.import_module(f"resourcelease.{module}")
        monkeypatch.setattr(found, name, make(getattr(found, name)))

    monkeypatch.setattr(planted, "_patched", patched)
    PLANTS[plant]("n7")
    if plant not in SIMULATED or SIMULATED[plant].machine is Watched:
        return
    machines = StateWatch().machines("cluster")
    new = cast(Any, machines.new())
    loaded = cast(Any, machines.load(new.dump_rows()))
    for machine in (new, loaded):
        assert isinstance(machine, SIMULATED[plant].machine)
        assert machine.node == "n7"


@pytest.mark.parametrize("plant", QUICK)
def test_a_planted_defect_is_noticed(tmp_path: Path, plant: str) -> None:
    notice(plant, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("plant", SHOWN)
def test_every_planted_defect_is_noticed(tmp_path: Path, plant: str) -> None:
    notice(plant, tmp_path)


def test_every_plant_of_the_simulator_has_its_place() -> None:
    places = [*SHOWN, *LEFT, *SENSELESS]
    assert len(places) == len(set(places))
    assert set(places) == set(SIMULATED) | set(PLANTS)
    assert set(SHOWN) | set(LEFT) == set(PLANTS)


def test_the_switch_is_not_in_the_package() -> None:
    package = Path(__file__).parents[2] / "cluster" / "resourcelease"
    assert not [
        path for path in package.rglob("*.py") if "DRILL_PLANT" in path.read_text() or "chaos" in path.read_text()
    ]
