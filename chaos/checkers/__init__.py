"""Judges of what a cluster did. They stand outside of it, and do not care whether it was simulated or real."""

from chaos.checkers.acknowledged import Acknowledged
from chaos.checkers.history import OneHistory
from chaos.checkers.items import Items
from chaos.checkers.leasetime import LeaseTime
from chaos.checkers.raft import Commits, HeldByMajority, LogMatching, OneLeaderATerm, SameStates, StaleLeader
from chaos.checkers.verdict import Violation

__all__ = [
    "Acknowledged",
    "Commits",
    "HeldByMajority",
    "Items",
    "LeaseTime",
    "LogMatching",
    "OneHistory",
    "OneLeaderATerm",
    "SameStates",
    "StaleLeader",
    "Violation",
]
