"""What an entry of a version may hold. Whatever changes here needs a new version of entries: see docs/upgrades.md."""

import msgpack
import pytest

from resourcelease.machine import Machine, machine
from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import ENTRY_VERSION, OPS, SINCE, Call, Enqueue, pack_op

# The forms of version 1. They are in journals, and other releases of the same cluster read them: a form never changes,
# and what needs another one is a new op, with a new version.
_CALL = ("namespace", "peer", "principal", "operation_id", "take", "metadata")
_HANDLES = ("call", "sequence_ids", "attempts", "fences")
_EFFECT = ("call", "effect_id", "sequence_id", "attempt", "fence")
FORMS_1 = {
    1: ("call", "items"),
    2: ("call", "limit", "max_bytes"),
    3: _HANDLES,
    4: _HANDLES,
    5: (*_HANDLES, "requeue", "delays_ms", "failures"),
    6: (*_HANDLES, "untold"),
    7: ("call", "options"),
    8: ("call",),
    9: ("call",),
    10: ("call", "sequence_ids", "limit", "delay_ms"),
    11: ("call", "bundle_id", "page", "limit", "max_bytes", "include_active"),
    12: ("call", "page"),
    13: ("call", "change_id", "minimum", "maximum"),
    14: _EFFECT,
    15: (*_EFFECT, "result"),
}


def test_forms_of_ops_stay_as_they_are() -> None:
    assert Call._fields == _CALL
    assert {code: OPS[code]._fields for code in FORMS_1} == FORMS_1


def test_later_ops_say_with_which_version_they_came() -> None:
    assert set(SINCE) == set(OPS) - set(FORMS_1)
    assert all(1 < version <= ENTRY_VERSION for version in SINCE.values())


def entry(version: int) -> bytes:
    op = pack_op(Enqueue(Call("jobs"), ItemColumns(1, "table", "orders").packed()))
    return bytes(msgpack.packb([version, 0, 0, [op]]))


def test_an_op_that_is_newer_than_its_entry_is_refused_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # A release that reads version 2, in which the op is new.
    monkeypatch.setattr(machine, "ENTRY_VERSION", 2)
    monkeypatch.setattr(machine, "SINCE", {1: 2})
    here = Machine("cluster")
    applied = here.apply(1, 1, entry(1))
    (refusal,) = applied.results
    assert isinstance(refusal, Refusal)
    assert refusal.reason == Reason.CONFLICT
    assert "version 2" in refusal.message
    assert applied.records == []
    assert here.namespaces() == []
    assert not isinstance(here.apply(2, 1, entry(2)).results[0], Refusal)
    assert here.namespaces() == ["jobs"]


def test_an_older_release_refuses_a_newer_entry_whole() -> None:
    # Consensus stops a node before that.
    applied = Machine("cluster").apply(1, 1, entry(ENTRY_VERSION + 1))
    assert applied.refused is not None
    assert applied.records == []
