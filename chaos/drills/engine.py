"""A Docker engine as the drills use it: its command line, and images made from a source tree of ours."""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["BASE_SWITCH", "EngineError", "build_image", "compose", "compose_words", "docker", "spawn", "why_no_engine"]

ROOT = Path(__file__).parents[2]
# Which image nodes are built upon, where not the Dockerfile's own.
BASE_SWITCH = "DRILL_BASE_IMAGE"
_REPOSITORY = "resourcelease-drills"
_CONTEXT = ("cluster", "pyproject.toml", "README.md", "LICENSE")
_DOCKER = ("deploy/docker/Dockerfile", "deploy/docker/healthcheck.py")
_ORDER_S = 60.0
_BUILD_S = 900.0
_LOOK_S = 10.0


class EngineError(OSError):
    """What the engine said no to, in one line."""


def docker(*words: str, seconds: float = _ORDER_S) -> str:
    """Runs ``docker``; what it prints."""
    return _run(["docker", *words], seconds)


def compose(*words: str, seconds: float = _ORDER_S) -> str:
    """Runs Docker Compose, whichever way it is installed."""
    return _run([*compose_words(), *words], seconds)


def spawn(*words: str, log: Path | None = None) -> "subprocess.Popen[bytes]":
    """Runs ``docker`` without waiting for it; in a group of its own, so that Ctrl-C reaches us alone."""
    if log is None:
        out = subprocess.DEVNULL
        return subprocess.Popen(
            ["docker", *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    with log.open("ab") as opened:
        return subprocess.Popen(
            ["docker", *words], stdin=subprocess.DEVNULL, stdout=opened, stderr=opened, start_new_session=True
        )


def why_no_engine() -> str:
    """Why containers cannot be used here; empty if they can."""
    if shutil.which("docker") is None:
        return "there is no `docker` here"
    try:
        docker("version", "--format", "{{.Server.Version}}", seconds=_LOOK_S)
    except EngineError as error:
        return f"no Docker engine answers ({error}); start one, or name it by DOCKER_HOST"
    return "" if compose_words() else "there is neither `docker compose` nor `docker-compose` here"


@functools.cache
def compose_words() -> tuple[str, ...]:
    """What Docker Compose is called here; nothing if it is not here."""
    for words in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(words[0]) is not None:
            done = subprocess.run([*words, "version"], check=False, capture_output=True)
            if done.returncode == 0:
                return words
    return ()


def build_image(source: Path = ROOT) -> str:
    """The image of a source tree, by the Dockerfile of this one; made once for each state of the sources.

    The wheels are made here, with this machine's pip and its settings, so the build itself needs no network.
    """
    tag = f"{_REPOSITORY}:{_digest(source)}"
    if docker("image", "ls", "--quiet", tag):
        return tag
    with tempfile.TemporaryDirectory(prefix="resourcelease-image-") as directory:
        context = Path(directory)
        for name in _DOCKER:
            (context / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, context / name)
        wheels = context / "deploy" / "docker" / "wheels"
        pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--wheel-dir", str(wheels), str(source)], _BUILD_S)
        words = ["build", "--quiet", "--tag", tag, "--file", str(context / _DOCKER[0])]
        if base := os.environ.get(BASE_SWITCH):
            words += ["--build-arg", f"BASE={base}"]
        docker(*words, str(context), seconds=_BUILD_S)
    return tag


def _digest(source: Path) -> str:
    digest = hashlib.sha256(os.environ.get(BASE_SWITCH, "").encode())
    for path in _files(source):
        digest.update(f"{path.name}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files(source: Path) -> Iterator[Path]:
    for name in _DOCKER:
        yield ROOT / name
    for name in _CONTEXT:
        path = source / name
        if path.is_dir():
            yield from sorted(each for each in path.rglob("*") if each.suffix in (".py", ".pyi", ".typed"))
        elif path.exists():
            yield path


def _run(words: Sequence[str], seconds: float) -> str:
    try:
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as error:
        raise EngineError(f"`{' '.join(words[:3])} ...` took longer than {seconds:g} s") from error
    if done.returncode:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise EngineError(f"`{' '.join(words[:3])} ...`: {said[-1].strip()[:400] if said else done.returncode}")
    return done.stdout.strip()
