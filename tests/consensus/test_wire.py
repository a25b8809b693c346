from contextlib import suppress

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resourcelease.consensus.entries import Origin, decode_members, decode_ops, encode_members, encode_ops, join_ops
from resourcelease.consensus.wire import Chunk, Message, WireError, decode, encode

MESSAGES: list[Message] = [
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 7,
        "entries": [(b"\x00a", 6, 2), (b"\x01", 7, 3)],
        "prevLogIdx": 5,
        "prevLogTerm": 2,
    },
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 0,
        "entries": [],
        "prevLogIdx": None,
        "prevLogTerm": None,
    },
    {"type": "append_entries", "term": 3, "commit_index": 0, "serialized": None},
    {
        "type": "append_entries",
        "term": 3,
        "commit_index": 0,
        "serialized": Chunk(1, 2, True, 0, 9, 3, [(b"\x00", 8, 3), (b"\x01", 9, 3)], [(b"k", b"v")], b"digest"),
    },
    {"type": "next_node_idx", "term": 3, "next_node_idx": 8, "reset": False, "success": True, "counts": True},
    {"type": "next_node_idx", "term": 3, "next_node_idx": 8, "reset": False, "success": True, "counts": False},
    {"type": "request_vote", "term": 3, "last_log_index": 8, "last_log_term": 2},
    {"type": "response_vote", "term": 3},
    {"type": "timeout_now", "term": 3},
    {"type": "propose", "incarnation": 5, "proposals": [(1, 2, b"ops"), (2, 0, b"")]},
    {"type": "admin", "number": 1, "action": "add", "node": "n4", "address": "host:1"},
    {"type": "admin_done", "number": 1, "refusal": ""},
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: str(message["type"]))
def test_messages_come_back_as_they_were(message: Message) -> None:
    assert decode(encode(message)) == message


@given(st.binary(max_size=200))
def test_bytes_are_a_message_or_an_error(frame: bytes) -> None:
    with suppress(WireError):
        decode(frame)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**63) | st.binary(max_size=5) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=9),
    max_leaves=12,
)


@given(st.integers(0, 9), st.lists(values, max_size=9))
def test_wrong_fields_are_an_error_and_never_a_surprise(kind: int, fields: list[object]) -> None:
    try:
        message = decode(msgpack.packb([kind, *fields]))
    except WireError:
        return
    assert decode(encode(message)) == message


def test_an_entry_joins_the_ops_of_several_nodes() -> None:
    origins = [Origin("n1", 7, 1, 2), Origin("n2", 9, 4, 1)]
    command = encode_ops(origins, 123, 456, [join_ops([b"a", b"b"]), join_ops([b"c"])])
    assert decode_ops(command)[0] == origins
    assert msgpack.unpackb(decode_ops(command)[1]) == [1, 123, 456, [b"a", b"b", b"c"]]


def test_clock_and_wall_stand_at_fixed_places() -> None:
    for clock in (0, 1, 2**40):
        _, entry = decode_ops(encode_ops([], clock, clock + 1, []))
        assert (entry[:2], entry[2], int.from_bytes(entry[3:11], "big")) == (b"\x94\x01", 0xCF, clock)
        assert (entry[11], int.from_bytes(entry[12:20], "big")) == (0xCF, clock + 1)


def test_a_configuration_survives_its_entry() -> None:
    members = {"n1": "host:1", "n2": "[::1]:2"}
    assert decode_members(encode_members(members)) == members
