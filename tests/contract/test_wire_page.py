"""The examples in docs/wire.md are calls and answers of this contract."""

import json
import re
from typing import NamedTuple

import pytest
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from wire_files import ROOT

from resourcelease.v1 import EnqueueRequest, ErrorReason
from resourcelease.v1.lease_service_pb2 import DESCRIPTOR

_EXAMPLE = re.compile(
    r"^```console\n\$ grpcurl -plaintext -d '(?P<asked>[^']*)'[ \\\n]+"
    r"\S+ resourcelease\.v1\.LeaseService/(?P<method>\w+)\n(?P<answered>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


class Example(NamedTuple):
    method: str
    asked: str
    answered: str


def examples() -> list[Example]:
    page = (ROOT / "docs" / "wire.md").read_text()
    return [Example(match["method"], match["asked"], match["answered"]) for match in _EXAMPLE.finditer(page)]


def parsed(text: str, message: Message) -> Message:
    return ParseDict(json.loads(text), message)


def test_every_example_is_read() -> None:
    assert len(examples()) == (ROOT / "docs" / "wire.md").read_text().count("```console") == 5


@pytest.mark.parametrize("example", examples(), ids=lambda example: example.method)
def test_an_example_is_a_call_and_its_answer(example: Example) -> None:
    method = DESCRIPTOR.services_by_name["LeaseService"].methods_by_name[example.method]
    asked = parsed(example.asked, GetMessageClass(method.input_type)())
    answered = parsed(example.answered, GetMessageClass(method.output_type)())
    assert asked.operation_id  # type: ignore[attr-defined]
    assert answered.HasField("position")
    for result in getattr(answered, "results", ()):
        if result.HasField("error"):
            assert ErrorReason.Value(result.error.reason)


def test_an_example_with_a_field_that_does_not_exist_is_found() -> None:
    with pytest.raises(ParseError):
        parsed('{"item": []}', EnqueueRequest())
