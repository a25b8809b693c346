"""One seed with the library as it ships, under the same schedule of faults as our own runs."""

import gc
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

from chaos.checkers import Violation
from chaos.simulation.clients import NAMESPACES, Producer, crew
from chaos.simulation.faults import Faults
from chaos.simulation.jury import Histories
from chaos.simulation.network import Network
from chaos.simulation.node import Node
from chaos.simulation.profiles import Profile, network_faults
from chaos.simulation.run import CLEAN, LIVENESS, SAFETY, Result, profile_of
from chaos.simulation.stock import StockNode
from chaos.simulation.world import World
from resourcelease.consensus import seams

__all__ = ["run_stock_seed"]

_PEACE_S = 60.0


def run_stock_seed(
    seed: int, *, nodes: int = 0, profile: Profile | None = None, tell: Callable[[str], None] | None = None
) -> Result:
    """The same seed and profile, with the library as it ships."""
    profile = replace(
        profile or profile_of(seed, None),
        spare_nodes=0,
        change_every_s=0.0,
        flip_every_s=0.0,
        lose_every_s=0.0,
        forget_every_s=0.0,
        full_every_s=0.0,
        stuck_rate=0.0,
    )
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    home = Path(tempfile.mkdtemp(prefix="stock-", dir=parent))
    # The library leaves files to the garbage collector.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return _run(World(seed, tell), seed, nodes, profile, home)
        finally:
            gc.collect()
            shutil.rmtree(home, ignore_errors=True)


def _run(world: World, seed: int, count: int, profile: Profile, home: Path) -> Result:
    count = count or world.rng.choice(profile.nodes)
    # What TCP would not do to it is not done: nothing arrives twice, or by a connection that was replaced.
    network = Network(world, replace(network_faults(profile), twice_rate=0.0, late_rate=0.0, buffer_bytes=0))
    seams.patch_library()
    histories = Histories()
    names = [f"n{number}" for number in range(1, count + 1)]
    stock = [StockNode(name, names, world, network, home, profile, histories) for name in names]
    cluster = cast(list[Node], stock)
    for node in stock:
        network.add(node.name, node)
        world.after(world.rng.uniform(0.0, 0.2), node.start)
    clients = crew(world, stock, histories.acknowledged, profile.clients, profile.think_s)
    for client in clients:
        client.start()
    faults = Faults(world, network, cluster, [], profile)
    world.after(1.0, faults.start)
    code, detail = CLEAN, ""

    def broken() -> bool:
        return any(node.found for node in stock)

    try:
        world.run_until(profile.safety_s, broken)
        faults.stop()
        world.run_until(world.now + 3.0, broken)
        for client in clients:
            client.stop()
        probe = Producer("probe", NAMESPACES[0], world, stock, histories.acknowledged, 0.1)
        probe.start()
        together = world.run_until(world.now + _PEACE_S, lambda: broken() or probe.answered >= 3)
        probe.stop()
        together = together and world.run_until(world.now + _PEACE_S, lambda: broken() or _together(stock))
        code, detail = _judge(stock, histories, together)
    except Violation as violation:
        code, detail = SAFETY, str(violation)
    terms = max(node.term for node in stock)
    entries = max(node.library.machine.applied_index if node.library else 0 for node in stock)
    for node in stock:
        node.stop()
    world.tell("verdict", detail or "clean")
    return Result(
        seed,
        profile.name,
        count,
        code,
        detail,
        world.now,
        histories.acknowledged.count,
        terms,
        entries,
        world.faults,
    )


def _together(nodes: list[StockNode]) -> bool:
    applied = {node.library.raftLastApplied if node.library else -1 for node in nodes}
    return len(applied) == 1


def _judge(nodes: list[StockNode], histories: Histories, together: bool) -> tuple[int, str]:
    for node in nodes:
        for violation in node.found:
            raise violation
    if not together:
        return LIVENESS, "the nodes did not come together in peace"
    for node in nodes:
        if node.library is not None:
            histories.ended(node.name, node.library.machine)
            histories.folded(node.name, node.library.machine)
    return CLEAN, ""
