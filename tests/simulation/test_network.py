"""The simulated network tells a sender when a peer does not keep up."""

from typing import Any

from chaos.simulation.network import Network, NetworkFaults
from chaos.simulation.world import World


class End:
    """A node that only listens."""

    running = True

    def __init__(self) -> None:
        self.epoch = 0
        self.frames: list[bytes] = []

    def opened(self, peer: str, epoch: int) -> None:
        self.epoch = epoch

    def closed(self, peer: str, epoch: int) -> None:
        self.epoch = 0

    def arrived(self, peer: str, epoch: int, frame: Any) -> None:
        self.frames.append(frame)

    def refused(self, peer: str) -> None:
        return


def connected(**faults: Any) -> tuple[World, Network, End, End]:
    world = World(0)
    network = Network(world, NetworkFaults(**faults))
    first, second = End(), End()
    network.add("a", first)
    network.add("b", second)
    network.connect_all("a")
    world.run_until(1.0)
    assert first.epoch == second.epoch > 0
    return world, network, first, second


def test_a_cut_fills_the_buffer_of_that_direction_and_its_end_empties_it() -> None:
    world, network, first, second = connected(buffer_bytes=100)
    network.cut("a", "b", 5.0)
    network.send("a", "b", first.epoch, b"x" * 99)
    assert network.has_room("a", "b")
    network.send("a", "b", first.epoch, b"y")
    world.run_until(4.0)
    assert not network.has_room("a", "b")
    assert network.has_room("b", "a")
    world.run_until(6.0)
    assert second.frames == [b"x" * 99, b"y"]
    assert network.has_room("a", "b")


def test_what_arrives_twice_leaves_the_buffer_once() -> None:
    world, network, first, second = connected(buffer_bytes=10, twice_rate=1.0)
    network.send("a", "b", first.epoch, b"x" * 10)
    world.run_until(3.0)
    assert second.frames == [b"x" * 10] * 2
    assert network.has_room("a", "b")
    network.send("a", "b", first.epoch, b"x" * 10)
    assert not network.has_room("a", "b")


def test_a_new_connection_has_an_empty_buffer() -> None:
    world, network, first, _ = connected(buffer_bytes=10)
    network.cut("a", "b", 3.0)
    network.send("a", "b", first.epoch, b"x" * 10)
    assert not network.has_room("a", "b")
    network.reset("a", "b")
    assert network.has_room("a", "b")
    world.run_until(5.0)
    assert first.epoch
    assert network.has_room("a", "b")


def test_without_a_bound_there_is_always_room() -> None:
    _, network, first, _ = connected()
    network.send("a", "b", first.epoch, b"x" * 1_000_000)
    assert network.has_room("a", "b")
