"""The search: true histories have an order, falsified ones have none."""

import pytest

from chaos.drills.checkers import linearizable
from chaos.drills.checkers.linear import order_of
from chaos.drills.history import Call
from drills.stories import LEASE_S, ack, enqueue, grant, life, look

TRUE: dict[str, list[Call]] = {
    "a plain life": life(),
    "concurrent calls in either order": [
        enqueue(0, 1),
        grant(0.2, 0.9, 5),
        ack("complete", 1.0, 1.1, 5),
        look("done"),
    ],
    "given out again after the lease has run": [
        enqueue(),
        grant(0.2, 0.3, 5),
        grant(2.1, 2.4, 6, attempt=2),
        ack("complete", 2.5, 2.6, 5, refused="LEASE_LOST"),
        ack("complete", 2.7, 2.8, 6, attempt=2),
        look("done"),
    ],
    "failed and given out at once": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("fail", 0.4, 0.5, 5),
        grant(0.6, 0.7, 6, attempt=2),
        ack("give-back", 0.8, 0.9, 6, attempt=2),
        grant(1.0, 1.1, 7, attempt=2),
        ack("complete", 1.2, 1.3, 7, attempt=2),
        look("done"),
    ],
    "completed twice": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("complete", 1, 2, 5),
        ack("complete", 3, 4, 5),
        look("done"),
    ],
    "an enqueue without an answer that took effect": [
        enqueue(outcome="unknown"),
        grant(5, 6, 5),
        ack("complete", 6, 7, 5),
        look("done"),
    ],
    "an enqueue without an answer that did not": [enqueue(outcome="unknown")],
    "a completion without an answer that took effect late": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("complete", 0.4, 1.0, 5, unknown=True),
        ack("beat", 1.1, 1.2, 5),
        look("done"),
    ],
    "a heartbeat that carried the lease over its time": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("beat", 1.9, 2.0, 5),
        ack("complete", 3.8, 3.9, 5),
        look("done"),
    ],
    "a lease that nobody saw": [
        enqueue(),
        grant(2.5, 2.6, 9, attempt=2),
        ack("complete", 3, 4, 9, attempt=2),
        look("done"),
    ],
    "a lease that nobody saw, which lived while an older one was refused": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("complete", 3.9, 4.0, 5, refused="LEASE_LOST"),
        grant(4.3, 4.4, 9, attempt=3),
        ack("complete", 4.5, 4.6, 9, attempt=3),
        look("done"),
    ],
    "buried": [enqueue(), grant(0.2, 0.3, 5), ack("bury", 0.4, 0.5, 5), look("dead")],
}

FALSE: dict[str, list[Call]] = {
    "two holders at once": [enqueue(), grant(0.2, 0.3, 5), grant(0.4, 0.5, 6, attempt=2)],
    "two holders at once, in the same attempt": [enqueue(), grant(0.2, 0.3, 5), grant(3.0, 3.1, 6)],
    "a fence that falls": [
        enqueue(),
        grant(0.2, 0.3, 6),
        ack("give-back", 0.4, 0.5, 6),
        grant(0.6, 0.7, 5),
    ],
    "a lease cut short": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("complete", 1.0, 1.1, 5, refused="LEASE_LOST"),
        look("waiting"),
    ],
    "a lease that nobody saw, cut short": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("complete", 3.9, 4.0, 5, refused="LEASE_LOST"),
        grant(4.0, 4.1, 9, attempt=3),
        look("waiting"),
    ],
    "a heartbeat that was forgotten": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("beat", 1.9, 2.0, 5),
        ack("complete", 2.5, 2.6, 5, refused="LEASE_LOST"),
        look("waiting"),
    ],
    "an acknowledged item that is gone": [enqueue(), look("absent")],
    "an acknowledged completion that is gone": [*life()[:-1], look("waiting")],
    "done, and handed out again": [*life()[:-1], grant(3.0, 3.1, 20, attempt=2), look("done")],
    "completed under an old fence": [
        enqueue(),
        grant(0.2, 0.3, 5),
        grant(2.4, 2.5, 6, attempt=2),
        ack("complete", 2.6, 2.7, 5),
        look("done"),
    ],
    "done before it was enqueued": [enqueue(5, 6), grant(0.2, 0.3, 5)],
    "one request, two items": [enqueue(), Call("p", "enqueue", 1, 2, "ok", 2, request="request-1")],
    "buried, and done": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("bury", 0.4, 0.5, 5),
        ack("complete", 0.6, 0.7, 5),
        look("dead"),
    ],
    "refused, and done all the same": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("complete", 5.0, 5.1, 5, refused="LEASE_LOST"),
        look("done"),
    ],
    "not found while it waits": [
        enqueue(),
        grant(0.2, 0.3, 5),
        ack("complete", 5.0, 5.1, 5, refused="NOT_FOUND"),
        look("done"),
    ],
}


@pytest.mark.parametrize("story", TRUE.values(), ids=TRUE.keys())
def test_true_histories_have_an_order(story: list[Call]) -> None:
    order = order_of(story, LEASE_S)
    assert order is not None
    assert len(order) >= sum(not call.unknown and call.kind != "write" for call in story)


@pytest.mark.parametrize("story", FALSE.values(), ids=FALSE.keys())
def test_falsified_histories_have_none(story: list[Call]) -> None:
    assert order_of(story, LEASE_S) is None


def test_the_sentence_names_the_item_and_tells_its_story() -> None:
    (sentence,) = linearizable([*life(1), *life(2)[:2], *FALSE["two holders at once"][2:]], LEASE_S)
    assert "request-1" in sentence
    assert "grant(6)" in sentence


def test_many_items_are_judged_each_for_itself() -> None:
    assert linearizable([call for item in range(1, 200) for call in life(item)], LEASE_S) == []
