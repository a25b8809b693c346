"""What the pages show, runs: against a cluster of one node, for those that call one."""

import asyncio
import contextlib
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from resourcelease import Client
from resourcelease.cli import main
from resourcelease.cli.processes import LocalCluster

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def blocks(language: str) -> list[tuple[str, str]]:
    """Each block of a language on the pages, with a name."""
    pattern = rf"^```{language}\n(.*?)^```"
    return [
        (f"{page.name}-{number}", block)
        for page in PAGES
        for number, block in enumerate(re.findall(pattern, page.read_text(), re.DOTALL | re.MULTILINE))
    ]


ENDLESS = ("dev", "node", "demo")
EXAMPLES = [pytest.param(block, id=name) for name, block in blocks("python")]
# What runs on and on is tried elsewhere.
COMMANDS = [
    pytest.param(line[2:].strip(), id=line[2:].strip())
    for name, block in blocks("console")
    for line in block.replace("\\\n", " ").splitlines()
    if name.startswith("README") and line.startswith("$ resourcelease ") and line.split()[2] not in ENDLESS
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoints of a cluster that examples may use."""
    local = LocalCluster.plan(tmp_path_factory.mktemp("examples") / "cluster", 1)

    async def ready() -> None:
        async with Client(local.endpoints) as client:
            await local.ready(client)

    local.start()
    try:
        asyncio.run(ready())
        yield ",".join(local.endpoints)
    finally:
        asyncio.run(local.stop())


@pytest.mark.parametrize("example", EXAMPLES)
def test_example_runs(example: str, cluster: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("RESOURCELEASE_ENDPOINTS", cluster)
    exec(compile(example, "example", "exec"), {"__name__": "example"})
    assert "Traceback" not in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_command_runs(command: str, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESOURCELEASE_ENDPOINTS", cluster)
    _, *arguments = shlex.split(command)
    with contextlib.chdir(tmp_path):
        assert main(arguments) == 0


def test_pages_link_to_pages_that_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_named_in_pages_exist() -> None:
    targets = re.findall(r"^([a-z-]+(?: [a-z-]+)*):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    known = {name for line in targets for name in line.split()}
    for page in PAGES:
        for name in re.findall(r"`make ([a-z-]+)", page.read_text()):
            assert name in known, f"{page.name} names make {name}"


def test_names_on_the_journey_exist() -> None:
    text = (ROOT / "docs" / "journey-of-a-lease.md").read_text()
    rooms = {path.name for path in (ROOT / "cluster" / "resourcelease").iterdir() if path.is_dir()}
    names = [name for name in re.findall(r"`([a-z_]+(?:\.\w+)+)`", text) if name.split(".")[0] in rooms]
    assert len(names) > 30
    for name in names:
        assert exists(name), f"the journey names {name}"


def exists(name: str) -> bool:
    """Whether a dotted path leads to something: through modules as far as there are any, then through attributes."""
    parts, module = name.split("."), "resourcelease"
    while parts and find_spec(f"{module}.{parts[0]}") is not None:
        module = f"{module}.{parts.pop(0)}"
        if not hasattr(import_module(module), "__path__"):
            break
    found: Any = import_module(module)
    for part in parts:
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True
