"""Earlier releases, each installed in an environment of its own, to be upgraded from."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["ReleaseError", "install", "newest_tag", "why_no_release"]

ROOT = Path(__file__).parents[2]
# So many installed releases are kept.
_KEPT = 4
_READY = "ready"
_INSTALL_S = 900.0


class ReleaseError(OSError):
    """Why there is no such release, in one line."""


def newest_tag(root: Path = ROOT) -> str:
    """The tag of the last release, by its version; empty if nothing was released."""
    try:
        tags = _run("git", "-C", str(root), "tag", "--list", "v*", "--sort=-v:refname").split()
    except ReleaseError:
        return ""
    return tags[0] if tags else ""


def why_no_release(wanted: str, root: Path = ROOT) -> str:
    """Why a release cannot be had; empty if it can. ``wanted`` is a git ref or a wheel, or empty: the last release."""
    if not wanted and not newest_tag(root):
        return "there is no release yet (no tag v*); --from REF names what to upgrade from"
    try:
        _key(wanted or newest_tag(root), root)
    except ReleaseError as error:
        return str(error)
    return ""


def install(wanted: str = "", root: Path = ROOT) -> Path:
    """The Python that runs a release; it is installed on first use, and kept by what it was made from."""
    wanted = wanted or newest_tag(root)
    home = _cache().resolve() / _key(wanted, root)
    python = home / "venv" / "bin" / "python"
    if (home / _READY).exists():
        os.utime(home)
        return python
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    source = Path(wanted) if wanted.endswith(".whl") else _source(wanted, home / "source", root)
    _run(sys.executable, "-m", "venv", "--without-pip", str(home / "venv"))
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, str(source.resolve()))
    where = _run(str(python), "-I", "-c", "import resourcelease; print(resourcelease.__file__)").strip()
    if not Path(where).is_relative_to((home / "venv").resolve()):
        raise ReleaseError(f"{wanted} was installed, and {python} takes resourcelease from {where}")
    (home / _READY).write_text(f"{wanted}\n")
    _forget_others(home.parent)
    return python


def _key(wanted: str, root: Path) -> str:
    """What a release is kept under: its commit, or the digest of its wheel."""
    if wanted.endswith(".whl"):
        path = Path(wanted)
        if not path.is_file() or not zipfile.is_zipfile(path):
            raise ReleaseError(f"{wanted} is no wheel")
        return hashlib.sha256(path.read_bytes()).hexdigest()[:40]
    try:
        return _run("git", "-C", str(root), "rev-parse", "--verify", "--end-of-options", f"{wanted}^{{commit}}").strip()
    except ReleaseError as error:
        raise ReleaseError(f"there is no commit {wanted!r} in {root}, and it is no wheel") from error


def _source(wanted: str, directory: Path, root: Path) -> Path:
    """The files of a commit, and nothing that is not in it."""
    archive = directory.with_suffix(".tar")
    _run("git", "-C", str(root), "archive", "--output", str(archive), _key(wanted, root))
    directory.mkdir()
    _run("tar", "-xf", str(archive), "-C", str(directory))
    archive.unlink()
    return directory


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "resourcelease-drills"


def _forget_others(directory: Path) -> None:
    kept = sorted(directory.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in kept[_KEPT:]:
        shutil.rmtree(path, ignore_errors=True)


def _run(*words: str) -> str:
    done = _done(words)
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise ReleaseError(f"`{' '.join(words[:4])} ...`: {said[-1].strip()[:400] if said else done.returncode}")
    return done.stdout


def _done(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(words, check=False, capture_output=True, text=True, timeout=_INSTALL_S)
    except (FileNotFoundError, subprocess.TimeoutExpired) as error:
        raise ReleaseError(f"`{words[0]}`: {error}") from error
