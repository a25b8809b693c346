"""The house is in order: every rule of ``house_rules``, asked of the package as it stands."""

import doctest
import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import house_rules as rules
import pytest
from house_rules import Module

ROOT = Path(__file__).parents[2]
MODULES = rules.modules(ROOT / "cluster" / rules.PACKAGE)
NAMES = [module.name for module in MODULES]

# The machine computes, and nothing else: no clock, no chance, no files, no threads are within its reach.
PURE = (
    "array",
    "bisect",
    "collections",
    "dataclasses",
    "enum",
    "hashlib",
    "heapq",
    "itertools",
    "re",
    "struct",
    "typing",
    # The one form in which things are packed.
    "msgpack",
)
# The model does no more than that, and tells values in words.
PURE_BY_ROOM = {"machine": PURE, "model": (*PURE, "json")}

FUNCTION_LINES = 60
FILE_LINES = 600
# What is longer, with how long it may be. A ceiling may only come down.
CEILINGS: dict[str, int] = {
    "consensus.host:Host.__init__": 92,
}

# Where data may be run as code after all: the place as the rule names it, and why.
EXCEPTIONS: dict[str, str] = {}

# What CONTRACTS promises that one can make.
TARGETS = ("demo", "test", "sim", "drills", "bench", "proto")

# Needed by a room that is an extra; without it the room's examples are not run.
EXTRAS = {"spark": "pyspark"}

of_each_module = pytest.mark.parametrize("module", MODULES, ids=NAMES)


def test_there_is_a_house() -> None:
    assert {"machine.machine", "model.ops"} <= set(NAMES)


@of_each_module
def test_pure_rooms_import_only_what_computes(module: Module) -> None:
    allowed = PURE_BY_ROOM.get(module.room)
    if allowed is not None:
        assert rules.imports_only(module, allowed) == []


@of_each_module
def test_the_machine_iterates_over_no_set(module: Module) -> None:
    if module.room in PURE_BY_ROOM:
        assert rules.iterates_over_sets(module) == []


@of_each_module
def test_rooms_import_only_upwards(module: Module) -> None:
    assert rules.rooms_upwards(module) == []


def test_data_is_never_run() -> None:
    found = [wrong for module in MODULES for wrong in rules.executes_data(module)]
    places = {re.sub(r":\d+ ", ": ", wrong) for wrong in found}
    assert places <= set(EXCEPTIONS), found
    assert set(EXCEPTIONS) <= places, "an exception that nobody needs any more"
    assert all(EXCEPTIONS.values()), "an exception without a reason"


def test_functions_and_files_only_get_shorter() -> None:
    found: dict[str, int] = {}
    for module in MODULES:
        found |= rules.too_long(module, FUNCTION_LINES, FILE_LINES)
    ceilings = {name: size for name, size in CEILINGS.items() if name.split(":")[0] in NAMES}
    assert rules.ratchet(found, ceilings) == []


@of_each_module
def test_what_is_exported_is_there(module: Module) -> None:
    assert rules.exports(module) == []


@of_each_module
def test_what_is_public_is_documented(module: Module) -> None:
    assert rules.undocumented(module) == []


@of_each_module
def test_examples_in_docstrings_run(module: Module) -> None:
    extra = EXTRAS.get(module.room)
    if extra and find_spec(extra) is None:
        pytest.skip(f"{extra} is not installed")
    if module.name == "__main__":
        return
    name = ".".join(part for part in (rules.PACKAGE, module.name) if part)
    failed, _ = doctest.testmod(import_module(name), optionflags=doctest.ELLIPSIS)
    assert not failed


@pytest.mark.parametrize("target", TARGETS)
def test_every_promised_target_can_be_made(target: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert target in rules.make_targets(makefile)
