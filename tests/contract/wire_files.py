"""The wire contract as its tests see it: what protos/ declares, with the comments, read by the compiler itself."""

import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

ROOT = Path(__file__).resolve().parents[2]
PROTOS = ROOT / "protos"
PACKAGE = "resourcelease.v1"

# Numbers of fields in descriptor.proto: how source locations name what they are about.
_FILE_MESSAGE, _FILE_ENUM, _FILE_SERVICE = 4, 5, 6
_MESSAGE_FIELD, _MESSAGE_NESTED, _MESSAGE_ENUM, _MESSAGE_ONEOF = 2, 3, 4, 8
_ENUM_VALUE, _SERVICE_METHOD = 2, 2


class Declared(NamedTuple):
    """One declaration of the contract, its full name, and the comment that stands above it."""

    kind: str
    name: str
    comment: str


@functools.cache
def files() -> tuple[FileDescriptorProto, ...]:
    """All files of the contract."""
    return described(PROTOS)


def described(protos: Path) -> tuple[FileDescriptorProto, ...]:
    """All files of a proto tree, with their comments."""
    names = sorted(path.relative_to(protos).as_posix() for path in protos.rglob("*.proto"))
    assert names, f"no .proto files in {protos}"
    with tempfile.NamedTemporaryFile() as out:
        options = ["-I", str(protos), "--include_source_info", "--descriptor_set_out", out.name]
        subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *names], check=True)
        return tuple(FileDescriptorSet.FromString(out.read()).file)


def declared(file: FileDescriptorProto) -> Iterator[Declared]:
    """Every service, method, message, field, oneof, enum and enum value of a file, from the top down."""
    comments = {tuple(place.path): place.leading_comments.strip() for place in file.source_code_info.location}

    def at(kind: str, name: str, *path: int) -> Declared:
        return Declared(kind, name, comments.get(path, ""))

    def enum_at(enum: EnumDescriptorProto, name: str, *path: int) -> Iterator[Declared]:
        yield at("enum", name, *path)
        for place, value in enumerate(enum.value):
            yield at("value", f"{name}.{value.name}", *path, _ENUM_VALUE, place)

    def message_at(message: DescriptorProto, name: str, *path: int) -> Iterator[Declared]:
        yield at("message", name, *path)
        for place, field in enumerate(message.field):
            yield at("field", f"{name}.{field.name}", *path, _MESSAGE_FIELD, place)
        for place, oneof in enumerate(message.oneof_decl):
            if not oneof.name.startswith("_"):  # what the compiler makes of an optional field
                yield at("oneof", f"{name}.{oneof.name}", *path, _MESSAGE_ONEOF, place)
        for place, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                yield from message_at(nested, f"{name}.{nested.name}", *path, _MESSAGE_NESTED, place)
        for place, enum in enumerate(message.enum_type):
            yield from enum_at(enum, f"{name}.{enum.name}", *path, _MESSAGE_ENUM, place)

    for place, service in enumerate(file.service):
        yield at("service", service.name, _FILE_SERVICE, place)
        for number, method in enumerate(service.method):
            yield at("method", f"{service.name}.{method.name}", _FILE_SERVICE, place, _SERVICE_METHOD, number)
    for place, message in enumerate(file.message_type):
        yield from message_at(message, message.name, _FILE_MESSAGE, place)
    for place, enum in enumerate(file.enum_type):
        yield from enum_at(enum, enum.name, _FILE_ENUM, place)


def comment_of(name: str) -> str:
    """The comment above the declaration of that name."""
    return next(one.comment for file in files() for one in declared(file) if one.name == name)


def messages() -> dict[str, DescriptorProto]:
    """The messages of the contract. None is nested but map entries."""
    return {message.name: message for file in files() for message in file.message_type}


def enums() -> dict[str, EnumDescriptorProto]:
    """The enums of the contract."""
    return {enum.name: enum for file in files() for enum in file.enum_type}


def methods() -> dict[str, MethodDescriptorProto]:
    """The methods of the contract, as ``Service.Method``."""
    return {
        f"{service.name}.{method.name}": method
        for file in files()
        for service in file.service
        for method in service.method
    }


def fields(message: str) -> dict[str, FieldDescriptorProto]:
    """The fields of a message by name."""
    return {field.name: field for field in messages()[message].field}


def local(type_name: str) -> str:
    """A type's name without the package: what ``messages`` and ``enums`` call it."""
    return type_name.removeprefix(f".{PACKAGE}.")
