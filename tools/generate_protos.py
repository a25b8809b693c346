"""Generates cluster/resourcelease/v1 from protos/, or checks that it is what protos/ would give.

    python tools/generate_protos.py            # write
    python tools/generate_protos.py --check    # write nothing; exit 1 and name what is stale

The output depends on the .proto files and on the versions of the generators, and on nothing else, so it is compared
byte for byte. For that the generators must be the ones pinned in pyproject.toml; others are refused.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
SOURCES = ROOT / "cluster"
# The proto package as a folder, below PROTOS and below SOURCES alike: that is what makes the generated imports work.
PACKAGE = Path("resourcelease/v1")
GENERATORS = ("grpcio-tools", "mypy-protobuf")
COMMAND = "make proto"


class Unusable(Exception):
    """Generating cannot work here; the message says why and what to do."""


def main() -> int:
    """Runs as the module's docstring says; 0 fine, 1 stale or impossible, 2 wrong usage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="compare only; exit 1 if anything is stale")
    parser.add_argument("--protos", type=Path, default=PROTOS, help="the proto tree (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=SOURCES, help="the source root (default: %(default)s)")
    asked = parser.parse_args()
    try:
        require_pinned_generators()
        with tempfile.TemporaryDirectory() as scratch:
            fresh = generate(asked.protos.resolve(), Path(scratch))
    except Unusable as reason:
        print(f"generate_protos: {reason}", file=sys.stderr)
        return 1
    target = asked.out / PACKAGE
    if not asked.check:
        write(fresh, target)
        print(f"{len(fresh)} files in {target}")
        return 0
    problems = list(differences(fresh, target))
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems:
        print(f"The generated code does not match protos/; run: {COMMAND}", file=sys.stderr)
    return 1 if problems else 0


def require_pinned_generators() -> None:
    """Refuses generators other than those that pyproject.toml pins: their output would differ."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    pins = dict(extra.split("==") for extra in extras if "==" in extra)
    for name in GENERATORS:
        try:
            installed = version(name)
        except PackageNotFoundError:
            installed = "none"
        if installed != pins[name]:
            raise Unusable(f"needs {name} {pins[name]}, found {installed}; run: make setup")


def generate(protos: Path, scratch: Path) -> dict[str, bytes]:
    """The content of every generated file, by name, made in the empty folder ``scratch``."""
    names = sorted(path.relative_to(protos).as_posix() for path in (protos / PACKAGE).glob("*.proto"))
    if not names:
        raise Unusable(f"there are no .proto files in {protos / PACKAGE}")
    files = descriptors(protos, names, scratch)
    messages: list[str | Path] = ["--python_out", scratch, "--mypy_out", f"quiet:{scratch}"]
    protoc(protos, messages, names)
    services: list[str | Path] = ["--grpc_python_out", scratch, "--mypy_grpc_out", f"quiet:{scratch}"]
    protoc(protos, services, [file.name for file in files if file.service])
    package = scratch / PACKAGE
    (package / "__init__.py").write_text(package_module(files))
    return {path.name: path.read_bytes() for path in package.iterdir()}


def descriptors(protos: Path, names: list[str], scratch: Path) -> list[FileDescriptorProto]:
    """What the files declare, in the order of their names."""
    with tempfile.NamedTemporaryFile(dir=scratch) as out:
        protoc(protos, ["--descriptor_set_out", out.name], names)
        return sorted(FileDescriptorSet.FromString(out.read()).file, key=lambda file: file.name)


def protoc(protos: Path, options: list[str | Path], names: list[str]) -> None:
    """Runs the compiler of grpcio-tools, with the plugins installed beside this interpreter."""
    scripts = Path(sysconfig.get_path("scripts"))
    plugins = [f"--plugin={name}={scripts / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(protos), *plugins, *map(str, options), *names]
    # No bytecode: the folder that protoc works in must end up with generated files alone.
    done = subprocess.run(command, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        raise Unusable(f"protoc failed:\n{done.stderr or done.stdout}".rstrip())


def package_module(files: list[FileDescriptorProto]) -> str:
    """An ``__init__.py`` that gives every message and enum under the package's own name."""
    lines = [
        '"""The messages of the wire contract, generated from protos/. Do not edit.',
        "",
        "Services are in the modules ``*_pb2_grpc``.",
        '"""',
        "",
    ]
    exported: list[str] = []
    for file in files:
        names = sorted([message.name for message in file.message_type] + [enum.name for enum in file.enum_type])
        module = file.name.removesuffix(".proto").replace("/", ".") + "_pb2"
        if names:
            lines += [f"from {module} import (", *(f"    {name}," for name in names), ")"]
        exported += names
    lines += ["", "__all__ = [", *(f'    "{name}",' for name in sorted(exported)), "]", ""]
    return "\n".join(lines)


def write(fresh: dict[str, bytes], target: Path) -> None:
    """Makes ``target`` hold the fresh files and nothing else."""
    target.mkdir(parents=True, exist_ok=True)
    for path in files_in(target):
        if path.name not in fresh and path.is_file():
            path.unlink()
    for name, content in fresh.items():
        path = target / name
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


def differences(fresh: dict[str, bytes], target: Path) -> Iterator[str]:
    """One line for each file of ``target`` that is missing, differs, or should not be there."""
    present = {path.name for path in files_in(target)}
    for name in sorted(fresh.keys() | present):
        path = target / name
        if name not in present:
            yield f"missing: {path}"
        elif name not in fresh:
            yield f"left over: {path}"
        elif path.read_bytes() != fresh[name]:
            yield f"stale: {path}"


def files_in(target: Path) -> list[Path]:
    """Everything in the folder but what Python caches there."""
    return [path for path in target.iterdir() if path.name != "__pycache__"] if target.is_dir() else []


if __name__ == "__main__":
    sys.exit(main())
