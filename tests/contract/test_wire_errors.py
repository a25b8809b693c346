"""The reasons of a no are stable, are the same everywhere, and each says what to do."""

import grpc
import pytest
from wire_files import ROOT, comment_of, enums, fields

from resourcelease.model.errors import Reason
from resourcelease.v1 import ErrorReason

STATUS = {
    "LEASE_LOST": grpc.StatusCode.FAILED_PRECONDITION,
    "ALREADY_SETTLED": grpc.StatusCode.FAILED_PRECONDITION,
    "QUEUE_FULL": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "BACKPRESSURE": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "NO_LEADER": grpc.StatusCode.UNAVAILABLE,
    "OUTCOME_UNKNOWN": grpc.StatusCode.UNKNOWN,
    "INVALID_ARGUMENT": grpc.StatusCode.INVALID_ARGUMENT,
    "PEER_UNHEALTHY": grpc.StatusCode.FAILED_PRECONDITION,
    "PAUSED": grpc.StatusCode.FAILED_PRECONDITION,
    "NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "CONFLICT": grpc.StatusCode.ALREADY_EXISTS,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "FORBIDDEN": grpc.StatusCode.PERMISSION_DENIED,
}
WITH_RETRY_INFO = {"QUEUE_FULL", "BACKPRESSURE", "NO_LEADER"}


def test_the_reasons_are_those_of_the_contract() -> None:
    assert [value.name for value in enums()["ErrorReason"].value] == ["ERROR_REASON_UNSPECIFIED", *STATUS]


def test_the_machine_says_no_for_the_same_reasons() -> None:
    assert {str(reason) for reason in Reason} == STATUS.keys()


@pytest.mark.parametrize("reason", STATUS)
def test_a_reason_starts_with_its_status(reason: str) -> None:
    status, _, rest = comment_of(f"ErrorReason.{reason}").partition(".")
    expected = STATUS[reason].name + (", with RetryInfo" if reason in WITH_RETRY_INFO else "")
    assert status.removesuffix(", with the path of the field, such as `items[3]") == expected
    assert len(rest.split()) > 5, "says what it means and what to do"


@pytest.mark.parametrize("reason", STATUS)
def test_the_page_about_the_wire_gives_reason_and_status(reason: str) -> None:
    rows = [line for line in (ROOT / "docs" / "wire.md").read_text().splitlines() if line.startswith(f"| `{reason}`")]
    assert len(rows) == 1
    assert STATUS[reason].name in rows[0]


def test_an_item_error_carries_reason_message_field_and_wait() -> None:
    declared = fields("ItemError")
    assert list(declared) == ["reason", "message", "field", "retry_after_ms"]
    assert declared["retry_after_ms"].proto3_optional, "absent and zero differ"


def test_a_reason_goes_by_its_name() -> None:
    assert ErrorReason.Name(ErrorReason.Value("LEASE_LOST")) == Reason.LEASE_LOST
