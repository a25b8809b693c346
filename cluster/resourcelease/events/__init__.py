"""The history for readers: from the files, off the loop, and on to other stores."""

from resourcelease.events.archive import Archive, Passage
from resourcelease.events.compare import differing, first_difference
from resourcelease.events.exchange import Exchange, Findings
from resourcelease.events.readers import Reader, Readers
from resourcelease.events.repair import NO_ANSWER, Repair
from resourcelease.events.scrub import Scrubbed, Scrubber

__all__ = [
    "NO_ANSWER",
    "Archive",
    "Exchange",
    "Findings",
    "Passage",
    "Reader",
    "Readers",
    "Repair",
    "Scrubbed",
    "Scrubber",
    "differing",
    "first_difference",
]
