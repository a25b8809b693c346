"""What a turn of a host asks to be done."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from resourcelease.consensus.api import Outcome
from resourcelease.consensus.wire import Message
from resourcelease.storage.api import WriteBatch

__all__ = ["Applied", "Effects"]


@dataclass(frozen=True, slots=True)
class Applied:
    """One entry that this node has applied."""

    index: int
    term: int
    outcome: Outcome


@dataclass(slots=True)
class Effects:
    """The duties of whoever drives a host, in the order of ``host``'s docstring."""

    # (peer, message), in order.
    sends: list[tuple[str, Message]] = field(default_factory=list)
    # (number, batch): call ``durable(number)`` after its fsync.
    write: tuple[int, WriteBatch] | None = None
    # Rows for ``write_later``, behind ``write``.
    rows: WriteBatch | None = None
    # (proposal number, its results, or why there are none).
    answers: list[tuple[int, Sequence[Any] | Exception]] = field(default_factory=list)
    applied: list[Applied] = field(default_factory=list)
    # (ticket, "" or why the change was refused).
    administered: list[tuple[int, str]] = field(default_factory=list)
