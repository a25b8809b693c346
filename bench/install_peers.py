"""Gets the servers that ours is compared with: ``python -m bench.install_peers [NAME…]``.

They go into a cache directory (``RESOURCELEASE_BENCH_CACHE``, or ``~/.cache/resourcelease-bench``) and nowhere else:
Debian packages are downloaded and unpacked, not installed, so no service is set up; etcd and nats-server are built with
the Go that is there. What cannot be had is said, with the reason, and left out.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.peers.servers import cache, find, postgres_tree

__all__ = ["main"]

ETCD, ETCD_VERSION = "go.etcd.io/etcd/server/v3", "v3.7.3"
NATS, NATS_VERSION = "github.com/nats-io/nats-server/v2", "v2.15.2"
_REDIS_PACKAGES = ("redis-tools", "libjemalloc2", "liblzf1")
# The newest that Debian has here is taken.
_POSTGRES_VERSIONS = (18, 17, 16, 15)


class CannotBeHad(Exception):
    """Why a peer is left out."""


def _run(*command: str | Path, at: Path | None = None, **environment: str) -> str:
    try:
        done = subprocess.run(
            command, cwd=at, env=os.environ | environment, capture_output=True, text=True, check=True, timeout=1_200
        )
    except FileNotFoundError:
        raise CannotBeHad(f"{command[0]} is not there") from None
    except subprocess.TimeoutExpired:
        raise CannotBeHad(f"{command[0]} took too long") from None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or error.stdout.strip() or "it said nothing").splitlines()[-1]
        raise CannotBeHad(f"{command[0]} failed: {last}") from None
    return done.stdout


def _built(module: str, version: str, name: str) -> None:
    """A Go program, built from a module that does nothing else: `go install` refuses one that replaces its parts."""
    with tempfile.TemporaryDirectory() as directory:
        at = Path(directory)
        _run("go", "mod", "init", "bench.local/build", at=at)
        _run("go", "get", f"{module}@{version}", at=at)
        _run("go", "build", "-o", str(cache() / "bin" / name), module, at=at)


def _unpacked(packages: Sequence[str], into: Path) -> None:
    """Debian packages, as files."""
    with tempfile.TemporaryDirectory() as directory:
        at = Path(directory)
        at.chmod(0o777)
        _run("apt-get", "download", *packages, at=at)
        for package in sorted(at.glob("*.deb")):
            _run("dpkg-deb", "-x", package, into)


def _etcd() -> None:
    _built(ETCD, ETCD_VERSION, "etcd")


def _nats() -> None:
    _built(NATS, NATS_VERSION, "nats-server")


def _redis() -> None:
    with tempfile.TemporaryDirectory() as directory:
        at = Path(directory)
        _unpacked(_REDIS_PACKAGES, at)
        # One binary under several names.
        shutil.copy(at / "usr/bin/redis-check-rdb", cache() / "bin" / "redis-server")
        (cache() / "lib").mkdir(exist_ok=True)
        for library in at.glob("usr/lib/*/*.so*"):
            shutil.copy(library, cache() / "lib" / library.name)


def _postgres() -> None:
    """Its files know each other by where they are, so they are kept as a tree."""
    tree = postgres_tree()
    tree.mkdir(parents=True, exist_ok=True)
    for version in _POSTGRES_VERSIONS:
        try:
            _unpacked((f"postgresql-{version}", "libpq5"), tree)
            break
        except CannotBeHad:
            if version == _POSTGRES_VERSIONS[-1]:
                raise
    for program in ("postgres", "initdb"):
        found = next(tree.glob(f"usr/lib/postgresql/*/bin/{program}"), None)
        if found is None:
            raise CannotBeHad(f"the package has no {program}")


_WAYS: dict[str, tuple[str, Callable[[], None]]] = {
    "etcd": ("etcd", _etcd),
    "nats": ("nats-server", _nats),
    "redis": ("redis-server", _redis),
    "postgres": ("postgres", _postgres),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """0 in any case but wrong usage: a peer that cannot be had is no error."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.install_peers", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("names", nargs="*", choices=[*_WAYS, []], metavar="NAME", help=", ".join(_WAYS))
    parser.add_argument("--again", action="store_true", help="also what is there already")
    parsed = parser.parse_args(arguments)
    (cache() / "bin").mkdir(parents=True, exist_ok=True)
    for name in parsed.names or _WAYS:
        program, get = _WAYS[name]
        there = find(program, f"{postgres_tree()}/usr/lib/postgresql/*/bin", "/usr/lib/postgresql/*/bin")
        if there is not None and not parsed.again:
            print(f"{name}: {there}")
            continue
        try:
            get()
            print(f"{name}: installed in {postgres_tree() if name == 'postgres' else cache()}")
        except CannotBeHad as error:
            print(f"{name}: left out, {error}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
