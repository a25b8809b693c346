"""The generated code is what protos/ gives; the check that says so notices when it is not."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from wire_files import PROTOS, ROOT

GENERATED = ROOT / "cluster" / "resourcelease" / "v1"
PACKAGE = Path("resourcelease/v1")


def generator(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "generate_protos.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A source root whose generated code is that of the checkout, to be spoilt."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(GENERATED, tmp_path / PACKAGE, ignore=ignored)).parents[1]


def test_generated_code_is_fresh() -> None:
    done = generator("--check")
    assert done.returncode == 0, done.stderr


def edit(folder: Path) -> None:
    path = folder / "common_pb2.py"
    path.write_bytes(path.read_bytes() + b"\n")


def remove(folder: Path) -> None:
    (folder / "event_pb2.pyi").unlink()


def leave_over(folder: Path) -> None:
    (folder / "retired_pb2.py").write_text("")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (edit, "stale: {}/common_pb2.py"),
        (remove, "missing: {}/event_pb2.pyi"),
        (leave_over, "left over: {}/retired_pb2.py"),
    ],
)
def test_the_check_names_what_is_wrong_and_the_command(copy: Path, spoil: Callable[[Path], None], said: str) -> None:
    spoil(copy / PACKAGE)
    done = generator("--check", "--out", copy)
    assert done.returncode == 1
    first, last = done.stderr.splitlines()
    assert first == said.format(copy / PACKAGE)
    assert "make proto" in last


def test_the_check_writes_nothing(copy: Path) -> None:
    edit(copy / PACKAGE)
    before = {path.name: path.read_bytes() for path in (copy / PACKAGE).iterdir()}
    generator("--check", "--out", copy)
    assert {path.name: path.read_bytes() for path in (copy / PACKAGE).iterdir()} == before


def test_generating_repairs_and_is_the_same_each_time(copy: Path) -> None:
    for spoil in (edit, remove, leave_over):
        spoil(copy / PACKAGE)
    assert generator("--out", copy).returncode == 0
    repaired = {path.name: path.read_bytes() for path in (copy / PACKAGE).iterdir()}
    assert repaired == {path.name: path.read_bytes() for path in GENERATED.iterdir() if path.is_file()}


def test_a_changed_proto_makes_the_generated_code_stale(copy: Path, tmp_path: Path) -> None:
    protos = Path(shutil.copytree(PROTOS, tmp_path / "protos"))
    changed = protos / PACKAGE / "common.proto"
    changed.write_text(changed.read_text().replace("int64 pending = 1;", "int64 waiting = 1;"))
    done = generator("--check", "--protos", protos, "--out", copy)
    assert done.returncode == 1
    assert f"stale: {copy / PACKAGE / 'common_pb2.py'}" in done.stderr.splitlines()


def test_a_proto_that_does_not_compile_is_an_error_of_one_command(tmp_path: Path) -> None:
    (tmp_path / PACKAGE).mkdir(parents=True)
    (tmp_path / PACKAGE / "wrong.proto").write_text('syntax = "proto3"; message {}')
    done = generator("--check", "--protos", tmp_path)
    assert done.returncode == 1
    assert "wrong.proto" in done.stderr
    assert "Traceback" not in done.stderr
