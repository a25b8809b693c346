"""Each rule catches what it is there to catch: it is shown a planted violation, and its innocent twin."""

import house_rules as rules
import pytest
from house_rules import Module


def module(source: str, name: str = "machine.planted") -> Module:
    return Module.of(name, source)


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from datetime import datetime",
        "import msgpack, random",
        "def later():\n    import asyncio",
        "from uuid import uuid4 as collections",
        "if True:\n    from logging import getLogger",
    ],
)
def test_a_clock_or_the_like_is_found(source: str) -> None:
    assert rules.imports_only(module(source), ("msgpack", "collections", "typing"))


def test_what_computes_may_be_imported() -> None:
    source = (
        "import msgpack\nfrom collections.abc import Iterator\nfrom resourcelease.model import limits\nfrom . import x"
    )
    assert rules.imports_only(module(source), ("msgpack", "collections")) == []


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1, 2}: pass",
        "for x in set(a): pass",
        "[x for x in frozenset(a)]",
        "{x: 1 for x in {y for y in a}}",
        "list({1})",
        "sorted(set(a))",
        "tuple(a | {1})",
        "next(iter({1, 2}))",
        "seen = set()\nfor x in seen: pass",
        "seen: set[int] = f()\nlist(seen)",
        "def f(seen: set[int]):\n    return [x for x in seen]",
        "def f(seen: 'frozenset[int] | None'):\n    yield from seen",
        "class A:\n    def f(self):\n        self.seen = set()\n    def g(self):\n        return list(self.seen)",
        "def names() -> set[str]: ...\nfor name in names(): pass",
        "kept = known - {1}\nother = kept\nprint(*other)",
        "for key in a.keys() & b.keys(): pass",
        "a, b = {1, 2}",
        "seen = {1}\nseen.pop()",
        "','.join({'a'})",
        "dict.fromkeys({1})",
        "a = {1}\nfor x in a.union(b): pass",
        "for x in ({1} if a else ()): pass",
        "if (late := set(a)): print(list(late))",
        "list(map(str, {1}))",
    ],
)
def test_going_through_a_set_is_found(source: str) -> None:
    assert rules.iterates_over_sets(module(source))


@pytest.mark.parametrize(
    "source",
    [
        "for x in {1: 2}: pass",
        "for x in dict.fromkeys(a): pass",
        "a = {1}\nb = 1 in a and len(a) and a <= {1, 2}",
        "set(map(type, a)) <= {int}",
        "len(set(a)) != len(a)",
        "for key in a.keys(): pass",
        "flags = a | 1\nfor x in range(flags): pass",
        "sets: list[set[int]] = []\nfor one in sets: pass",
    ],
)
def test_holding_a_set_is_allowed(source: str) -> None:
    assert rules.iterates_over_sets(module(source)) == []


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("machine.x", "from resourcelease.storage import api"),
        ("machine.x", "import resourcelease.consensus"),
        ("machine.x", "from resourcelease import storage"),
        ("machine.x", "from ..storage import api"),
        ("model.x", "from resourcelease.machine import Machine"),
        ("machine.x", "from resourcelease.v1 import item_pb2"),
        ("consensus.x", "def f():\n    from resourcelease import v1"),
        ("storage.x", "from resourcelease import Client"),
        ("client.x", "from resourcelease.machine import Machine"),
        ("client.x", "from resourcelease.node import config"),
        ("spark.x", "from resourcelease.storage.api import Identity"),
        ("sync", "from resourcelease.frontdoor import x"),
        ("", "from resourcelease.cli import main"),
        ("attic.x", "import json"),
        ("spark.x", "from resourcelease.storage import segments, LmdbStore"),
        ("spark.x", "from resourcelease.storage.segmentsx import Log"),
        ("client.x", "from resourcelease.storage.segments import Log"),
    ],
)
def test_a_door_that_should_not_be_there_is_found(name: str, source: str) -> None:
    assert rules.rooms_upwards(module(source, name))


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("machine.x", "from resourcelease.model.ops import Op\nfrom resourcelease.machine import y\nfrom . import z"),
        ("consensus.x", "from resourcelease.storage import api\nimport pysyncobj"),
        ("frontdoor.x", "from resourcelease.v1 import item_pb2"),
        ("client.x", "from resourcelease.v1 import item_pb2\nfrom resourcelease.model.errors import Reason"),
        ("spark.x", "from resourcelease.storage.segments import Log\nimport resourcelease.storage.segments"),
        ("cli.x", "from resourcelease.node import run\nfrom resourcelease.client import Client"),
        ("", "from resourcelease.client import Client"),
    ],
)
def test_the_doors_of_the_house_are_allowed(name: str, source: str) -> None:
    assert rules.rooms_upwards(module(source, name)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import pysyncobj.pickle as p",
        "from pysyncobj import pickle",
        "import marshal",
        "eval('1')",
        "run = exec",
        "__import__('pickle')",
        "compile('1', '', 'eval')",
        "import builtins",
    ],
)
def test_running_data_is_found(source: str) -> None:
    assert rules.executes_data(module(source))


def test_a_package_knows_its_own_rooms_by_a_dot() -> None:
    package = Module.of("storage", "from .api import Identity\nfrom ..model import limits", is_package=True)
    assert rules.rooms_upwards(package) == []
    assert rules.rooms_upwards(Module.of("storage", "from ..cli import x", is_package=True))


def test_words_that_only_sound_like_it_are_allowed() -> None:
    source = "import re\nre.compile('a')\ncursor.execute('x')\n'''eval, pickle'''\nevaluate = 1"
    assert rules.executes_data(module(source)) == []


def test_what_is_too_long_is_found() -> None:
    source = "class A:\n    def f(self):\n" + "        x = 1\n" * 5 + "def g():\n    def h():\n" + "        x = 1\n" * 4
    found = rules.too_long(module(source), function_lines=4, file_lines=10)
    assert found == {
        "machine.planted": 13,
        "machine.planted:A.f": 6,
        "machine.planted:g": 6,
        "machine.planted:g.<locals>.h": 5,
    }
    assert rules.too_long(module(source), function_lines=6, file_lines=13) == {}


def test_a_ceiling_only_comes_down() -> None:
    assert rules.ratchet({"f": 70}, {"f": 70}) == []
    assert rules.ratchet({"f": 66}, {"f": 70}) == []
    assert rules.ratchet({"f": 71}, {"f": 70}) == ["f has 71 lines"]
    assert rules.ratchet({"g": 61}, {}) == ["g has 61 lines"]
    assert rules.ratchet({}, {"f": 70}) == ["f is not too long any more: strike it off"]
    assert rules.ratchet({"f": 61}, {"f": 70}) == ["f has only 61 lines by now: lower its ceiling"]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "'''Says what it is.'''\nimport re",
        "__all__ = ['gone']\nx = 1",
        "__all__ = [name for name in 'ab']",
        "__all__ = ['x']\ndef f():\n    x = 1",
        "__all__ = ['x']\n__all__ = ['x']\nx = 1",
    ],
)
def test_a_wrong_list_of_exports_is_found(source: str) -> None:
    assert rules.exports(module(source))


@pytest.mark.parametrize(
    "source",
    [
        "",
        "'''A marker.'''",
        "__all__ = ['a', 'b', 'C', 'd', 'e', 'f']\na = 1\ndef b(): ...\nclass C: ...\nfrom x import y as d\n"
        "try:\n    import e\nexcept ImportError:\n    e = None\nf: int = 2",
    ],
)
def test_a_right_list_of_exports_is_allowed(source: str) -> None:
    assert rules.exports(module(source)) == []


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "'''M.'''\ndef f(): ...",
        "'''M.'''\nclass A: ...",
        "'''M.'''\nclass A:\n    '''A.'''\n    async def f(self): ...",
        "'''M.'''\nif True:\n    def f(): ...",
    ],
)
def test_what_has_no_docstring_is_found(source: str) -> None:
    assert rules.undocumented(module(source))


def test_what_is_private_needs_no_docstring() -> None:
    source = "'''M.'''\ndef _f(): ...\nclass A:\n    '''A.'''\n    def __len__(self): ...\n    def _g(self): ...\n"
    source += "def g():\n    '''G.'''\n    def inner(): ...\n"
    assert rules.undocumented(module(source)) == []


def test_targets_are_read_from_a_makefile() -> None:
    makefile = "SHELL := bash\n.PHONY: ghost\na: b  ## does\n\trecipe: no\nc d:\n\ttrue\n$(X)/y: z\n"
    assert rules.make_targets(makefile) == ["a", "c", "d"]
