"""All drills by name, the quickest kinds of trouble first."""

from chaos.drills.catalog.damage import DRILLS as DAMAGE
from chaos.drills.catalog.devices import DRILLS as DEVICES
from chaos.drills.catalog.disks import DRILLS as DISKS
from chaos.drills.catalog.kills import DRILLS as KILLS
from chaos.drills.catalog.loads import DRILLS as LOADS
from chaos.drills.catalog.members import DRILLS as MEMBERS
from chaos.drills.catalog.mix import DRILLS as MIX
from chaos.drills.catalog.splits import DRILLS as SPLITS
from chaos.drills.catalog.upgrades import DRILLS as UPGRADES
from chaos.drills.scene import Drill

__all__ = ["DRILLS"]

DRILLS: dict[str, Drill] = {
    drill.name: drill for drill in (*KILLS, *SPLITS, *DISKS, *DAMAGE, *DEVICES, *LOADS, *MEMBERS, *UPGRADES, *MIX)
}
