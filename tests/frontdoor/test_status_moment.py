"""What a node says of itself is of one moment, whatever happens while it looks something up."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from resourcelease import v1
from resourcelease.consensus import Status
from resourcelease.frontdoor.cluster import ClusterAdmin
from resourcelease.frontdoor.replica import Replica
from resourcelease.machine import Machine
from resourcelease.storage.api import Loaded


class Elected:
    """Follows in term 1, and leads in term 2 from the moment on in which somebody waits."""

    def __init__(self) -> None:
        self.term = 1

    @property
    def is_leader(self) -> bool:
        return self.term == 2

    @property
    def leader(self) -> str:
        return "n1" if self.is_leader else "n2"

    def status(self) -> Status:
        return Status("n1", self.leader, self.term, 10 * self.term, 10 * self.term, {}, [], 0)

    async def first_sequence(self) -> int:
        await asyncio.sleep(0)
        self.term = 2
        return 1


def test_role_and_term_are_of_one_moment() -> None:
    elected, nobody = Elected(), cast(Any, SimpleNamespace(address_of=lambda node: f"{node}:7101"))
    replica = SimpleNamespace(consensus=elected, machine=Machine("c"), position=v1.LogPosition)

    async def at_once(wanted: bool, remaining_s: float | None) -> None:
        """Nothing to wait for."""

    replica.linearize = at_once
    store = SimpleNamespace(load=lambda: Loaded(1, "", 0, 0, 1, 10), identity=SimpleNamespace(cluster_id="c"))
    admin = ClusterAdmin(cast(Replica, replica), nobody, cast(Any, store), cast(Any, elected))
    caller = cast(Any, SimpleNamespace(remaining_s=lambda: None))
    told = asyncio.run(admin.status(caller, v1.StatusRequest()))
    leads = told.role == v1.NodeRole.NODE_ROLE_LEADER
    assert (leads, told.term, told.leader_id, told.applied_index) in {
        (False, 1, "n2", 10),
        (True, 2, "n1", 20),
    }
