"""Messages between nodes as bytes: one msgpack array each, its first element the kind. Nothing else is ever decoded.

Inside the house a message is the dict that the library makes; here stands which fields of it travel.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgpack

__all__ = ["PROTOCOL_VERSION", "Chunk", "Message", "WireError", "decode", "encode"]

PROTOCOL_VERSION = 1

Message = dict[str, Any]

_APPEND, _SNAPSHOT, _NEXT, _ASK_VOTE, _VOTE, _TIMEOUT_NOW, _PROPOSE, _ADMIN, _ADMIN_DONE, _ASK, _ANSWER = range(11)


class WireError(Exception):
    """Bytes that no node of this protocol version sends; the connection they came by is closed."""


class Chunk(NamedTuple):
    """A piece of a snapshot. The library reads the third field, whether it is the last; the rest is ours."""

    # Which run of the sender, and which of its snapshots: chunks of two never mix.
    incarnation: int
    snapshot: int
    last: bool
    # Counts from 0 without a gap.
    number: int
    # The log position that the rows stand for.
    log_index: int
    log_term: int
    # With chunk 0: the last two entries that the snapshot covers, as (command, index, term).
    head: list[tuple[bytes, int, int]]
    rows: list[tuple[bytes, bytes]]
    # With the last chunk: over all rows.
    digest: bytes


def encode(message: Message) -> bytes:
    """Packs a message of the library or of ours."""
    packed: bytes = msgpack.packb(_PACKERS[message["type"]](message))
    return packed


def decode(frame: bytes) -> Message:
    """Unpacks and checks one frame; raises ``WireError`` on anything unexpected."""
    try:
        fields = msgpack.unpackb(frame, use_list=True, strict_map_key=True)
        kind, *rest = fields
        return _UNPACKERS[kind](rest)
    except WireError:
        raise
    except Exception as error:  # msgpack and the unpackers raise many kinds, all of which mean the same here
        raise WireError(f"a frame of {len(frame)} bytes is not a message: {error!r}") from error


def _pack_append(message: Message) -> list[Any]:
    if "serialized" in message:
        chunk = message["serialized"]
        return [_SNAPSHOT, message["term"], message["commit_index"], None if chunk is None else list(chunk)]
    entries = [(term, command) for command, _, term in message["entries"]]
    return [
        _APPEND,
        message["term"],
        message["commit_index"],
        message["prevLogIdx"],
        message["prevLogTerm"],
        entries,
    ]


def _int(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise WireError(f"{value!r} where a count was expected")
    return value


def _bytes(value: Any) -> bytes:
    if type(value) is not bytes:
        raise WireError(f"{type(value).__name__} where bytes were expected")
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise WireError(f"{type(value).__name__} where text was expected")
    return value


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise WireError(f"{value!r} where yes or no was expected")
    return value


def _unpack_append(fields: list[Any]) -> Message:
    term, commit, prev_index, prev_term, packed = fields
    message = {
        "type": "append_entries",
        "term": _int(term),
        "commit_index": _int(commit),
        "entries": [],
        "prevLogIdx": None if prev_index is None else _int(prev_index),
        "prevLogTerm": None if prev_term is None else _int(prev_term),
    }
    if packed:
        first = _int(prev_index) + 1
        message["entries"] = [
            (_command(command), first + offset, _int(entry_term)) for offset, (entry_term, command) in enumerate(packed)
        ]
    return message


def _command(value: Any) -> bytes:
    if not _bytes(value):
        raise WireError("an entry without a kind")
    return bytes(value)


def _unpack_snapshot(fields: list[Any]) -> Message:
    term, commit, packed = fields
    chunk = None
    if packed is not None:
        incarnation, snapshot, last, number, index, chunk_term, head, rows, digest = packed
        chunk = Chunk(
            _int(incarnation),
            _int(snapshot),
            _bool(last),
            _int(number),
            _int(index),
            _int(chunk_term),
            [(_command(command), _int(at), _int(entry_term)) for command, at, entry_term in head],
            [(_bytes(key), _bytes(value)) for key, value in rows],
            _bytes(digest),
        )
    return {"type": "append_entries", "term": _int(term), "commit_index": _int(commit), "serialized": chunk}


def _pack_next(message: Message) -> list[Any]:
    told = [_NEXT, message["term"], message["next_node_idx"], message["reset"], message["success"]]
    # Nodes that know nothing of it read what counts, and break the connection with one whose acknowledgements do not.
    return told if message["counts"] else [*told, False]


def _unpack_next(fields: list[Any]) -> Message:
    term, index, reset, success, *rest = fields
    (counts,) = rest or (True,)
    return {
        "type": "next_node_idx",
        "term": _int(term),
        "next_node_idx": _int(index),
        "reset": _bool(reset),
        "success": _bool(success),
        "counts": _bool(counts),
    }


def _pack_ask_vote(message: Message) -> list[Any]:
    return [_ASK_VOTE, message["term"], message["last_log_index"], message["last_log_term"]]


def _unpack_ask_vote(fields: list[Any]) -> Message:
    term, index, last_term = fields
    return {
        "type": "request_vote",
        "term": _int(term),
        "last_log_index": _int(index),
        "last_log_term": _int(last_term),
    }


def _pack_propose(message: Message) -> list[Any]:
    return [_PROPOSE, message["incarnation"], message["proposals"]]


def _unpack_propose(fields: list[Any]) -> Message:
    incarnation, proposals = fields
    return {
        "type": "propose",
        "incarnation": _int(incarnation),
        "proposals": [(_int(number), _int(count), _bytes(ops)) for number, count, ops in proposals],
    }


def _term_only(kind: int) -> Callable[[Message], list[Any]]:
    return lambda message: [kind, message["term"]]


def _only_term(name: str) -> Callable[[list[Any]], Message]:
    def unpack(fields: list[Any]) -> Message:
        (term,) = fields
        return {"type": name, "term": _int(term)}

    return unpack


def _unpack_admin(fields: list[Any]) -> Message:
    number, action, node, address = fields
    return {
        "type": "admin",
        "number": _int(number),
        "action": _text(action),
        "node": _text(node),
        "address": _text(address),
    }


def _unpack_admin_done(fields: list[Any]) -> Message:
    number, refusal = fields
    return {"type": "admin_done", "number": _int(number), "refusal": _text(refusal)}


def _carrier(name: str) -> Callable[[list[Any]], Message]:
    def unpack(fields: list[Any]) -> Message:
        number, body = fields
        return {"type": name, "number": _int(number), "body": _bytes(body)}

    return unpack


_PACKERS: dict[str, Callable[[Message], list[Any]]] = {
    "append_entries": _pack_append,
    "next_node_idx": _pack_next,
    "request_vote": _pack_ask_vote,
    "response_vote": _term_only(_VOTE),
    "timeout_now": _term_only(_TIMEOUT_NOW),
    "propose": _pack_propose,
    "admin": lambda m: [_ADMIN, m["number"], m["action"], m["node"], m["address"]],
    "admin_done": lambda m: [_ADMIN_DONE, m["number"], m["refusal"]],
    "ask": lambda m: [_ASK, m["number"], m["body"]],
    "answer": lambda m: [_ANSWER, m["number"], m["body"]],
}
_UNPACKERS: dict[int, Callable[[list[Any]], Message]] = {
    _APPEND: _unpack_append,
    _SNAPSHOT: _unpack_snapshot,
    _NEXT: _unpack_next,
    _ASK_VOTE: _unpack_ask_vote,
    _VOTE: _only_term("response_vote"),
    _TIMEOUT_NOW: _only_term("timeout_now"),
    _PROPOSE: _unpack_propose,
    _ADMIN: _unpack_admin,
    _ADMIN_DONE: _unpack_admin_done,
    _ASK: _carrier("ask"),
    _ANSWER: _carrier("answer"),
}
