"""Three hosts without disk delays: what a turn does, what it leaves for later, and what asks for none."""

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from bench.consensus_node import machines
from chaos.simulation.disk import Disk, DiskFaults
from chaos.simulation.world import World
from resourcelease.consensus.effects import Effects
from resourcelease.consensus.entries import join_ops
from resourcelease.consensus.host import Host
from resourcelease.consensus.settings import Settings
from resourcelease.consensus.wire import Message

NAMES = ("n1", "n2", "n3")
BOOT = {name: f"{name}:1" for name in NAMES}
SETTINGS = Settings()


class Trio:
    """The hosts, and the messages between them; a disk takes no time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.mail: list[tuple[str, str, Message]] = []
        self.gave_way: Counter[str] = Counter()
        self.answers: list[tuple[str, int]] = []
        self.hosts = {name: self._host(name) for name in NAMES}
        for name, host in self.hosts.items():
            for other in NAMES:
                if other != name:
                    host.opened(other, 1)

    def _host(self, name: str) -> Host:
        return Host(
            node_id=name,
            store=Disk(World(0), name, DiskFaults()),
            machines=machines("bare"),
            incarnation=int(name[1:]),
            rng=random.Random(name),
            now=self.now,
            bootstrap=BOOT,
            settings=SETTINGS,
            founding=True,
            give_way=lambda: self.gave_way.update([name]),
        )

    def turn(self, name: str) -> Effects:
        """One turn; what it writes is on the disk at once, and what it sends in the mail."""
        host = self.hosts[name]
        effects = host.turn(self.now)
        sends = [*effects.sends]
        if effects.write is not None:
            host.durable(effects.write[0])
            sends += host.released()
        self.mail += [(name, peer, message) for peer, message in sends]
        self.answers += [(name, number) for number, _ in effects.answers]
        return effects

    def deliver(self) -> Iterator[tuple[str, bool]]:
        """All the mail there is, one by one: to whom, and whether a turn is due for it."""
        while self.mail:
            sender, to, message = self.mail.pop(0)
            yield to, self.hosts[to].receive(sender, 1, message)

    def rest(self, seconds: float = 0.0) -> None:
        """Lets all have what turns they want for so long."""
        until = self.now + seconds
        while True:
            for to, due in self.deliver():
                if due:
                    self.turn(to)
            waiting = [name for name in NAMES if self.hosts[name].next_turn_at() <= self.now]
            for name in waiting:
                self.turn(name)
            if not waiting and not self.mail:
                if self.now >= until:
                    return
                self.now = min(until, min(self.hosts[name].next_turn_at() for name in NAMES))

    @property
    def leader(self) -> str:
        """Who leads."""
        (name,) = [name for name in NAMES if self.hosts[name].is_leader]
        return name

    @property
    def followers(self) -> list[str]:
        """The others."""
        return [name for name in NAMES if name != self.leader]

    def propose(self, name: str, size: int = 100) -> int:
        """An op of so many bytes, taken note of."""
        return self.hosts[name].propose(1, join_ops([bytes(size)]), self.now + 5.0)

    def entry(self, size: int = 100) -> dict[str, list[Message]]:
        """The leader appends one; what it sends with it, by follower, not delivered."""
        self.propose(self.leader, size)
        self.turn(self.leader)
        sent: dict[str, list[Message]] = {name: [] for name in NAMES}
        for _, to, message in self.mail:
            sent[to].append(message)
        self.mail.clear()
        return sent


@pytest.fixture
def trio() -> Trio:
    """With a leader whose clock runs, and nothing left to do."""
    trio = Trio()
    trio.rest(5.0)
    trio.propose(trio.leader)
    trio.rest(0.5)
    assert len({host.applied_index for host in trio.hosts.values()}) == 1
    trio.gave_way.clear()
    return trio


def committed(trio: Trio, quick: str, count: int, size: int = 100) -> None:
    """So many entries more, acknowledged by one follower; each tells it that the one before is committed."""
    for _ in range(count):
        for message in trio.entry(size)[quick]:
            trio.hosts[quick].receive(trio.leader, 1, message)
        trio.turn(quick)
        for to, due in trio.deliver():
            if due and to == trio.leader:
                trio.hosts[to].turn(trio.now)


def quick_of(trio: Trio) -> str:
    """The follower that new entries go to at once."""
    sent = trio.entry()
    (quick,) = [name for name in trio.followers if any(message.get("entries") for message in sent[name])]
    for message in sent[quick]:
        trio.hosts[quick].receive(trio.leader, 1, message)
    trio.turn(quick)
    trio.rest(0.1)
    return quick


@pytest.mark.parametrize("size", [100, 4000])
def test_a_follower_applies_right_after_its_acknowledgement(trio: Trio, size: int) -> None:
    quick = quick_of(trio)
    committed(trio, quick, 2, size=size)
    host = trio.hosts[quick]
    assert host.unfinished
    assert host.next_turn_at() == trio.now
    assert len(trio.turn(quick).applied) == 1
    assert not host.unfinished


def test_a_follower_with_callers_of_its_own_does_not_put_off_what_they_wait_for(trio: Trio) -> None:
    quick = quick_of(trio)
    host = trio.hosts[quick]
    number = trio.propose(quick)
    trio.turn(quick)
    assert [to for to, _ in trio.deliver()] == [trio.leader]
    committed(trio, quick, 2)
    assert (quick, number) not in trio.answers
    assert host.unfinished
    assert host.next_turn_at() == trio.now
    trio.turn(quick)
    assert (quick, number) in trio.answers


def test_only_a_follower_gives_way_before_it_applies(trio: Trio) -> None:
    committed(trio, quick_of(trio), 3)
    trio.rest(1.0)
    assert len({host.applied_index for host in trio.hosts.values()}) == 1
    assert set(trio.gave_way) == set(trio.followers)
    assert len(set(trio.gave_way.values())) == 1, "once for each entry"


def test_an_acknowledgement_of_what_is_committed_asks_for_no_turn(trio: Trio) -> None:
    leader = trio.hosts[trio.leader]
    first, second = trio.followers
    sent = trio.entry()
    everything = sent[first] or sent[second]
    dues = []
    for name in trio.followers:
        for message in everything:
            trio.hosts[name].receive(trio.leader, 1, message)
        trio.turn(name)
        for to, due in trio.deliver():
            dues.append(due)
            if due:
                trio.turn(to)
    assert dues == [True, False]
    assert leader.commit_index == leader.journal.last_index
    trio.rest(0.3)
    assert all(leader._raft.match_index(name) == leader.commit_index for name in trio.followers)
