"""Messages that wait for the disk."""

from resourcelease.consensus.guards import Connections, Durability
from resourcelease.consensus.outbox import Outbox
from resourcelease.consensus.settings import ALL_GUARDS
from resourcelease.consensus.wire import Message

ACK: Message = {"type": "next_node_idx", "success": True, "term": 3}
NEWS: Message = {"type": "append_entries", "term": 3}


def outbox() -> tuple[Outbox, Connections, Durability]:
    connections, durability = Connections(), Durability(0)
    connections.opened("n2", 1)
    return Outbox(connections, durability, ALL_GUARDS), connections, durability


def test_what_promises_nothing_leaves_at_once_and_a_promise_when_its_batch_is_on_disk() -> None:
    out, _, durability = outbox()
    batch = durability.written(5, 0.0)
    out.put("n2", ACK)
    out.put("n2", NEWS)
    assert out.leave(3) == [("n2", NEWS)]
    assert out.covered(3) == []
    durability.done(batch)
    assert out.covered(3) == [("n2", ACK)]
    assert out.leave(3) == []


def test_what_has_not_waited_yet_is_not_let_go_with_what_has() -> None:
    out, _, durability = outbox()
    batch = durability.written(5, 0.0)
    out.put("n2", ACK)
    out.leave(3)
    durability.done(batch)
    later: Message = {**ACK, "next_node_idx": 7}
    out.put("n2", later)
    assert out.covered(3) == [("n2", ACK)], "the turn that knows what the other promises has not ended"
    assert out.leave(3) == [("n2", later)]


def test_with_nothing_on_its_way_to_the_disk_promises_leave_at_once() -> None:
    out, _, _ = outbox()
    out.put("n2", ACK)
    assert out.leave(3) == [("n2", ACK)]


def test_a_promise_of_an_earlier_term_or_connection_is_dropped() -> None:
    out, connections, durability = outbox()
    batch = durability.written(5, 0.0)
    out.put("n2", ACK)
    out.leave(3)
    durability.done(batch)
    assert out.leave(4) == []
    batch = durability.written(6, 0.0)
    out.put("n2", ACK)
    out.leave(3)
    connections.opened("n2", 2)
    durability.done(batch)
    assert out.leave(3) == []
