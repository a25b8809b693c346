"""One node of a drill: a directory, a configuration, and a process while it runs."""

import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resourcelease.cli.processes import NodeProcess, start_node, to_toml

__all__ = ["Node"]

# An order to stop is obeyed in this time, or the process is killed.
STOP_S = 12.0


class Node(NodeProcess):
    """A node's configuration on disk, and its process.

    ``tables`` is its configuration; ``prefix`` are words before the command, such as those that enter a namespace.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        address: str,
        tables: Mapping[str, Mapping[str, Any]],
        prefix: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.name = name
        self.address = address
        """Where clients call it."""
        self.directory = directory / name
        self.data = self.directory / "data"
        self.log = self.directory / "node.log"
        self.tables = {section: dict(values) for section, values in tables.items()}
        self.prefix = list(prefix)
        """Words before the command."""
        # Runs the node; another one for another release.
        self.python = sys.executable
        self.paused = False

    def wrap(self, words: Sequence[str]) -> None:
        """Puts words right before the command, from the next start on."""
        self.prefix += words

    def start(self) -> None:
        """Starts the process; it ends with ours, in whatever way ours ends."""
        if self.pid is None:
            # What is left of one that ended by itself.
            self.kill()
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "node.toml"
        config.write_text(to_toml(self.tables))
        self._process = start_node(config, self.log, self.prefix, self.python)
        self.paused = False

    def pause(self) -> None:
        """Stops the process where it stands, as a virtual machine that is moved."""
        self.signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        """Lets it go on."""
        self.signal(signal.SIGCONT)
        self.paused = False

    def ask_to_stop(self) -> None:
        """Sends SIGTERM."""
        self.resume()
        self.signal(signal.SIGTERM)

    def strike(self) -> None:
        """Sends SIGKILL and does not wait, so that several can go at the same moment."""
        self.signal(signal.SIGKILL)

    def kill(self) -> None:
        """Ends it at once and waits until it is gone."""
        super().kill()
        self.paused = False

    def ended(self, seconds: float = STOP_S) -> int | None:
        """Waits until the process has ended by itself; its exit code, or None if it did not."""
        until = time.monotonic() + seconds
        while self.pid is not None and time.monotonic() < until:
            time.sleep(0.02)
        return self.exit_code

    def words(self, since: int = 0) -> str:
        """What it has written to its log, from an offset on."""
        return self.log.read_bytes()[since:].decode(errors="replace") if self.log.exists() else ""
