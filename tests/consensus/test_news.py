"""Who is told, and when, that there are entries and that they are committed."""

from resourcelease.consensus.news import News

LATE = 0.002
BEHIND = 0.005
OTHERS = frozenset({"n2", "n3"})
NEVER = float("inf")


def tell(news: News, last: int, commit: int, now: float, *, more: bool = False) -> set[str]:
    return set(news.tell(last, commit, OTHERS, now, more=more))


def raced(quick: str = "n2") -> News:
    """After the first entry, which one of two others was the first to acknowledge."""
    news = News(LATE, BEHIND)
    assert news.racing(0.0)
    assert tell(news, 1, 0, 0.0) == OTHERS
    news.race([quick], 1, 1, 0.0)
    assert not news.racing(0.0)
    return news


def test_as_long_as_nobody_is_known_as_quick_entries_go_to_all_and_tell_what_is_committed() -> None:
    news = News(LATE, BEHIND)
    assert tell(news, 1, 0, 0.0) == OTHERS
    assert tell(news, 1, 0, 0.0) == set()
    assert tell(news, 1, 1, 0.0) == set()
    assert news.due_at == LATE
    assert tell(news, 2, 1, 0.001) == OTHERS
    assert news.due_at == NEVER, "they know"


def test_who_proposed_is_told_at_once_and_the_others_a_moment_later() -> None:
    news = News(LATE, BEHIND)
    tell(news, 1, 0, 0.0)
    news.owed.update({"n1", "n3"})
    assert tell(news, 1, 1, 0.0) == {"n3"}
    assert tell(news, 1, 1, 0.001) == set()
    assert tell(news, 1, 1, LATE) == OTHERS
    assert news.due_at == NEVER
    assert tell(news, 1, 1, 1.0) == set()


def test_more_commits_do_not_put_it_off() -> None:
    news = News(LATE, BEHIND)
    tell(news, 3, 0, 0.0)
    for commit in (1, 2, 3):
        assert tell(news, 3, commit, 0.0005 * commit) == set()
    assert news.due_at == 0.0005 + LATE


def test_nothing_is_due_when_all_had_proposed_or_there_is_more_to_send() -> None:
    news = News(LATE, BEHIND)
    tell(news, 1, 0, 0.0)
    news.owed.update(OTHERS)
    assert tell(news, 1, 1, 0.0) == OTHERS
    assert news.due_at == NEVER
    assert tell(news, 1, 1, 0.0, more=True) == OTHERS
    news.reset()
    assert tell(news, 1, 1, 0.0) == OTHERS


def test_new_entries_go_to_who_is_quick_and_to_the_others_together_a_moment_later() -> None:
    news = raced("n2")
    assert tell(news, 2, 1, 0.0) == {"n2"}
    assert tell(news, 2, 2, 0.001) == set()
    assert tell(news, 3, 2, 0.001) == {"n2"}
    assert tell(news, 3, 3, 0.0015) == set()
    assert tell(news, 3, 3, LATE) == set(), "3 came meanwhile, so there may be more"
    assert tell(news, 3, 3, 2 * LATE) == OTHERS, "there was not; n2 does not know yet that 3 is committed"
    assert news.due_at == NEVER


def test_who_does_not_keep_up_is_quick_no_more() -> None:
    news = raced("n2")
    assert tell(news, 2, 1, 0.0) == {"n2"}
    assert tell(news, 3, 2, 0.001) == {"n2"}
    assert tell(news, 3, 2, LATE) == set()
    assert tell(news, 4, 2, 0.003) == {"n2"}
    assert tell(news, 4, 2, 2 * LATE) == OTHERS, "3 is not committed in time"
    assert tell(news, 5, 2, 2 * LATE) == OTHERS


def test_while_entries_keep_coming_the_others_may_be_a_few_moments_behind() -> None:
    news = raced("n2")
    told = [tell(news, 2 + ms, 1 + ms, ms / 1000) for ms in range(8)]
    assert told == [{"n2"}] * 6 + [OTHERS, {"n2"}], "n3 hears at the end of a moment when it is 5 ms behind"


def test_what_was_sent_a_moment_ago_says_nothing_against_who_is_quick() -> None:
    news = raced("n2")
    assert tell(news, 2, 1, 0.0) == {"n2"}
    assert tell(news, 3, 2, LATE - 0.0001) == {"n2"}
    assert tell(news, 3, 2, LATE) == set(), "3 was just sent to n2"
    assert tell(news, 4, 3, LATE) == {"n2"}


def test_who_knows_all_is_not_told_again() -> None:
    news = raced("n2")
    assert tell(news, 2, 1, 0.0) == {"n2"}
    assert tell(news, 2, 2, 0.001) == set()
    news.owed.add("n2")
    assert tell(news, 3, 2, 0.001) == {"n2"}
    news.owed.add("n2")
    assert tell(news, 3, 3, 0.001) == {"n2"}
    assert tell(news, 3, 3, LATE) == set()
    assert tell(news, 3, 3, 2 * LATE) == {"n3"}
    assert news.due_at == NEVER


def test_entries_go_at_once_to_those_whose_callers_wait() -> None:
    news = raced("n2")
    news.owed.update({"n1", "n3"})
    assert tell(news, 2, 1, 0.0) == OTHERS
    assert news.due_at == NEVER


def test_who_is_quick_is_asked_again_after_a_second() -> None:
    news = raced("n2")
    assert not news.racing(1.0)
    assert news.racing(1.001)
    news.race(["n2"], 1, 1, 1.001)
    assert news.racing(1.001), "that is committed already, by the quick one of before"
    assert tell(news, 2, 1, 1.001) == OTHERS
    news.race(["n3"], 1, 2, 1.002)
    assert tell(news, 3, 2, 1.002) == {"n3"}


def test_a_quick_one_that_is_gone_is_not_waited_for() -> None:
    news = raced("n2")
    tell(news, 2, 1, 0.0)
    news.lost("n3")
    assert not news.racing(0.0)
    news.lost("n2")
    assert news.racing(0.0)
    assert tell(news, 3, 1, 0.0) == OTHERS
    news.race(["n3"], 1, 3, 0.001)
    assert tell(news, 4, 3, 0.001) == {"n3"}


def test_of_five_two_are_quick() -> None:
    others = frozenset({"n2", "n3", "n4", "n5"})
    news = News(LATE, BEHIND)
    assert news.tell(1, 0, others, 0.0, more=False) == others
    news.race(["n4"], 2, 1, 0.0)
    assert news.racing(0.0), "one is no majority with the leader"
    news.race(["n3", "n4", "n5"], 2, 1, 0.0)
    assert news.tell(2, 1, others, 0.0, more=False) == {"n3", "n4"}
    assert news.tell(2, 2, others, LATE, more=False) == others
