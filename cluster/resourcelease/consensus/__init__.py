"""Replication: an entry that a majority has on disk, applied in the same order everywhere. See docs/consensus.md."""

from resourcelease.consensus.api import (
    Busy,
    ConsensusBroken,
    EventLog,
    Machine,
    Machines,
    NoLeader,
    NotAllowed,
    Outcome,
    OutcomeUnknown,
    TooLarge,
)
from resourcelease.consensus.effects import Applied
from resourcelease.consensus.service import GATHER_S, Consensus, Status
from resourcelease.consensus.settings import Settings

__all__ = [
    # A node.
    "GATHER_S",
    "Consensus",
    "Settings",
    "Status",
    # What it is given, and what it gives.
    "Applied",
    "EventLog",
    "Machine",
    "Machines",
    "Outcome",
    # What goes wrong.
    "Busy",
    "ConsensusBroken",
    "NoLeader",
    "NotAllowed",
    "OutcomeUnknown",
    "TooLarge",
]
