"""What a follower does before it applies what is committed."""

from resourcelease.consensus.journal import Journal
from resourcelease.consensus.precedence import Precedence


class Follower:
    """Ten entries of so many bytes, and a leader that sends more."""

    def __init__(self, size: int = 2000) -> None:
        self.journal = Journal([(bytes(size), index, 1) for index in range(1, 11)], 1, "")
        self.precedence = Precedence(self.journal)

    def hears(self) -> None:
        """An entry comes; it goes to the disk at the end of the turn."""
        self.journal.add(b"\x00new", self.journal.last_index + 1, 1)

    def puts_off(self, first: int = 9, last: int = 10) -> bool:
        return self.precedence.puts_off(first, last)


def test_where_there_is_nothing_new_a_turn_does_everything() -> None:
    follower = Follower()
    assert not follower.puts_off()
    assert not follower.precedence.unfinished


def test_entries_go_to_the_disk_before_much_is_applied() -> None:
    follower = Follower()
    follower.hears()
    assert follower.puts_off()
    assert follower.precedence.unfinished
    follower.journal.take_batch()
    assert not follower.puts_off()
    follower.precedence.done()
    assert not follower.precedence.unfinished


def test_a_little_is_not_put_off() -> None:
    follower = Follower(size=100)
    follower.hears()
    assert not follower.puts_off()
    assert not follower.puts_off(first=11), "nor nothing at all"


def test_new_entries_do_not_keep_it_from_the_rest_for_ever() -> None:
    follower = Follower()
    turns = []
    for _ in range(4):
        follower.hears()
        turns.append(follower.puts_off())
        if not turns[-1]:
            follower.precedence.done()
    assert turns == [True, False, True, False]
