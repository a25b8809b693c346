"""A client author works from the comments alone, so there is one above everything."""

import textwrap
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from wire_files import declared, described, files

KINDS = {"service", "method", "message", "field", "oneof", "enum", "value"}


def uncommented(file: FileDescriptorProto) -> list[str]:
    return [f"{one.kind} {one.name}" for one in declared(file) if not one.comment]


@pytest.mark.parametrize("file", files(), ids=lambda file: Path(file.name).stem)
def test_everything_has_a_comment(file: FileDescriptorProto) -> None:
    assert uncommented(file) == []


@pytest.mark.parametrize("file", files(), ids=lambda file: Path(file.name).stem)
def test_comments_are_sentences(file: FileDescriptorProto) -> None:
    assert [one.name for one in declared(file) if one.comment and one.comment[-1] not in ".:"] == []


def test_the_contract_has_declarations_of_every_kind() -> None:
    assert {one.kind for file in files() for one in declared(file)} == KINDS


def test_a_missing_comment_is_found_wherever_it_is_missing(tmp_path: Path) -> None:
    source = """
        syntax = "proto3";
        package bare;
        service S {
          rpc M(A) returns (A);
        }
        // Said.
        message A {
          // Said.
          string said = 1;
          string f = 2; // Beside it does not count.
          oneof o {
            // Said.
            string said_too = 3;
          }
          message N {
            int32 g = 1;
          }
          enum F {
            F_UNSPECIFIED = 0;
          }
          map<string, string> m = 4;
          optional int32 p = 5;
        }
        enum E {
          // Said.
          E_UNSPECIFIED = 0;
          E_ONE = 1;
        }
    """
    (tmp_path / "bare.proto").write_text(textwrap.dedent(source))
    (file,) = described(tmp_path)
    assert set(uncommented(file)) == {
        "service S",
        "method S.M",
        "field A.f",
        "oneof A.o",
        "field A.m",
        "field A.p",
        "message A.N",
        "field A.N.g",
        "enum A.F",
        "value A.F.F_UNSPECIFIED",
        "enum E",
        "value E.E_ONE",
    }
