"""Changes that an operator asks a leader for: a node in, a node out, another leader.

One change at a time. A node that comes in learns first: it is sent everything and counts for nothing until it has
nearly the whole log. Only then is the new configuration proposed, and in force from the moment it is in the log.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from resourcelease.consensus.entries import encode_members
from resourcelease.consensus.journal import Journal
from resourcelease.consensus.members import Membership
from resourcelease.consensus.newborn import Promises
from resourcelease.consensus.seams import LEADER, LibRaft
from resourcelease.consensus.settings import Settings

__all__ = ["ACTIONS", "Administration"]

ACTIONS = ("add", "remove", "transfer")
# So long a node that is removed is given to learn of it. One that does not know stands for election for ever, and those
# that do not know either listen to it.
_FAREWELL_S = 1.0


@dataclass(slots=True)
class _Change:
    ticket: int
    action: str
    node: str
    address: str
    deadline: float
    # A transfer: until when to try.
    hand_over_until: float = 0.0
    # Where its configuration went into the log; 0 while it has not.
    submitted: bool = False
    # A removal: until when to try to tell the node.
    farewell_until: float = 0.0


class Administration:
    """The changes that wait, and the one under way."""

    def __init__(
        self,
        *,
        raft: LibRaft,
        journal: Journal,
        membership: Membership,
        settings: Settings,
        promises: Promises,
    ) -> None:
        self._raft = raft
        self._promises = promises
        self._journal = journal
        self._membership = membership
        self._node_id = promises.node_id
        self._settings = settings
        self._changes: deque[_Change] = deque()
        self._count = 0
        # Nodes that learn: id to address.
        self._learners: dict[str, str] = {}

    @property
    def learners(self) -> Mapping[str, str]:
        """Nodes that are sent the log and do not count yet."""
        return self._learners

    @property
    def handing_over(self) -> bool:
        """Whether proposals are held back so that the next leader can catch up."""
        return bool(self._changes) and self._changes[0].hand_over_until > 0

    @property
    def busy(self) -> bool:
        """Whether a change is under way."""
        return bool(self._changes)

    def request(self, action: str, node: str, address: str, deadline: float) -> int:
        """Takes note of a change; its ticket. ``node`` may be empty for a transfer to whoever is furthest."""
        self._count += 1
        self._changes.append(_Change(self._count, action, node, address, deadline))
        return self._count

    def leadership_lost(self) -> list[tuple[int, str]]:
        """A transfer has done what it should; anything else has to be asked of the next leader."""
        done = [
            (change.ticket, "" if change.hand_over_until else "this node no longer leads; ask the leader again")
            for change in self._changes
        ]
        self._changes.clear()
        self._drop_learners()
        return done

    def turn(self, now: float) -> list[tuple[int, str]]:
        """Moves the change under way; (ticket, "" or why not) of those that ended."""
        done: list[tuple[int, str]] = []
        while self._changes:
            change = self._changes[0]
            answer = self._move(change, now)
            if answer is None and now >= change.deadline:
                answer = "the deadline passed; ask again, a change that is under way is not made twice"
            if answer is None:
                break
            self._changes.popleft()
            self._drop_learners()
            done.append((change.ticket, answer))
        return done

    def _drop_learners(self) -> None:
        for node in self._learners:
            self._raft.drop_learner(node)
        self._learners.clear()

    def _move(self, change: _Change, now: float) -> str | None:
        if self._raft.state != LEADER:
            if change.hand_over_until:
                # It has done what it should. Asked again, the next leader would hand over in its turn.
                return ""
            return f"this node does not lead; the leader is {self._raft.leader or 'not known'}"
        if self._raft.applied_index < self._raft.noop_index:
            return None
        if change.action == "transfer":
            return self._transfer(change, now)
        if change.action == "add":
            return self._add(change)
        if change.action == "remove":
            return self._remove(change, now)
        return f"unknown action {change.action!r}; known are {', '.join(ACTIONS)}"

    def _transfer(self, change: _Change, now: float) -> str | None:
        others = [node for node in self._membership.current if node != self._node_id]
        if change.node == self._node_id:
            return ""
        if change.node and change.node not in others:
            return f"{change.node} is not a member; members are {', '.join(sorted(self._membership.current))}"
        if not others:
            return "this node is alone; there is nobody to hand over to"
        if not change.hand_over_until:
            change.hand_over_until = now + self._settings.transfer_s
        if now >= change.hand_over_until:
            return "no node had the whole log in time; see which ones lag, and try again"
        target = change.node or max(others, key=lambda node: (self._raft.match_index(node), node))
        if not change.submitted:
            change.submitted = self._raft.hand_over(target)
        return None

    def _add(self, change: _Change) -> str | None:
        current = dict(self._membership.current)
        if current.get(change.node) == change.address:
            return "" if self._committed() else None
        if change.node not in current:
            self._learners[change.node] = change.address
            self._raft.add_learner(change.node)
            gap = self._journal.last_index - self._raft.match_index(change.node)
            # A node with an empty disk neither votes nor counts before it has shown what it has, and may be needed.
            if gap > self._settings.learner_gap_max or not self._promises.kept_by(change.node):
                return None
        current[change.node] = change.address
        return self._submit(change, current)

    def _remove(self, change: _Change, now: float) -> str | None:
        current = dict(self._membership.current)
        if change.node not in current:
            return "" if self._committed() and self._told(change, now) else None
        if change.node == self._node_id:
            return "a leader does not remove itself; transfer the leadership first"
        address = current.pop(change.node)
        refused = self._submit(change, current)
        if change.submitted and self._raft.is_connected(change.node):
            # It is sent the entry that removes it, as one that learns.
            change.farewell_until = now + _FAREWELL_S
            self._learners[change.node] = address
        return refused

    def _told(self, change: _Change, now: float) -> bool:
        """Whether a node that was removed knows, or cannot be told."""
        if now >= change.farewell_until:
            return True
        self._raft.add_learner(change.node)
        return self._raft.match_index(change.node) >= self._membership.changed_at

    def _submit(self, change: _Change, members: Mapping[str, str]) -> str | None:
        # Those that are left could not commit it, if most of them had lost what they promised.
        if not change.submitted and self._committed() and self._promises.kept_by_most(members):
            change.submitted = True
            self._raft.submit(encode_members(members))
        return None

    def _committed(self) -> bool:
        return self._membership.changed_at <= self._raft.commit_index
