"""What a follower does before it applies what is committed."""

from resourcelease.consensus.guards import Connections, Durability
from resourcelease.consensus.journal import Journal
from resourcelease.consensus.outbox import Outbox
from resourcelease.consensus.precedence import Precedence
from resourcelease.consensus.settings import ALL_GUARDS
from resourcelease.consensus.wire import Message


class Follower:
    """Ten entries of so many bytes, a disk, and a leader's acknowledgements."""

    def __init__(self, size: int = 2000) -> None:
        self.journal = Journal([(bytes(size), index, 1) for index in range(1, 11)], 1, "")
        self.durability = Durability(10)
        connections = Connections()
        connections.opened("leader", 1)
        self.outbox = Outbox(connections, self.durability, ALL_GUARDS)
        self.precedence = Precedence(self.journal, self.outbox)

    def hears(self) -> int:
        """An entry comes, and goes to the disk at the end of the turn; the batch."""
        self.journal.add(b"\x00new", self.journal.last_index + 1, 1)
        return self.durability.last_batch + 1

    def ends_turn(self) -> list[tuple[str, Message]]:
        if self.journal.take_batch() is not None:
            self.durability.written(self.journal.last_index, 0.0)
            self.outbox.put("leader", {"type": "next_node_idx", "success": True, "term": 1})
        return self.outbox.leave(1)

    def puts_off(self, first: int = 9, last: int = 10) -> bool:
        return self.precedence.puts_off(first, last)


def test_where_there_is_nothing_new_a_turn_does_everything() -> None:
    follower = Follower()
    assert not follower.puts_off()
    assert not follower.precedence.unfinished


def test_entries_go_to_the_disk_and_are_acknowledged_before_much_is_applied() -> None:
    follower = Follower()
    batch = follower.hears()
    assert follower.puts_off()
    assert follower.precedence.unfinished
    assert follower.ends_turn() == []
    follower.durability.done(batch)
    assert follower.puts_off()
    assert len(follower.ends_turn()) == 1
    assert not follower.puts_off()
    follower.precedence.done()
    assert not follower.precedence.unfinished


def test_while_the_disk_is_not_back_the_rest_is_done() -> None:
    follower = Follower()
    follower.hears()
    assert follower.puts_off()
    follower.ends_turn()
    assert not follower.puts_off()


def test_a_little_is_not_put_off() -> None:
    follower = Follower(size=100)
    follower.hears()
    assert not follower.puts_off()
    assert not follower.puts_off(first=11), "nor nothing at all"


def test_new_entries_do_not_keep_it_from_the_rest_for_ever() -> None:
    follower = Follower()
    turns = []
    for _ in range(6):
        follower.hears()
        turns.append(follower.puts_off())
        if not turns[-1]:
            follower.precedence.done()
        follower.ends_turn()
    assert turns == [True, True, False, True, True, False]
