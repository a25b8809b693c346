"""The wire only grows: what was once declared keeps its number and its type, or leaves both reserved behind.

``wire_numbers.txt`` remembers every declaration there ever was. After adding some, write them down with

    RESOURCELEASE_REWRITE_GOLDEN=1 python -m pytest -n0 tests/contract/test_wire_stable.py

which adds lines and never drops one.
"""

import os
import re
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from wire_files import PACKAGE, described, enums, files, local, messages

NUMBERS = Path(__file__).parent / "wire_numbers.txt"
# Named by their bare words: they travel as strings.
UNPREFIXED_ENUMS = {"ErrorReason"}
# The event's own names for times, which it has everywhere else too.
TIMES_WITHOUT_UNIT = {"Event.occurred_at", "Event.lease_clock"}


def lines(declared: Iterable[FileDescriptorProto]) -> Iterator[str]:
    """One line for everything that travels: numbers and types of fields, numbers of values, shapes of methods."""
    for file in declared:
        for message in file.message_type:
            yield from (f"field {message.name}.{field.name} = {field.number} {shape(field)}" for field in message.field)
        for enum in file.enum_type:
            yield from (f"value {enum.name}.{value.name} = {value.number}" for value in enum.value)
        for service in file.service:
            for method in service.method:
                asked = "stream " * method.client_streaming + method.input_type.rpartition(".")[2]
                answered = "stream " * method.server_streaming + method.output_type.rpartition(".")[2]
                yield f"method {service.name}.{method.name} = ({asked}) returns ({answered})"


def kind(field: FieldDescriptorProto) -> str:
    """The word for a field's type in a .proto file; "message" and "enum" for those."""
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def shape(field: FieldDescriptorProto) -> str:
    """What a field's number means on the wire and to generated code."""
    words = [field.type_name.rpartition(".")[2] or kind(field)]
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        words.insert(0, "repeated")
    elif field.proto3_optional:
        words.insert(0, "optional")
    elif field.HasField("oneof_index"):
        words.insert(0, "oneof")
    return " ".join(words)


def broken(known: Iterable[str], declared: Iterable[FileDescriptorProto]) -> list[str]:
    """Lines that were true once, are not any more, and left nothing reserved in their place."""
    declared = list(declared)
    now = set(lines(declared))
    owners: dict[str, DescriptorProto | EnumDescriptorProto] = {}
    for file in declared:
        owners |= {message.name: message for message in file.message_type}
        owners |= {enum.name: enum for enum in file.enum_type}
    return [line for line in known if line not in now and not is_reserved(line, owners)]


def is_reserved(line: str, owners: dict[str, DescriptorProto | EnumDescriptorProto]) -> bool:
    """Whether the name and the number of a field or value that is gone are both kept from new use."""
    match = re.match(r"(?:field|value) (\w+)\.(\w+) = (\d+)", line)
    owner = owners.get(match[1]) if match else None
    if match is None or owner is None:
        return False
    name, number = match[2], int(match[3])
    # The end of a range is left out in messages, and belongs to it in enums.
    beyond = isinstance(owner, DescriptorProto)
    ranges = ((range_.start, range_.end - beyond) for range_ in owner.reserved_range)
    return name in owner.reserved_name and any(first <= number <= last for first, last in ranges)


def known_lines() -> list[str]:
    return NUMBERS.read_text().splitlines() if NUMBERS.exists() else []


def test_nothing_that_was_declared_changes() -> None:
    assert broken(known_lines(), files()) == []


def test_everything_declared_is_written_down() -> None:
    known = known_lines()
    new = [line for line in lines(files()) if line not in known]
    if os.environ.get("RESOURCELEASE_REWRITE_GOLDEN"):
        NUMBERS.write_text("\n".join(sorted([*known, *new])) + "\n")
        new = []
    assert new == [], "if this is meant, see the docstring of this module"


BEFORE = """
    message A {
      string name = 1;
      int64 size = 2;
    }
    enum E {
      E_UNSPECIFIED = 0;
      E_ONE = 1;
    }
    service S {
      rpc M(A) returns (A);
    }
"""


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("int64 size = 2;", "int64 size = 2; bytes more = 3;", []),
        ("int64 size = 2;", "reserved 2; reserved 'size';", []),
        ("E_ONE = 1;", "reserved 1; reserved 'E_ONE';", []),
        ("int64 size = 2;", "", ["field A.size = 2 int64"]),
        ("int64 size = 2;", "reserved 2;", ["field A.size = 2 int64"]),
        ("int64 size = 2;", "reserved 3; reserved 'size';", ["field A.size = 2 int64"]),
        ("int64 size = 2;", "int64 size = 3;", ["field A.size = 2 int64"]),
        ("int64 size = 2;", "string size = 2;", ["field A.size = 2 int64"]),
        ("int64 size = 2;", "optional int64 size = 2;", ["field A.size = 2 int64"]),
        ("int64 size = 2;", "int64 length = 2;", ["field A.size = 2 int64"]),
        ("E_ONE = 1;", "E_ONE = 2;", ["value E.E_ONE = 1"]),
        ("E_ONE = 1;", "reserved 2; reserved 'E_ONE';", ["value E.E_ONE = 1"]),
        ("returns (A)", "returns (stream A)", ["method S.M = (A) returns (A)"]),
    ],
)
def test_a_change_that_breaks_readers_is_found(tmp_path: Path, old: str, new: str, lost: list[str]) -> None:
    head = 'syntax = "proto3";\npackage grown;\n'
    (tmp_path / "grown.proto").write_text(head + textwrap.dedent(BEFORE))
    known = list(lines(described(tmp_path)))
    (tmp_path / "grown.proto").write_text(head + textwrap.dedent(BEFORE).replace(old, new.replace("'", '"')))
    assert broken(known, described(tmp_path)) == lost


@pytest.mark.parametrize("name", enums())
def test_enum_values_are_prefixed_and_start_unspecified(name: str) -> None:
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    first, *others = enums()[name].value
    assert (first.name, first.number) == (f"{prefix}_UNSPECIFIED", 0)
    if name not in UNPREFIXED_ENUMS:
        assert [value.name for value in others if not value.name.startswith(f"{prefix}_")] == []


@pytest.mark.parametrize("name", messages())
def test_times_are_whole_milliseconds_and_say_so(name: str) -> None:
    for field in messages()[name].field:
        named = field.name.endswith("_ms") or f"{name}.{field.name}" in TIMES_WITHOUT_UNIT
        assert not named or field.type == FieldDescriptorProto.TYPE_INT64, field.name
        assert named or not re.search(r"(^|_)(at|time|clock|duration|deadline|delay)$", field.name), field.name


@pytest.mark.parametrize("name", messages())
def test_numbers_are_of_few_kinds(name: str) -> None:
    allowed = {"string", "bytes", "bool", "int32", "int64", "enum", "message"}
    assert {kind(field) for field in messages()[name].field} <= allowed


def test_files_stand_where_their_package_says_and_agree_on_options() -> None:
    assert {(file.package, Path(file.name).parent.as_posix(), file.syntax) for file in files()} == {
        (PACKAGE, PACKAGE.replace(".", "/"), "proto3")
    }
    assert len({file.options.SerializeToString(deterministic=True) for file in files()}) == 1


def test_messages_are_not_nested() -> None:
    nested = [one.name for message in messages().values() for one in message.nested_type if not one.options.map_entry]
    assert nested == []
    assert all(not message.enum_type for message in messages().values())


def test_every_message_is_used() -> None:
    used = {local(field.type_name) for message in messages().values() for field in message.field if field.type_name}
    used |= {
        local(name)
        for file in files()
        for service in file.service
        for method in service.method
        for name in (method.input_type, method.output_type)
    }
    maps = {f"{message.name}.{nested.name}" for message in messages().values() for nested in message.nested_type}
    # Not part of any service: it travels before one is spoken.
    beginnings = {"DirectOpen"}
    assert (used | beginnings) - maps - enums().keys() == messages().keys()
