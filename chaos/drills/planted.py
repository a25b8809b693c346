"""A real node with a defect, to see that drills notice it: ``DRILL_PLANT=NAME python -m chaos.drills.planted COMMAND``.

``COMMAND`` is what starts a node. The switch is here, and nowhere in the package that is installed. The defects are the
simulator's, as far as they make sense in a process of its own, and some of what the simulator leaves out.
"""

import dataclasses
import functools
import importlib
import os
import runpy
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from chaos.drills.node import Node
from chaos.simulation.machines import Watched
from chaos.simulation.plants import PLANTS as SIMULATED
from chaos.simulation.plants import Plant
from resourcelease.consensus.settings import ALL_GUARDS
from resourcelease.storage import StoreOptions

__all__ = ["PLANTS", "SENSELESS", "main", "plant_in"]

SWITCH = "DRILL_PLANT"
_PACKAGE = "resourcelease"

# The simulator's plants that have no counterpart in a process, and why.
SENSELESS: dict[str, str] = {
    "torn": "LMDB's transactions are atomic, and there is no switch for that; drills flip and tear its files",
    "unchecked": "checksums are part of how the store reads each record; drills change records below it",
    "full-yes": "a full disk is the kernel's here, and it says no",
    "no-vote": "no connection between processes delivers twice",
    "no-epoch": "a connection that is closed delivers nothing more to a process",
    "no-reset": "waste under a backlog that a drill of seconds does not build up",
    "late-ack": "a real leader proposes when something falls due, whoever is idle",
}


def _patched(module: str, name: str, make: Callable[[Any], Any]) -> None:
    """Puts something else in the place of a name that a module of the package uses."""
    found = importlib.import_module(f"{_PACKAGE}.{module}")
    setattr(found, name, make(getattr(found, name)))


def _simulated(plant: Plant, node: str) -> None:
    if plant.guards_off:
        assert plant.guards() != ALL_GUARDS
        _patched("consensus.service", "Host", lambda host: functools.partial(host, guards=plant.guards()))
    if plant.machine is not Watched:
        kind = plant.machine
        # The notes are for the simulator's checkers, which are not here.
        members = {"note": lambda self: None, "node": node}
        _patched("node.statewatch", "_Watched", lambda watched: type(kind.__name__, (watched, kind), members))
    if plant.always_founding:
        _patched("node.process", "Consensus", lambda consensus: functools.partial(consensus, founding=True))


def _no_fsync(node: str) -> None:
    def forgetful(store: Any) -> Any:
        return lambda *words, **named: store(*words, **{**named, "options": StoreOptions(sync=False)})

    _patched("node.process", "LmdbStore", forgetful)


def _lost_vote(node: str) -> None:
    def forgetful(store: Any) -> Any:
        class Forgetful(store):  # type: ignore[misc]
            """Writes no votes."""

            def write(self, batch: Any) -> Any:
                return super().write(dataclasses.replace(batch, vote=None))

        return Forgetful

    _patched("node.process", "LmdbStore", forgetful)


def _lets_twins_in(node: str) -> None:
    async def nobody(self: Any, theirs: Any) -> None:
        """There is no twin."""

    _patched("consensus.peers", "Peers", lambda peers: type("Peers", (peers,), {"_living_twin": nobody}))
    _patched("consensus.service", "Peers", lambda peers: type("Peers", (peers,), {"_living_twin": nobody}))


_OWN: dict[str, Callable[[str], None]] = {
    "no-fsync": _no_fsync,
    "lost-vote": _lost_vote,
    "twins": _lets_twins_in,
}


def _names() -> dict[str, Callable[[str], None]]:
    found: dict[str, Callable[[str], None]] = {
        name: functools.partial(_simulated, plant)
        for name, plant in SIMULATED.items()
        if name not in SENSELESS and not plant.disk
    }
    return {**found, **_OWN}


# What can be planted, and what does it; it is told the node's name.
PLANTS: dict[str, Callable[[str], None]] = _names()


def plant_in(node: Node, name: str) -> None:
    """Has a node run with a defect, from its next start on."""
    node.wrap(["env", f"{SWITCH}={name}", sys.executable, "-m", "chaos.drills.planted"])


def main(words: Sequence[str]) -> None:
    """Plants what the environment says, and becomes the node."""
    at = words.index(_PACKAGE)
    if list(words[1:at]) != ["-m"]:
        raise SystemExit(f"not what starts a node: {' '.join(words)}")
    config = Path(words[words.index("--config") + 1])
    PLANTS[os.environ[SWITCH]](tomllib.loads(config.read_text())["node"]["id"])
    sys.argv = list(words[at:])
    runpy.run_module(_PACKAGE, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
