"""What a follower does before it applies what is committed."""

from resourcelease.consensus.guards import Connections, Durability
from resourcelease.consensus.journal import Journal
from resourcelease.consensus.outbox import Outbox
from resourcelease.consensus.precedence import Precedence
from resourcelease.consensus.settings import ALL_GUARDS
from resourcelease.consensus.wire import Message

LATE = 0.005
NEVER = float("inf")


class Follower:
    """Ten entries of so many bytes, a disk, and a leader's acknowledgements."""

    def __init__(self, size: int = 100) -> None:
        self.journal = Journal([(bytes(size), index, 1) for index in range(1, 11)], 1, "")
        self.durability = Durability(10)
        connections = Connections()
        connections.opened("leader", 1)
        self.outbox = Outbox(connections, self.durability, ALL_GUARDS)
        self.precedence = Precedence(self.journal, self.outbox, LATE)

    def hears(self) -> int:
        """An entry comes, and goes to the disk at the end of the turn; the batch."""
        self.journal.add(b"\x00new", self.journal.last_index + 1, 1)
        return self.durability.last_batch + 1

    def ends_turn(self, now: float) -> list[tuple[str, Message]]:
        if self.journal.take_batch() is not None:
            self.durability.written(self.journal.last_index, now)
            self.outbox.put("leader", {"type": "next_node_idx", "success": True, "term": 1})
        return self.outbox.leave(1)

    def puts_off(self, now: float, first: int = 9, last: int = 10, *, waited_for: bool = False) -> bool:
        return self.precedence.puts_off(now, first, last, waited_for=waited_for)


def test_where_there_is_nothing_new_a_turn_does_everything() -> None:
    follower = Follower()
    assert not follower.puts_off(1.0)
    assert not follower.precedence.resting


def test_entries_go_to_the_disk_and_are_acknowledged_first_and_the_rest_comes_a_moment_later() -> None:
    follower = Follower()
    batch = follower.hears()
    assert follower.puts_off(1.0)
    assert follower.ends_turn(1.0) == []
    assert follower.puts_off(1.0), "the disk is not back"
    follower.durability.done(batch)
    assert follower.puts_off(1.001)
    assert len(follower.ends_turn(1.001)) == 1
    assert follower.puts_off(1.004)
    assert follower.precedence.rest_at == 1.0 + LATE
    assert not follower.puts_off(1.0 + LATE)
    follower.precedence.rested()
    assert follower.precedence.rest_at == NEVER


def test_where_somebody_waits_here_the_rest_comes_right_after_the_acknowledgement() -> None:
    follower = Follower()
    follower.durability.done(follower.hears())
    assert follower.puts_off(1.0, waited_for=True)
    assert follower.precedence.rest_at == 1.0
    follower.ends_turn(1.0)
    follower.durability.done(1)
    assert follower.puts_off(1.0, waited_for=True)
    follower.ends_turn(1.0)
    assert not follower.puts_off(1.0, waited_for=True)


def test_much_is_not_left_for_later() -> None:
    for follower, first in ((Follower(), 2), (Follower(size=5000), 9)):
        follower.hears()
        assert follower.puts_off(1.0, first)
        assert follower.precedence.rest_at == 1.0
        follower.ends_turn(1.0)
        assert not follower.puts_off(1.0, first)


def test_new_entries_do_not_keep_it_from_the_rest_for_ever() -> None:
    follower = Follower()
    turns = []
    for number in range(8):
        follower.hears()
        turns.append(follower.puts_off(1.0 + LATE * number))
        if not turns[-1]:
            follower.precedence.rested()
        follower.ends_turn(1.0 + LATE * number)
    assert turns == [True, True, True, False, True, True, True, False]
