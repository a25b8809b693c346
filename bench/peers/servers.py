"""Server processes: started in a group of their own, ended by their id, gone with whoever started them."""

import contextlib
import mmap
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from bench.processes import die_with_parent, free_ports

__all__ = [
    "Server",
    "bytes_in_memory",
    "bytes_on_disk",
    "cache",
    "find",
    "free_ports",
    "libraries_of",
    "postgres_tree",
    "touch_memory",
    "until",
    "words",
]

_GRACE_SECONDS = 5.0
_TOUCH_BYTES = 1536 << 20


def cache() -> Path:
    """Where ``bench.install_peers`` puts servers."""
    return Path(os.environ.get("RESOURCELEASE_BENCH_CACHE") or Path.home() / ".cache" / "resourcelease-bench")


def postgres_tree() -> Path:
    """Where PostgreSQL is unpacked: for root a place that other users can read, as it will not run as root."""
    return Path("/var/cache/resourcelease-bench/postgresql") if os.getuid() == 0 else cache() / "postgresql"


def libraries_of(tree: Path) -> dict[str, str]:
    """What lets programs of an unpacked tree find their libraries; the system's own where there is no tree."""
    found = sorted(tree.glob("usr/lib/*-linux-gnu"))
    return {"LD_LIBRARY_PATH": ":".join(map(str, found))} if found else {}


def find(program: str, *places: str) -> Path | None:
    """A program: in the cache, in the places named (a pattern each; the last match is the newest), or on the path."""
    kept = cache() / "bin" / program
    if kept.exists():
        return kept
    for place in places:
        base, _, pattern = place.partition("*")
        found = sorted(Path(base).glob(f"*{pattern}/{program}")) if Path(base).is_dir() else []
        if found:
            return found[-1]
    usual = shutil.which(program)
    return Path(usual) if usual else None


def words(program: Path | None, *arguments: str, libraries: Mapping[str, str] | None = None) -> str:
    """The first line that a program prints of its version; ``libraries`` is where it finds those it needs."""
    if program is None:
        return "not installed"
    environment = os.environ | (libraries_of(postgres_tree()) if libraries is None else libraries)
    said = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, env=environment)
    return said.stdout.strip().splitlines()[0] if said.returncode == 0 and said.stdout.strip() else "unknown"


def until(happened: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Waits; says what did not happen in time."""
    end = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > end:
            raise TimeoutError(f"{what} did not happen in {seconds:g} s")
        time.sleep(0.03)


class Server:
    """One server process."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        directory: Path,
        *,
        port: int = 0,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
        end: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.directory = directory
        self.port = port
        self.log = directory.parent / f"{directory.name}.log"
        self._command = [str(part) for part in command]
        self._user = user
        self._environment = environment
        self._end = end
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """While it runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def start(self) -> None:
        """Starts it; it dies with us."""
        with self.log.open("ab") as log:
            # The hook runs after the change of user, which would undo it.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory if self._user is None else "/",
                env=dict(os.environ) | dict(self._environment or {}),
                user=self._user,
                group=pwd.getpwnam(self._user).pw_gid if self._user else None,
                extra_groups=[] if self._user else None,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )

    def kill(self, number: signal.Signals | None = None) -> None:
        """Ends it, with what it started; a second call does nothing."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number or self._end)
        try:
            self._process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def listens(self) -> bool:
        """Whether its port takes connections; raises if it has ended instead."""
        if self.pid is None:
            raise ChildProcessError(f"{self.name} ended: {self.last_words()} (all of it: {self.log})")
        with socket.socket() as probe:
            probe.settimeout(0.5)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def last_words(self) -> str:
        """The last line of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return lines[-1] if lines else "it said nothing"


def _family(pids: Iterable[int]) -> list[int]:
    """These processes and all below them."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    family = list(pids)
    for pid in family:
        family += children.get(pid, ())
    return family


def bytes_in_memory(pids: Iterable[int]) -> int:
    """What processes and their children hold in memory; pages that several share are counted once."""
    total = 0
    for pid in _family(pids):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total


def bytes_on_disk(directories: Iterable[Path]) -> int:
    """The blocks that files below some directories take."""
    total = 0
    for directory in directories:
        for at, _, names in os.walk(directory):
            for name in names:
                with contextlib.suppress(OSError):
                    total += os.lstat(Path(at) / name).st_blocks * 512
    return total


def touch_memory() -> None:
    """Makes free memory be memory: a virtual machine gets a page from its host when it is first used.

    That costs more than writing a page to a file, and falls upon whoever grows next: a peer with a backlog just filled,
    not the one that has just begun. So what a load is about to use is used before, by us, and given back.
    """
    pages, size = os.sysconf("SC_AVPHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    many = min(_TOUCH_BYTES, pages * size // 8)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    mmap.mmap(-1, many, flags=flags).close()
