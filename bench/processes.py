"""Nodes as processes of their own, told what to do by lines of JSON, and gone when whoever started them is."""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resourcelease.cli.processes import free_ports

__all__ = ["Process", "die_with_parent", "free_ports"]

_PR_SET_PDEATHSIG = 1
_ROOT = Path(__file__).resolve().parent.parent


def die_with_parent() -> None:
    """For a child: it is killed when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == 1:
        os._exit(1)


class Process:
    """A child that runs ``python program arguments…``, and a line to it: one answer an order."""

    def __init__(self, program: Sequence[str], arguments: Sequence[str], errors: Path | None = None) -> None:
        command = [sys.executable, *program, *arguments]
        # Whatever it complains of is kept for whoever looks into a failure.
        with open(errors or os.devnull, "ab") as sink:
            self._pipe = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink if errors else None,
                env=os.environ | {"PYTHONPATH": str(_ROOT)},
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._pipe.pid

    def tell(self, do: str, **order: Any) -> None:
        """Gives an order; its answer has to be taken with ``answer``."""
        assert self._pipe.stdin is not None
        self._pipe.stdin.write(json.dumps({"do": do, **order}).encode() + b"\n")
        self._pipe.stdin.flush()

    def answer(self) -> Any:
        """The next answer; an error that the order met is raised here."""
        assert self._pipe.stdout is not None
        line = self._pipe.stdout.readline()
        if not line:
            raise EOFError(f"process {self.pid} ended instead of answering")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def ask(self, do: str, **order: Any) -> Any:
        """Gives an order and waits for its answer."""
        self.tell(do, **order)
        return self.answer()

    def signal(self, number: int) -> None:
        """Sends a signal: SIGSTOP and SIGCONT, for example."""
        self._pipe.send_signal(number)

    def kill(self) -> None:
        """Kill -9; a second call does nothing."""
        self._pipe.kill()
        self._pipe.wait()
        for end in (self._pipe.stdin, self._pipe.stdout):
            if end is not None:
                with contextlib.suppress(BrokenPipeError):
                    end.close()
