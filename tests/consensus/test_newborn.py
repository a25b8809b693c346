"""Guard **newborn**: who has forgotten its promises neither votes nor counts until it has shown that all is there."""

import pytest

from resourcelease.consensus.journal import NEWBORN, Journal
from resourcelease.consensus.newborn import Newborn, Promises
from resourcelease.consensus.proposals import Proposals
from resourcelease.consensus.wire import Message

_SILENT_UNTIL = 12.0


def newborn(*terms: int, voted_for: str = "", guarded: bool = True) -> tuple[Newborn, Journal, Proposals]:
    entries = [(b"\x01", index, term) for index, term in enumerate(terms, 1)]
    journal, proposals = Journal(entries, max(terms), voted_for, newborn=True), Proposals(1.0)
    return Newborn(journal, proposals, _SILENT_UNTIL, guarded=guarded), journal, proposals


def request(term: int, last_log_term: int) -> Message:
    return {"type": "request_vote", "term": term, "last_log_index": 9, "last_log_term": last_log_term}


@pytest.mark.parametrize(("own", "asks", "votes"), [((0,), 0, True), ((0,), 3, False), ((0, 1), 3, False)])
def test_an_empty_disk_votes_only_where_all_are_empty(own: tuple[int, ...], asks: int, votes: bool) -> None:
    guard, _, _ = newborn(*own)
    assert guard.may_vote(request(5, asks), _SILENT_UNTIL) is votes


def test_a_log_that_reaches_into_the_leaders_term_shows_nothing() -> None:
    guard, _, proposals = newborn(0, 1, 4)
    assert not guard.counts("n1", 4)
    assert guard.catching_up
    assert not guard.stands(0.0)
    assert len(proposals) == 0


def test_its_own_entry_that_comes_back_shows_that_nothing_is_missing() -> None:
    guard, journal, proposals = newborn(0, 4)
    guard.seek_proof()
    guard.seek_proof()
    (proof,) = [pending.number for pending in proposals.to_send(("n1", 4, 1), 0.0)]
    assert not guard.is_proof(proof + 1)
    assert guard.is_proof(proof)
    guard.proved("n1", 4)
    assert guard.counts("n1", 4)
    batch = journal.take_batch()
    assert batch is not None
    assert batch.vote == (4, "n1")


def test_after_its_start_it_is_silent_for_longer_than_anybody_stands_in_one_term() -> None:
    guard, _, _ = newborn(0, 4)
    guard.proved("n1", 4)
    assert not guard.stands(_SILENT_UNTIL - 0.1)
    assert not guard.may_vote(request(5, 4), _SILENT_UNTIL - 0.1)
    assert guard.stands(_SILENT_UNTIL)
    assert guard.may_vote(request(5, 4), _SILENT_UNTIL)
    assert not guard.may_vote(request(4, 4), _SILENT_UNTIL)


def test_the_mark_stays_on_disk_until_then() -> None:
    guard, journal, _ = newborn(0, 3)
    journal.setCurrentTerm(4, None)
    guard.heard("n1", 4)
    batch = journal.take_batch()
    assert batch is not None
    assert batch.vote == (4, NEWBORN)


def test_who_voted_for_the_first_leader_has_promised_nothing_else() -> None:
    guard, _, _ = newborn(0, 4, voted_for="n1")
    assert not guard.counts("n2", 4)
    assert guard.counts("n1", 4)
    assert guard.stands(0.0)


def test_a_leader_knows_who_could_commit_with_it() -> None:
    promises = Promises("n1")
    assert promises.kept_by_most(["n1"])
    assert not promises.kept_by_most(["n1", "n2"])
    assert promises.told("n2", kept=True)
    assert not promises.told("n3", kept=False)
    assert promises.kept_by_most(["n1", "n2", "n3"])
    assert not promises.kept_by_most(["n1", "n3"])
    promises.told("n2", kept=False)
    assert not promises.kept_by_most(["n1", "n2", "n3"])
    promises.told("n2", kept=True)
    promises.reset()
    assert not promises.kept_by("n2")
