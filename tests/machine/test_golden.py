"""Golden transcripts: the stories that matter, told by the machine, compared with how it told them last.

``make golden`` writes them anew; what has changed then stands in the diff of ``golden/``, for a person to judge.
"""

import os
from collections.abc import Callable
from difflib import unified_diff
from pathlib import Path

import pytest
from story import Story, item

from resourcelease.model import ops

GOLDEN = Path(__file__).parent / "golden"
# Where entries of version 1 make something else. These are never written anew.
GOLDEN_1 = Path(__file__).parent / "golden_1"
REWRITE = os.environ.get("RESOURCELEASE_REWRITE_GOLDEN") == "1"


def normal_life(story: Story) -> None:
    """An item is enqueued, leased, kept alive, completed"""
    alpha = story.cluster("alpha")
    alpha.enqueue("orders", "users", "invoices")
    orders, users = alpha.lease("worker-1", 2)
    alpha.wait("20s")
    alpha.heartbeat("worker-1", orders, users)
    alpha.wait("20s")
    story.say("without the heartbeat both leases would be over by now")
    alpha.complete("worker-1", orders, users)
    (invoices,) = alpha.lease("worker-1", 5)
    alpha.complete("worker-1", invoices)
    alpha.lease("worker-1")
    alpha.explain(3)


def lost_lease(story: Story) -> None:
    """A worker falls silent, another one gets the item, and the first is told to stop"""
    alpha = story.cluster("alpha")
    alpha.enqueue("orders")
    (first,) = alpha.lease("worker-1")
    alpha.explain(1)
    alpha.wait("31s")
    (second,) = alpha.lease("worker-2")
    story.say("worker-1 wakes up; each thing that it tries is refused")
    alpha.heartbeat("worker-1", first)
    alpha.complete("worker-1", first)
    alpha.fail("worker-1", first, error="E_SLOW: too late")
    alpha.give_back("worker-1", first)
    story.say("so is one who makes a fence up, or mistakes the attempt")
    alpha.complete("worker-1", first._replace(fence=99))
    alpha.complete("worker-1", second._replace(attempt=1))
    alpha.complete("worker-2", second)


def expiry_and_late_ack(story: Story) -> None:
    """A lease ends at its deadline to the millisecond, whether or not anybody looks"""
    alpha = story.cluster("alpha")
    alpha.configure(lease_duration_ms=1000, max_attempts=2)
    alpha.enqueue("orders", "users")
    orders, users = alpha.lease("worker-1", 2)
    alpha.clock_ms += 999
    story.say("one millisecond before the deadline is in time")
    alpha.complete("worker-1", orders)
    alpha.clock_ms += 1
    story.say("the deadline itself is too late: what is due happens before the call is looked at")
    alpha.complete("worker-1", users)
    (again,) = alpha.lease("worker-2")
    alpha.wait("5s")
    story.say("that was the last of two attempts, and the item is dead")
    alpha.complete("worker-2", again)
    alpha.explain(2)


def retry_after_a_lost_answer(story: Story) -> None:
    """The answer was lost on the way; the same call again changes nothing and is told what the first was told"""
    alpha = story.cluster("alpha")
    alpha.enqueue("orders", "users", op="e-1")
    alpha.enqueue("orders", "users", op="e-1")
    orders, users = alpha.lease("worker-1", 5, op="l-1")
    alpha.wait("10s")
    story.say("the leases are the same ones, and there is less time left on them")
    alpha.lease("worker-1", 5, op="l-1")
    alpha.complete("worker-1", orders, op="c-1")
    alpha.complete("worker-1", orders, op="c-1")
    story.say("a lease that is over by now is not handed out by an old answer")
    alpha.lease("worker-1", 5, op="l-1")
    alpha.fail("worker-1", users, error="E_DISK: no space", op="f-1")
    alpha.fail("worker-1", users, error="E_DISK: no space", op="f-1")
    story.say("also without an operation id a verdict that stands is confirmed, and another one refused")
    alpha.complete("worker-1", orders)
    alpha.fail("worker-1", orders, error="E_LATE: changed my mind")
    story.say("an operation id belongs to one kind of call, and to one peer")
    alpha.complete("worker-1", orders, op="l-1")
    alpha.lease("worker-2", 5, op="l-1")
    alpha.wait("2m")
    story.say("two minutes later the first answer is forgotten, and the call is a new one")
    alpha.enqueue("orders", "users", op="e-1")


def another_take(story: Story) -> None:
    """A node proposes a waiting call again: a later take asks anew after a refusal that time has cured"""
    alpha = story.cluster("alpha")
    alpha.configure(capacity=1)
    alpha.enqueue("orders")
    alpha.enqueue("users", op="e-1")
    (orders,) = alpha.lease("worker-1")
    alpha.complete("worker-1", orders)
    story.say("there is room now; yet a late copy of the first take is answered as the first was")
    alpha.enqueue("users", op="e-1")
    story.say("nothing is pending; a lease that found nothing is not remembered, so each take of it looks again")
    alpha.lease("worker-1", 1, op="l-1")
    alpha.enqueue("users", op="e-1", take=1)
    story.say("take 1 was accepted, and from then on that is the answer, whatever the take")
    alpha.enqueue("users", op="e-1")
    alpha.enqueue("users", op="e-1", take=2)
    alpha.lease("worker-1", 1, op="l-1", take=1)
    story.say("a later take of a lease takes over what still runs of it: it is extended")
    alpha.lease("worker-1", 1, op="l-1", take=2)


def dead_letter_and_redrive(story: Story) -> None:
    """An item fails for good, is looked at, and is put back to work with a new budget"""
    alpha = story.cluster("alpha")
    alpha.configure(max_attempts=2, requeue_delay_ms=1000, requeue_multiplier=2)
    alpha.enqueue("orders", "users")
    orders, users = alpha.lease("worker-1", 2)
    alpha.fail("worker-1", orders, error="E_SCHEMA: no such column")
    alpha.explain(1)
    alpha.fail("worker-1", users, error="E_POISON: cannot be read", requeue=False)
    story.say("a failure that is not to be tried again also says that this peer is not well")
    alpha.wait("1s")
    (orders,) = alpha.lease("worker-2", 5)
    alpha.fail("worker-2", orders, error="E_SCHEMA: no such column")
    alpha.explain(1)
    story.say("the verdict is final, for the last lease too")
    alpha.complete("worker-2", orders)
    alpha.redrive(2, 7)
    alpha.redrive(limit=10, op="r-1")
    alpha.redrive(limit=10, op="r-1")
    again = alpha.lease("worker-2", 5)
    story.say("each has two attempts again, counted from the redrive")
    alpha.fail("worker-2", *again, error="E_SCHEMA: no such column", delay="5s")


def dead_letters_are_bounded(story: Story) -> None:
    """Beyond dead_letter_limit the longest dead are discarded"""
    alpha = story.cluster("alpha")
    alpha.configure(dead_letter_limit=2, max_attempts=1)
    alpha.enqueue("a", "b", "c", "d")
    a, b, c, d = alpha.lease("worker-1", 4)
    alpha.fail("worker-1", a, error="E: first")
    alpha.fail("worker-1", b, c, error="E: second and third")
    alpha.complete("worker-1", a)
    alpha.explain(1)
    alpha.configure(dead_letter_limit=0)
    story.say("a lower limit takes effect with the next death")
    alpha.fail("worker-1", d, error="E: fourth")
    alpha.redrive(2)


def drain_and_restore(story: Story) -> None:
    """A queue moves to another cluster in pages, and what is sent twice arrives once"""
    alpha, beta = story.cluster("alpha"), story.cluster("beta")
    users_ = item("users", priority=9, body=b"12345", attributes={"team": "billing"})
    alpha.enqueue("orders", users_, item("invoices", delay="1m"), item("stock", request_id="r-4"), "rates")
    users, orders = alpha.lease("worker-1", 2)
    alpha.fail("worker-1", orders, error="E_NET: connection reset")
    first = alpha.drain("move-1", 0, limit=2, op="d-0")
    story.say("the answer was lost: asked again, the page is the same one")
    assert alpha.drain("move-1", 0, limit=2, op="d-0") == first
    story.say("pages come in order")
    alpha.drain("move-1", 2, limit=2)
    second = alpha.drain("move-1", 1, limit=2, op="d-1")
    third = alpha.drain("move-1", 2, limit=2, include_active=True, op="d-2")
    alpha.complete("worker-1", users)
    alpha.drain("move-1", 3, limit=2, include_active=True, op="d-3")
    beta.restore(first, "page 0")
    beta.restore(second, "page 1")
    beta.restore(second, "page 1, once more,")
    beta.restore(third, "page 2")
    beta.restore(third[:-1] + bytes([third[-1] ^ 1]), "page 2, damaged on the way,")
    story.say("ids, attempts and errors came along; fences go on above those of the first cluster")
    beta.lease("worker-7", 2)
    beta.enqueue("new")
    story.say("back where they came from: only what is not there")
    alpha.restore(second, "page 1")
    alpha.restore(first, "page 0", at="archive")
    story.say("an id that stands for something else is a conflict, and nothing of the page is taken")
    gamma = story.cluster("gamma")
    gamma.enqueue("something", "else")
    gamma.restore(third, "page 2")
    gamma.restore(first, "page 0")


def backpressure(story: Story) -> None:
    """On at the high watermark, off at the low one, each change one event"""
    alpha = story.cluster("alpha")
    alpha.configure(high_watermark=3, low_watermark=1)
    alpha.enqueue("a", item("b", request_id="r-b"))
    alpha.enqueue("c", "d")
    story.say("a call is taken whole while it is off; once it is on, everything new is refused")
    alpha.enqueue("e", item("b", request_id="r-b"), op="e-1")
    a, b = alpha.lease("worker-1", 2)
    alpha.enqueue("e", op="e-2")
    (c,) = alpha.lease("worker-1")
    story.say("one is pending: it is off, and the caller that waited is let in by its next take")
    alpha.enqueue("e", op="e-2", take=1)
    alpha.give_back("worker-1", a, b, c)
    alpha.configure(high_watermark=None, low_watermark=None)


def peer_lost_and_back(story: Story) -> None:
    """A peer lets its lease expire, is refused while it is unwell, and comes back with a heartbeat"""
    alpha = story.cluster("alpha")
    alpha.configure(enforce_peer_health=True)
    alpha.enqueue("orders", "users")
    alpha.lease("worker-1")
    alpha.wait("45s")
    alpha.lease("worker-1")
    alpha.explain(1)
    alpha.heartbeat("worker-1")
    again = alpha.lease("worker-1", 2)
    story.say("a peer that others do not know is welcome, and idle ones are heard of now and then")
    alpha.lease("worker-2")
    alpha.wait("1s")
    alpha.lease("worker-2")
    alpha.wait("3s")
    alpha.lease("worker-2")
    alpha.complete("worker-1", *again)


def heartbeat_of_a_whole_peer(story: Story) -> None:
    """One heartbeat holds everything that a peer has, in one namespace, also what it is granted next"""
    alpha = story.cluster("alpha")
    alpha.configure(lease_duration_ms=10_000)
    alpha.enqueue("a", "b", "c", "d")
    a, _ = alpha.lease("worker-1", 2)
    (c,) = alpha.lease("worker-2")
    alpha.wait("5s")
    alpha.heartbeat("worker-1", op="h-1")
    alpha.heartbeat("worker-1", op="h-1")
    alpha.wait("6s")
    story.say("worker-2 did not say anything; worker-1 holds both of its items")
    alpha.complete("worker-2", c)
    alpha.complete("worker-1", a)
    alpha.configure(lease_duration_ms=1000)
    alpha.lease("worker-1")
    story.say("the new lease ends no earlier than the heartbeat promised")
    alpha.heartbeat("worker-3")
    alpha.wait("4s")


def give_back_keeps_the_place(story: Story) -> None:
    """A worker shuts down and returns its items: each stands where it stood, and no attempt is spent"""
    alpha = story.cluster("alpha")
    alpha.enqueue("a", "b", "c", item("urgent", priority=8))
    urgent, a, b, c = alpha.lease("worker-1", 4)
    alpha.fail("worker-1", b, error="E: again, please")
    alpha.enqueue("d")
    alpha.give_back("worker-1", c, urgent, a)
    alpha.give_back("worker-1", a)
    alpha.explain(3)
    story.say("a failure went to the tail; what was given back is ahead of it, in the first order")
    alpha.lease("worker-2", 10)


def priorities_and_delays(story: Story) -> None:
    """Higher priority first, then first come; what is delayed joins its line when its time has come"""
    alpha = story.cluster("alpha")
    alpha.enqueue("a", item("b", priority=9), item("c", priority=0), item("d", delay="10s", priority=9), "e")
    alpha.explain(4)
    alpha.explain(3)
    alpha.lease("worker-1", 2)
    alpha.clock_ms += 9_999
    alpha.lease("worker-1")
    alpha.wait("1ms")
    alpha.explain(4)
    alpha.lease("worker-1", 5)
    story.say("what is wrong is refused alone")
    alpha.enqueue(item("f", priority=10), item("", request_id="r"), item("g", resource_type=" "), "h")


def request_ids(story: Story) -> None:
    """The caller's own name for an item: known while the item lives, and for a window after"""
    alpha = story.cluster("alpha")
    alpha.configure(dedup_window_ms=60_000)
    alpha.enqueue(item("orders", request_id="r-1"), item("orders", request_id="r-1"))
    alpha.wait("3m")
    alpha.enqueue(item("orders", request_id="r-1"), item("users", request_id="r-2"))
    orders, _ = alpha.lease("worker-1", 2)
    alpha.complete("worker-1", orders)
    alpha.clock_ms += 59_999
    alpha.enqueue(item("orders", request_id="r-1"))
    alpha.clock_ms += 1
    story.say("a minute after its end the name is free again")
    alpha.enqueue(item("orders", request_id="r-1"))
    alpha.enqueue(item("orders", request_id="r-1"), at="elsewhere")


def pause_and_resume(story: Story) -> None:
    """While paused nothing is granted, and everything else goes on"""
    alpha = story.cluster("alpha")
    alpha.enqueue("orders", "users")
    (orders,) = alpha.lease("worker-1")
    alpha.pause()
    alpha.pause()
    alpha.lease("worker-1")
    alpha.explain(2)
    alpha.enqueue("invoices")
    alpha.heartbeat("worker-1", orders)
    alpha.complete("worker-1", orders)
    alpha.resume()
    alpha.lease("worker-1", 2)
    alpha.resume(at="nowhere")


def effects_after_a_death(story: Story) -> None:
    """A side effect is done once: its runner dies halfway, and the next holder takes it over"""
    alpha = story.cluster("alpha")
    alpha.enqueue("orders")
    alpha.require_version("add-tax", 1, 2)
    alpha.require_version("add-tax", 1, 5)
    alpha.require_version("add-tax", 3, 5)
    (first,) = alpha.lease("worker-1")
    alpha.begin("worker-1", "add-tax/seq/1", first)
    alpha.begin("worker-1", "add-tax/seq/1", first)
    alpha.wait("30s")
    alpha.finish("worker-1", "add-tax/seq/1", first, b"19%")
    (second,) = alpha.lease("worker-2")
    alpha.finish("worker-2", "add-tax/seq/1", second, b"20%")
    alpha.begin("worker-2", "add-tax/seq/1", second)
    alpha.finish("worker-2", "add-tax/seq/1", second, b"21%")
    alpha.enqueue("users")
    (other,) = alpha.lease("worker-3")
    story.say("everyone who comes later is given the first stored result")
    alpha.begin("worker-3", "add-tax/seq/1", other)
    alpha.finish("worker-3", "add-tax/seq/1", other, b"7%")
    alpha.finish("worker-3", "add-tax/seq/2", other, b"7%")
    alpha.begin("worker-2", "email", second)
    alpha.begin("worker-3", "email", other)


def mistakes_of_an_operator(story: Story) -> None:
    """Options that make no sense are refused by name, and nothing of such a call is taken"""
    alpha = story.cluster("alpha")
    alpha.configure(capcity=10)
    alpha.configure(capacity=0)
    alpha.configure(capacity=10, max_attempts=True)
    alpha.configure(high_watermark=5)
    alpha.configure(high_watermark=5, low_watermark=5)
    alpha.configure(capacity=10, high_watermark=5, low_watermark=2)
    alpha.configure(capacity=10)
    alpha.configure(low_watermark=None)
    alpha.redrive(limit=1, at="nowhere")
    alpha.redrive(limit=0)


def one_lease_for_one_principal(story: Story) -> None:
    """A lease that was granted to somebody who said who he is can be ended by nobody else"""
    alpha = story.cluster("alpha")
    alpha.enqueue("orders")
    (orders,) = alpha.lease("worker-1", principal="alice")
    alpha.complete("worker-1", orders, principal="bob")
    alpha.complete("worker-1", orders)
    alpha.complete("worker-1", orders, principal="alice")


STORIES: dict[str, Callable[[Story], None]] = {
    story.__name__: story
    for story in (
        normal_life,
        lost_lease,
        expiry_and_late_ack,
        retry_after_a_lost_answer,
        another_take,
        dead_letter_and_redrive,
        dead_letters_are_bounded,
        drain_and_restore,
        backpressure,
        peer_lost_and_back,
        heartbeat_of_a_whole_peer,
        give_back_keeps_the_place,
        priorities_and_delays,
        request_ids,
        pause_and_resume,
        effects_after_a_death,
        mistakes_of_an_operator,
        one_lease_for_one_principal,
    )
}


def told(name: str, *, silent: bool = False) -> Story:
    """One story, from beginning to end."""
    tell = STORIES[name]
    story = Story(tell.__doc__ or name, silent=silent)
    tell(story)
    return story


@pytest.mark.parametrize("name", STORIES)
def test_the_story_is_told_as_before(name: str) -> None:
    now = told(name).transcript()
    path = GOLDEN / f"{name}.txt"
    if REWRITE:
        path.write_text(now, encoding="utf-8")
        return
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    changes = "\n".join(unified_diff(before.splitlines(), now.splitlines(), "golden", "now", lineterm=""))
    if changes:
        pytest.fail(f"{name} is told otherwise. If that is meant, run: make golden\n{changes}", pytrace=False)


@pytest.mark.parametrize("name", STORIES)
def test_entries_of_version_1_make_what_they_always_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, as chain and digest tell: they are in journals, and older releases make the same of them."""
    monkeypatch.setattr(ops, "_HEAD", bytes((0x94, 1)))
    path = GOLDEN_1 / f"{name}.txt"
    before = path if path.exists() else GOLDEN / f"{name}.txt"
    assert told(name).transcript() == before.read_text(encoding="utf-8")


def test_every_golden_file_has_its_story() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(STORIES)
