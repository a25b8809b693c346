"""A real node of its own for the command line's tests, started by the command line."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resourcelease.cli import main

__all__ = ["COMMAND", "Cli", "closed_port", "dev", "node_is_gone", "run"]

COMMAND = (sys.executable, "-m", "resourcelease")


@contextmanager
def dev(*arguments: str, stop: signal.Signals = signal.SIGINT) -> Iterator[dict[str, Any]]:
    """A cluster by ``resourcelease dev --json``; gives what it prints."""
    process = subprocess.Popen(
        [*COMMAND, "dev", "--json", "--first-port", "0", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield json.loads(line)
    finally:
        process.send_signal(stop)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 0, errors
    assert not errors


class Cli:
    """The command line against one cluster, in this process."""

    def __init__(self, endpoints: list[str], capsys: Any) -> None:
        self.endpoints = ",".join(endpoints)
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """What a command prints for people."""
        self._capsys.readouterr()
        found = main([*arguments, "--endpoints", self.endpoints])
        out, err = self._capsys.readouterr()
        assert found == code, err
        return str(out if code == 0 else out + err)

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What it prints for programs."""
        return json.loads(self(*arguments, "--json", code=code).splitlines()[0])


def run(*arguments: str, env: dict[str, str] | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RESOURCELEASE_")}
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=kept | (env or {}),
        input=given,
        timeout=60,
        check=False,
    )


@contextmanager
def closed_port() -> Iterator[str]:
    """An endpoint where surely nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def node_is_gone(pid: int) -> bool:
    """Whether a process has ended."""
    return not Path(f"/proc/{pid}").exists()
