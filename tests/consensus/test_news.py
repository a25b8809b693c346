"""Who is told, and when, that entries are committed."""

from resourcelease.consensus.news import News

LATE = 0.002
OTHERS = frozenset({"n2", "n3"})


def tell(news: News, last: int, commit: int, now: float, *, more: bool = False) -> set[str]:
    return set(news.tell(last, commit, OTHERS, now, more=more))


def test_new_entries_go_to_all_at_once_and_tell_what_is_committed() -> None:
    news = News(LATE)
    assert tell(news, 1, 0, 0.0) == OTHERS
    assert tell(news, 1, 0, 0.0) == set()
    assert tell(news, 1, 1, 0.0) == set()
    assert news.due_at == LATE
    assert tell(news, 2, 1, 0.001) == OTHERS
    assert news.due_at == float("inf"), "they know"


def test_who_proposed_is_told_at_once_and_the_others_a_moment_later() -> None:
    news = News(LATE)
    tell(news, 1, 0, 0.0)
    news.owed.update({"n1", "n3"})
    assert tell(news, 1, 1, 0.0) == {"n3"}
    assert tell(news, 1, 1, 0.001) == set()
    assert tell(news, 1, 1, LATE) == OTHERS
    assert news.due_at == float("inf")
    assert tell(news, 1, 1, 1.0) == set()


def test_more_commits_do_not_put_it_off() -> None:
    news = News(LATE)
    tell(news, 3, 0, 0.0)
    for commit in (1, 2, 3):
        assert tell(news, 3, commit, 0.0005 * commit) == set()
    assert news.due_at == 0.0005 + LATE


def test_nothing_is_due_when_all_had_proposed_or_there_is_more_to_send() -> None:
    news = News(LATE)
    tell(news, 1, 0, 0.0)
    news.owed.update(OTHERS)
    assert tell(news, 1, 1, 0.0) == OTHERS
    assert news.due_at == float("inf")
    assert tell(news, 1, 1, 0.0, more=True) == OTHERS
    news.reset()
    assert tell(news, 1, 1, 0.0) == OTHERS
