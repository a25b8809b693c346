"""The settings by name, and which drills cannot be played in which."""

from pathlib import Path
from typing import Protocol

from chaos.drills.cluster import Cluster
from chaos.drills.containers import Containers
from chaos.drills.loopback import Loopback
from chaos.drills.namespaces import Namespaces
from chaos.drills.scene import Drill

__all__ = ["SETTINGS", "Setting", "why_skipped"]


class Setting(Protocol):
    """One way to run nodes and to make faults."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def delays(self) -> bool:
        """Whether bytes can be held back for a while."""
        ...

    @property
    def names(self) -> bool:
        """Whether nodes have names that can go away."""
        ...

    @property
    def one_way(self) -> bool:
        """Whether one direction of a link can be cut."""
        ...

    @property
    def processes(self) -> bool:
        """Whether nodes are processes of this machine, which others can be started beside, or before."""
        ...

    def why_not(self) -> str:
        """Why it cannot be used here; empty if it can."""
        ...

    async def found(self, directory: Path, count: int, drill: Drill) -> Cluster:
        """A new cluster as a drill needs it, not started."""
        ...

    def clear(self, *, keep: bool) -> list[str]:
        """Takes away what is left of the last drill; or keeps it, and says how to look at it and how to remove it."""
        ...


SETTINGS: dict[str, type[Loopback] | type[Namespaces] | type[Containers]] = {
    setting.name: setting for setting in (Loopback, Namespaces, Containers)
}


def why_skipped(setting: Setting, drill: Drill, plant: str = "") -> str:
    """Why a drill cannot be played in a setting here; empty if it can.

    >>> from chaos.drills.catalog import DRILLS
    >>> why_skipped(Loopback(), DRILLS["names-away"])
    'names that go away need --setting namespaces'
    """
    if reason := setting.why_not():
        return reason
    if drill.delays and not setting.delays:
        return "delays need the proxy: --setting loopback"
    if drill.names and not setting.names:
        return "names that go away need --setting namespaces"
    if drill.one_way and not setting.one_way:
        return f"{setting.name} have no cuts of one direction: --setting loopback or namespaces"
    if (drill.shim or drill.processes or plant) and not setting.processes:
        what = "a bad disk or clock" if drill.shim else "a second process or an earlier release"
        what = "a planted defect" if plant else what
        return f"{what} cannot be had in {setting.name}: --setting loopback or namespaces"
    return drill.why_skipped()
