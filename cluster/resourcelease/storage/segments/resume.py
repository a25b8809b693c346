"""Where the files and the machine stand to each other, when a node starts or its state is replaced."""

from pathlib import Path
from typing import NamedTuple, Protocol

from resourcelease.machine.state import Segment
from resourcelease.storage.errors import WrongIdentity
from resourcelease.storage.segments.directory import DRAFT_SUFFIX, Owner, segment_paths
from resourcelease.storage.segments.errors import CorruptSegment, SegmentsDiverged
from resourcelease.storage.segments.file import SegmentFile
from resourcelease.storage.segments.format import Header
from resourcelease.storage.segments.tail import Tail

__all__ = ["Ending", "LogMachine", "Position", "find_ending", "join"]

_NO_CHAIN = bytes(32)


class LogMachine(Protocol):
    """What the log asks of a machine."""

    @property
    def applied_index(self) -> int:
        """The index of the last entry that was applied."""

    @property
    def sequence_number(self) -> int:
        """The sequence number of the last event."""

    def chain(self) -> bytes:
        """The digest over all events so far."""

    def segment(self) -> Segment:
        """The open segment of the log."""


class Position(NamedTuple):
    """Where a machine stands, taken at one moment."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    sequence: int
    chain: bytes
    segment_first: int

    @classmethod
    def of(cls, machine: LogMachine) -> "Position":
        """The position of a machine."""
        return cls(machine.applied_index, machine.sequence_number, machine.chain(), machine.segment().first_sequence)


class Ending(NamedTuple):
    """The end of the log on disk: what to go on with."""

    # The last event that is held, and the chain after it.
    last: int
    chain: bytes
    # The file to go on with; None if the next event begins one.
    tail: Tail | None
    # The first event of the segment that the next event belongs to.
    segment_first: int


def find_ending(directory: Path, owner: Owner) -> Ending | None:
    """The end of the log in a directory, its torn tail cut; None if there is no event in it."""
    for path in directory.glob("*" + DRAFT_SUFFIX):
        path.unlink()
    for _, path in reversed(segment_paths(directory)):
        sealed = _sealed_ending(path, owner)
        if sealed is not None:
            return sealed
        tail = Tail.reopen(path)
        if tail is None:
            continue
        try:
            check_owner(path, tail.header, owner)
        except WrongIdentity:
            tail.close()
            raise
        if not tail.empty:
            return Ending(tail.last, tail.chain, tail, tail.header.segment_first)
        tail.discard()
    return None


def _sealed_ending(path: Path, owner: Owner) -> Ending | None:
    """The ending that a sealed file makes; None if the file is not sealed, or its seal is damaged."""
    try:
        with SegmentFile(path) as file:
            check_owner(path, file.header, owner)
            if file.footer is None:
                return None
            last, digest = file.footer.span.last, file.footer.digest
            goes_on = file.footer.ends_early
            return Ending(last, digest, None, file.header.segment_first if goes_on else last + 1)
    except CorruptSegment:
        return None


def check_owner(path: Path, header: Header, owner: Owner) -> None:
    """Raises ``WrongIdentity`` if a file is another cluster's or another shard's."""
    if (header.cluster_id, header.shard) != (owner.cluster_id, owner.shard):
        raise WrongIdentity(
            f"{path} belongs to cluster {header.cluster_id}, shard {header.shard!r}, not to {owner.cluster_id}, "
            f"shard {owner.shard!r}: do not mix directories"
        )


def join(ending: Ending | None, position: Position) -> Ending:
    """The ending from which a machine at this position goes on.

    What the files hold beyond the machine is skipped when the entries come again. What the machine has beyond the files
    is not to be had here: the file is ended early, and the next begins in the middle of its segment.
    """
    if ending is None:
        if not position.sequence:
            return Ending(0, _NO_CHAIN, None, 1)
        return Ending(position.sequence, position.chain, None, position.segment_first)
    if ending.last > position.sequence:
        return ending
    if ending.last == position.sequence and ending.chain != position.chain:
        if ending.tail is not None:
            ending.tail.close()
        raise SegmentsDiverged(
            f"the log on disk and the state of this node tell different histories up to event {ending.last}: take the "
            "node out, empty its directory and let it join again"
        )
    tail = ending.tail
    if tail is not None:
        here = ending.last == position.sequence
        if here and position.segment_first <= ending.last:
            return ending
        # Either the machine ended the segment here and the node died before the footer was written, or there is a gap.
        tail.seal(ends_early=not here)
        tail.close()
    return Ending(position.sequence, position.chain, None, position.segment_first)
