"""The node's log of events: written behind what is applied, read by whoever follows."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from resourcelease.consensus import Applied, Consensus
from resourcelease.events import Archive, Readers
from resourcelease.machine import Applied as Outcome
from resourcelease.machine import Machine
from resourcelease.node.schema import EventsSection
from resourcelease.storage.segments import LogOptions, Owner, Retention, SegmentWriter

__all__ = ["EventLog", "log_options"]

logger = logging.getLogger(__name__)

_HOUR_MS = 3_600_000


class EventLog:
    """Keeps the files in step with the machine. ``applied`` raises where the node must not go on."""

    def __init__(self, consensus: Consensus, writer: SegmentWriter) -> None:
        self.writer = writer
        self.archive = Archive(writer)
        self._consensus = consensus
        self._seen = consensus.machine
        # What retention waits for, on every node, whoever exports.
        self.readers = Readers(self.archive, lambda: cast(Machine, consensus.machine))
        self.readers.reconcile()

    @classmethod
    def resume(
        cls,
        directory: Path,
        consensus: Consensus,
        cluster_id: str,
        events: EventsSection,
        on_failure: Callable[[BaseException], None],
    ) -> "EventLog":
        """Goes on with the log of a directory; before consensus starts, which from then on waits for it."""
        owner = Owner(cluster_id, consensus.node_id)
        machine = cast(Machine, consensus.machine)
        writer = SegmentWriter.resume(directory / "segments", machine, owner, log_options(events))
        writer.on_failure = on_failure
        consensus.follow(writer)
        return cls(consensus, writer)

    @property
    def has_room(self) -> bool:
        """Whether the node may take more work."""
        return self.writer.has_room

    def applied(self, entries: Sequence[Applied]) -> None:
        """Entries were applied here, in order."""
        machine = self._consensus.machine
        if machine is not self._seen:
            # A snapshot took the place of the state; what it stands for is fetched from the others.
            self._seen = machine
            self.writer.restart(cast(Machine, machine))
            self.readers.reconcile()
            self.archive.on_trouble(())
        for entry in entries:
            outcome = cast(Outcome, entry.outcome)
            self.writer.append(entry.index, outcome.records, outcome.chain, sealed=outcome.sealed)
            self.readers.applied(outcome.records)

    def close(self) -> None:
        """Writes what waits, and lets go. Blocks: not for the loop."""
        self.writer.close()
        self.archive.close()


def log_options(events: EventsSection) -> LogOptions:
    """What the section says, in the words of the writer."""
    retention = Retention(
        max_bytes=events.retention_bytes,
        max_age_ms=events.retention_age_hours * _HOUR_MS,
        even_unread=events.retention_even_unread,
    )
    return LogOptions(
        bodies=events.bodies,
        compression=events.compression,
        flush_s=events.flush_ms / 1000.0,
        retention=retention,
    )
