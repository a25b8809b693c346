"""Judges of what a cluster did. They stand outside of it, and do not care whether it was simulated or real."""

from chaos.checkers.acknowledged import Acknowledged
from chaos.checkers.raft import Applied, Commits, HeldByMajority, LogMatching, OneLeaderATerm, StaleLeader
from chaos.checkers.verdict import Violation

__all__ = [
    "Acknowledged",
    "Applied",
    "Commits",
    "HeldByMajority",
    "LogMatching",
    "OneLeaderATerm",
    "StaleLeader",
    "Violation",
]
