"""The rules of the house, each a function from a module's source to what is wrong in it.

They read the syntax tree and import nothing, so they can be shown a planted violation as easily as the package.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "Module",
    "executes_data",
    "exports",
    "imports_only",
    "iterates_over_sets",
    "make_targets",
    "modules",
    "ratchet",
    "rooms_upwards",
    "too_long",
    "undocumented",
]

PACKAGE = "resourcelease"
# Generated code keeps rules of its own.
GENERATED = "v1"

# In the order of DESIGN's table: a room may import itself and the rooms before it.
ROOMS = (
    "model",
    "telemetry",
    "errands",
    "machine",
    "storage",
    "consensus",
    "events",
    "frontdoor",
    "node",
    "client",
    "spark",
    "cli",
)
# Modules beside the rooms are doors to one of them.
DOORS = {"": "client", "sync": "client", "__main__": "cli"}
SPEAK_THE_WIRE = ("events", "frontdoor", "node", "client", "cli")
# What runs far from any server carries no server code.
FAR = ("client", "spark")
SERVER = ("machine", "storage", "consensus", "events", "frontdoor", "node")
# Server code that a far room reads files with after all, and nothing else of that room.
READS = {"spark": "resourcelease.storage.segments"}


class Module(NamedTuple):
    """One file of the package: its dotted name below it (``machine.fold``, ``machine`` for an ``__init__``)."""

    name: str
    tree: ast.Module
    lines: int
    is_package: bool = False

    @property
    def room(self) -> str:
        """The first part of the name."""
        return self.name.split(".")[0]

    @staticmethod
    def of(name: str, source: str, *, is_package: bool = False) -> "Module":
        """A module from its source."""
        return Module(name, ast.parse(source), len(source.splitlines()), is_package)


def modules(root: Path) -> list[Module]:
    """Every hand-written module of the package."""
    found = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[0] != GENERATED:
            name = ".".join(part for part in parts if part != "__init__")
            source = path.read_text(encoding="utf-8")
            found.append(Module.of(name, source, is_package=path.name == "__init__.py"))
    return found


def imported(module: Module) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported anywhere in the module; of ``from a import b``, ``a.b``."""
    here = [PACKAGE, *module.name.split(".")] if module.name else [PACKAGE]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + module.is_package] if node.level else []
            start = ".".join([*base, *(node.module or "").split(".")]).strip(".")
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def imports_only(module: Module, allowed: tuple[str, ...]) -> list[str]:
    """Imports from outside the package that are not on the list."""
    return [
        f"{module.name}:{line} imports {name}"
        for line, name in imported(module)
        if name.split(".")[0] not in (PACKAGE, *allowed)
    ]


def rooms_upwards(module: Module) -> list[str]:
    """Imports of a room that this one may not know."""
    room = DOORS.get(module.name, module.room)
    if room not in ROOMS:
        return [f"{module.name}:1 stands in no room"]
    wrong = []
    for line, name in imported(module):
        parts = name.split(".")
        if parts[0] != PACKAGE:
            continue
        other = parts[1] if len(parts) > 1 and parts[1] in (*ROOMS, GENERATED) else DOORS.get("", "")
        reads = READS.get(room)
        if reads and f"{name}.".startswith(f"{reads}."):
            continue
        if not _may_import(room, other):
            wrong.append(f"{module.name}:{line} imports {name}: {room} may not know {other}")
    return wrong


def _may_import(room: str, other: str) -> bool:
    if other == GENERATED:
        return room in SPEAK_THE_WIRE
    if room in FAR and other in SERVER:
        return False
    return ROOMS.index(other) <= ROOMS.index(room)


_RUNS_DATA = ("pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "builtins")


def executes_data(module: Module) -> list[str]:
    """Ways to run what was read: pickles, marshalled code, eval and their like."""
    wrong = [
        f"{module.name}:{line} imports {name}"
        for line, name in imported(module)
        if any(part in _RUNS_DATA for part in name.split("."))
    ]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id in ("eval", "exec", "__import__", "__builtins__"):
            wrong.append(f"{module.name}:{node.lineno} uses {node.id}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "compile":
            wrong.append(f"{module.name}:{node.lineno} uses compile")
    return wrong


def too_long(module: Module, function_lines: int, file_lines: int) -> dict[str, int]:
    """The module, if it has too many lines, and its functions that have: names with how many they have."""
    found = {module.name: module.lines} if module.lines > file_lines else {}
    for name, node in _definitions(module.tree):
        if not isinstance(node, ast.ClassDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > function_lines:
                found[f"{module.name}:{name}"] = length
    return found


def exports(module: Module) -> list[str]:
    """A missing ``__all__``, or names in it that the module does not have. A package's bare marker needs none."""
    body = module.tree.body
    if all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in body):
        return []
    told = [node for node in body if isinstance(node, ast.Assign | ast.AnnAssign) and "__all__" in _targets(node)]
    if len(told) != 1 or not isinstance(told[0].value, ast.List | ast.Tuple):
        return [f"{module.name}: has no plain __all__"]
    names = [str(part.value) for part in told[0].value.elts if isinstance(part, ast.Constant)]
    bound = {name for node in _flat(body) for name in _bound(node)}
    return [f"{module.name}: exports {name}, which is not there" for name in names if name not in bound]


def undocumented(module: Module) -> list[str]:
    """Public modules, classes, functions and methods without a docstring."""
    wrong = [] if ast.get_docstring(module.tree) or not module.tree.body else [f"{module.name}:1 has no docstring"]
    for name, node in _definitions(module.tree):
        public = not any(part.startswith("_") or part == "<locals>" for part in name.split("."))
        if public and not _is_overload(node) and not ast.get_docstring(node):
            wrong.append(f"{module.name}:{node.lineno} {name} has no docstring")
    return wrong


Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, Definition]]:
    """Functions and classes with their qualified names, however deep."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition):
            yield within + node.name, node
            inner = "." if isinstance(node, ast.ClassDef) else ".<locals>."
            yield from _definitions(node, within + node.name + inner)
        else:
            yield from _definitions(node, within)


def _is_overload(node: Definition) -> bool:
    names = [part.attr if isinstance(part, ast.Attribute) else getattr(part, "id", "") for part in node.decorator_list]
    return any(name in ("overload", "setter", "deleter") for name in names)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those under an ``if`` or a ``try``."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try):
            handlers = [part for handler in getattr(node, "handlers", []) for part in handler.body]
            yield from _flat([*node.body, *node.orelse, *handlers, *getattr(node, "finalbody", [])])


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, Definition):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.split(".")[0] for alias in node.names]
    return _targets(node)


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)]


# Iteration over sets.

# What asks a set no question that its order answers.
_ORDERED_BY = ("list", "tuple", "sorted", "iter", "next", "enumerate", "zip", "map", "filter", "reversed", "deque")
_ORDERED_BY_METHOD = ("join", "extend", "fromkeys", "from_iterable", "writelines")
_GIVE_SETS = ("union", "intersection", "difference", "symmetric_difference", "copy")
_SETS = ("set", "frozenset", "Set", "FrozenSet", "AbstractSet", "MutableSet")


def iterates_over_sets(module: Module) -> list[str]:
    """Places where the order of a set would show: it differs from run to run, and so from node to node."""
    sets = _SetNames()
    # Twice, so that what is assigned from a name that is found to be a set further down is found too.
    sets.visit(module.tree)
    sets.visit(module.tree)
    return [
        f"{module.name}:{node.lineno} iterates over a set: {ast.unparse(node)}"
        for node in _iterated(module.tree)
        if sets.holds(node)
    ]


def _iterated(tree: ast.Module) -> Iterator[ast.expr]:
    """Every expression that something goes through in its order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield node.iter
        elif isinstance(node, ast.Starred | ast.YieldFrom):
            yield node.value
        elif isinstance(node, ast.Assign):
            yield from [node.value] * isinstance(node.targets[0], ast.Tuple | ast.List)
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name in _ORDERED_BY or (isinstance(node.func, ast.Attribute) and name in _ORDERED_BY_METHOD):
                yield from node.args
            if name == "pop" and not node.args and isinstance(node.func, ast.Attribute):
                yield node.func.value


class _SetNames(ast.NodeVisitor):
    """The names and attributes of a module that are sets somewhere in it."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def holds(self, node: ast.expr | None) -> bool:
        """Whether an expression is a set, as far as that can be seen."""
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name):
                return name in self._names
            case ast.NamedExpr(value=value):
                return self.holds(value)
            case ast.IfExp(body=body, orelse=orelse):
                return self.holds(body) or self.holds(orelse)
            case ast.BoolOp(values=values):
                return any(map(self.holds, values))
            case ast.BinOp(left=left, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor(), right=right):
                return any(self.holds(side) or _is_view(side) for side in (left, right))
            case ast.Call(func=ast.Name(id=name)):
                return name in ("set", "frozenset") or name in self._names
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                return name in self._names or (name in _GIVE_SETS and self.holds(value))
        return False

    def visit_Assign(self, node: ast.Assign) -> None:
        """``name = a set``, also in a row or as an attribute."""
        for target in node.targets:
            if self.holds(node.value):
                self._note(target)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """``name: set[...]``."""
        if _says_set(node.annotation) or self.holds(node.value):
            self._note(node.target)
        self.generic_visit(node)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        """``(name := a set)``."""
        if self.holds(node.value):
            self._note(node.target)
        self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> None:
        """``def f(name: set[...])``."""
        if node.annotation is not None and _says_set(node.annotation):
            self._names[node.arg] = None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """``def f() -> set[...]``: what it gives is a set."""
        if node.returns is not None and _says_set(node.returns):
            self._names[node.name] = None
        self.generic_visit(node)

    def _note(self, target: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = None
        elif isinstance(target, ast.Attribute):
            self._names[target.attr] = None


def _is_view(node: ast.expr) -> bool:
    """``d.keys()`` or ``d.items()``: in order by itself, and a set as soon as it is combined."""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("keys", "items")


def _says_set(annotation: ast.expr) -> bool:
    """Whether an annotation names a set as the thing itself, not as a part of something else."""
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in _SETS
        case ast.Subscript(value=value):
            return _says_set(value)
        case ast.BinOp(left=left, right=right):
            return _says_set(left) or _says_set(right)
        case ast.Constant(value=str(text)):
            return _says_set(ast.parse(text, mode="eval").body)
    return False


def ratchet(found: Mapping[str, int], ceilings: Mapping[str, int]) -> list[str]:
    """What is over its ceiling or has none, and ceilings that are not needed or have room to come down."""
    wrong = [f"{name} has {size} lines" for name, size in found.items() if size > ceilings.get(name, 0)]
    for name, ceiling in ceilings.items():
        size = found.get(name)
        if size is None:
            wrong.append(f"{name} is not too long any more: strike it off")
        elif size < ceiling * 0.9:
            wrong.append(f"{name} has only {size} lines by now: lower its ceiling")
    return wrong


def make_targets(makefile: str) -> list[str]:
    """The names that a Makefile can make, those with a variable or a dot in them left out."""
    found = re.findall(r"^([a-z][a-z -]*):(?!=)", makefile, re.MULTILINE)
    return [name for line in found for name in line.split()]
