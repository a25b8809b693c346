"""What a follower does before it applies what is committed, and what a leader need not look at yet."""

import pytest

from resourcelease.consensus.journal import Journal
from resourcelease.consensus.precedence import Precedence, is_late
from resourcelease.consensus.wire import Message


class Follower:
    """Ten entries, and a leader that sends more."""

    def __init__(self) -> None:
        self.journal = Journal([(bytes(100), index, 1) for index in range(1, 11)], 1, "")
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


def test_entries_go_to_the_disk_before_any_is_applied() -> None:
    follower = Follower()
    follower.hears()
    assert follower.puts_off()
    assert follower.precedence.unfinished
    follower.journal.take_batch()
    assert not follower.puts_off()
    follower.precedence.done()
    assert not follower.precedence.unfinished


def test_nothing_to_apply_is_not_put_off() -> None:
    follower = Follower()
    follower.hears()
    assert not follower.puts_off(first=11)


def test_new_entries_do_not_keep_it_from_the_rest_for_ever() -> None:
    follower = Follower()
    turns = []
    for _ in range(4):
        follower.hears()
        turns.append(follower.puts_off())
        if not turns[-1]:
            follower.precedence.done()
    assert turns == [True, False, True, False]


@pytest.mark.parametrize(
    ("changes", "late"),
    [
        ({}, True),
        ({"next_node_idx": 12}, False),
        ({"term": 2}, False),
        ({"success": False}, False),
        ({"type": "append_entries"}, False),
    ],
)
def test_an_acknowledgement_of_what_is_committed_can_wait(changes: Message, late: bool) -> None:
    message = {"type": "next_node_idx", "term": 3, "next_node_idx": 11, "success": True} | changes
    assert is_late(message, term=3, commit_index=10) is late
