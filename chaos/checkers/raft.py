"""What Raft promises about terms, logs and commits."""

from collections.abc import Callable, Iterable
from zlib import crc32

from chaos.checkers.verdict import Violation

__all__ = ["Commits", "HeldByMajority", "LogMatching", "OneLeaderATerm", "SameStates", "StaleLeader"]


class OneLeaderATerm:
    """At most one node leads in a term."""

    def __init__(self) -> None:
        self._leaders: dict[int, str] = {}

    def leads(self, node: str, term: int) -> None:
        """A node takes itself for the leader of a term."""
        leader = self._leaders.setdefault(term, node)
        if leader != node:
            raise Violation("one leader a term", f"{node} leads in term {term}, and so did {leader}")


class LogMatching:
    """Two logs that have an entry of the same index and term are the same up to it.

    Judged from what is handed to the disks: an index and term always come with the same bytes, after the same term.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[int, int], tuple[int, int]] = {}
        # By node: terms of the log it has handed over, by index.
        self._terms: dict[str, dict[int, int]] = {}

    def appended(self, node: str, entries: Iterable[tuple[int, int, bytes]]) -> None:
        """Entries (index, term, data) are handed to a node's disk, in place of any at these indices."""
        terms = self._terms.setdefault(node, {})
        for index, term, data in entries:
            terms[index] = term
            checksum, before = crc32(data), terms.get(index - 1, -1)
            known = self._entries.setdefault((index, term), (checksum, before))
            if known[0] != checksum:
                raise Violation("log matching", f"{node} has other bytes at index {index} of term {term}")
            if known[1] != before and -1 not in (known[1], before):
                raise Violation(
                    "log matching",
                    f"at {node}, index {index} of term {term} follows term {before}; elsewhere it follows {known[1]}",
                )

    def truncated(self, node: str, start: int) -> None:
        """Entries from an index on are cut; tell before those that take their place."""
        terms = self._terms.get(node, {})
        for index in [index for index in terms if index >= start]:
            del terms[index]


class Commits:
    """What is committed anywhere is never replaced."""

    def __init__(self) -> None:
        # By index: (term, checksum).
        self._committed: dict[int, tuple[int, int, str]] = {}
        self.highest = 0

    def committed(self, node: str, index: int, term: int, data: bytes) -> None:
        """A node takes the entry at an index for committed."""
        checksum = crc32(data)
        first_term, first, first_node = self._committed.setdefault(index, (term, checksum, node))
        self.highest = max(self.highest, index)
        if (first_term, first) != (term, checksum):
            raise Violation(
                "nothing committed is replaced",
                f"index {index} is committed at {node} with term {term}, and was at {first_node} with {first_term}",
            )


class HeldByMajority:
    """What is committed is on the disks of a majority from then on, so that any minority may fail."""

    def __init__(self) -> None:
        # Newly committed, and the highest of all: (leader, index, term, configurations).
        self._fresh: tuple[str, int, int, tuple[tuple[str, ...], ...]] | None = None
        self._highest: tuple[str, int, int, tuple[tuple[str, ...], ...]] | None = None

    def committed(self, leader: str, index: int, term: int, *configurations: Iterable[str]) -> None:
        """A leader takes an entry for committed by its members; of several configurations, by those of any of them.

        There are two where the leader has changed the configuration between one look at it and the next.
        """
        self._fresh = (leader, index, term, tuple(tuple(members) for members in configurations))

    def check(self, holders: Callable[[int, int], Iterable[str]]) -> None:
        """Looks at what was committed since the last check."""
        if self._fresh is not None:
            self._highest, self._fresh = self._fresh, None
            self.recheck(holders)

    def recheck(self, holders: Callable[[int, int], Iterable[str]]) -> None:
        """Looks again at the highest, because some disk has let go of entries."""
        if self._highest is None:
            return
        leader, index, term, configurations = self._highest
        all_holding = set(holders(index, term))
        if any(len(all_holding & set(members)) * 2 > len(members) for members in configurations):
            return
        members = configurations[-1]
        raise Violation(
            "a majority holds what is committed",
            f"index {index} of term {term}, committed at {leader}, is on the disks of "
            f"{sorted(all_holding & set(members)) or 'nobody'} only, of {len(members)} members",
        )


class SameStates:
    """States are equal after the same entry, whichever node holds them and however it came by them."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, str], tuple[bytes | int, str]] = {}

    def state(self, node: str, index: int, kind: str, digest: bytes | int) -> None:
        """A node's digest after the entry at an index; digests of one ``kind`` are compared."""
        known, first = self._states.setdefault((index, kind), (digest, node))
        if known != digest:
            raise Violation("equal states", f"after index {index}, {node} and {first} are in different states ({kind})")


_NEVER_SAFE: tuple[tuple[str, ...], float] = ((), 0.0)


class StaleLeader:
    """A leader that no majority can reach stops leading before anyone could be misled for long."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._heard: dict[str, dict[str, float]] = {}
        self._since: dict[str, float] = {}
        # By node: until when it may lead these members whatever else it hears, as messages only add to that.
        self._safe: dict[str, tuple[tuple[str, ...], float]] = {}

    def heard(self, node: str, peer: str, now: float) -> None:
        """A message of a peer reached a node."""
        heard = self._heard.get(node)
        if heard is None:
            heard = self._heard[node] = {}
        heard[peer] = now

    def leads(self, node: str, members: Iterable[str], now: float) -> None:
        """A node takes itself for a leader of these members."""
        members = tuple(members)
        known, until = self._safe.get(node, _NEVER_SAFE)
        if now < until and known == members:
            return
        self._safe[node] = members, self._safe_until(node, members, self._since.setdefault(node, now))
        if now >= self._safe[node][1]:
            raise Violation(
                "no stale leader", f"{node} still leads {self._limit_s} s after it last heard from a majority"
            )

    def _safe_until(self, node: str, members: tuple[str, ...], since: float) -> float:
        others_needed = len(members) // 2
        heard = self._heard.get(node, {})
        last = sorted((max(heard.get(peer, 0.0), since) for peer in members if peer != node), reverse=True)
        return last[others_needed - 1] + self._limit_s if others_needed else float("inf")

    def follows(self, node: str) -> None:
        """It does not lead, or does not run."""
        if self._since.pop(node, None) is not None:
            del self._safe[node]
