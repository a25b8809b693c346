"""The examples of the client's and the command line's pages, run against a real node."""

import ast
import asyncio
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_cluster import dev

from resourcelease import Client
from resourcelease.cli import main

ROOT = Path(__file__).parents[2]
CLIENT = (ROOT / "docs" / "client.md").read_text()
CLI = (ROOT / "docs" / "cli.md").read_text()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with dev("--nodes", "1") as told:
        yield told["endpoints"][0]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_client_page_run(endpoint: str) -> None:
    examples = [block.replace("127.0.0.1:7101", endpoint) for block in blocks(CLIENT, "py")]
    assert len(examples) >= 7

    async def run() -> None:
        async with Client(endpoint) as client:
            scope: dict[str, Any] = {"client": client, "asyncio": asyncio}
            for example in examples:
                if "asyncio.run(" in example or "sync.Client" in example:
                    await asyncio.to_thread(exec, compile(example, "client.md", "exec"), {})
                    continue
                code = compile(example, "client.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                result = eval(code, scope)
                if inspect.isawaitable(result):
                    await result

    asyncio.run(run())


def test_the_commands_of_the_cli_page_run(
    endpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = [line[2:] for block in blocks(CLI, "console") for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 15
    monkeypatch.setenv("RESOURCELEASE_ENDPOINTS", endpoint)
    monkeypatch.setenv("RESOURCELEASE_NAMESPACE", "page")
    monkeypatch.chdir(tmp_path)
    for command in commands:
        if command == "resourcelease dev":
            continue
        if "|" not in command:
            # The fences of this node may have come further than those of a new cluster.
            words = [fence_of(capsys) if word == "1:1:1" else word for word in shlex.split(command)[1:]]
            assert main(words) == 0, f"{command}: {capsys.readouterr()}"
            continue
        line = re.sub(r"\bresourcelease ", f"{sys.executable} -m resourcelease ", command)
        done = subprocess.run(line, shell=True, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def fence_of(capsys: pytest.CaptureFixture[str]) -> str:
    """The handle that the last ``lease --json`` printed."""
    leases = [line for line in capsys.readouterr().out.splitlines() if line.startswith("[{")]
    return str(json.loads(leases[-1])[0]["handle"]) if leases else ""


def test_every_exception_is_on_the_page() -> None:
    import resourcelease.client

    for name in resourcelease.client.__all__:
        value = getattr(resourcelease.client, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert f"`{name}" in CLIENT or f"{name}`" in CLIENT, name
