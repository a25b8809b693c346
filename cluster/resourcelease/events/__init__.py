"""The history for readers: from the files, off the loop, and on to other stores."""

from resourcelease.events.archive import Archive, Passage
from resourcelease.events.compare import differing, first_difference
from resourcelease.events.exchange import Exchange, Findings
from resourcelease.events.repair import Repair

__all__ = ["Archive", "Exchange", "Findings", "Passage", "Repair", "differing", "first_difference"]
