"""Defects that are planted on purpose, to see that the simulator finds them."""

from dataclasses import dataclass

from chaos.simulation.ledger import Ledger, LedgerOutcome
from resourcelease.consensus.settings import Guards

__all__ = ["PLANTS", "Plant"]


@dataclass(frozen=True, slots=True)
class Plant:
    """One defect: what is planted, and what it should come out as."""

    name: str
    what: str
    # Guards that are off.
    guards_off: tuple[str, ...] = ()
    # Disk defects, by the field of ``DiskFaults``.
    disk: tuple[str, ...] = ()
    machine: type[Ledger] = Ledger
    # The profiles that show it soonest, which its seeds are drawn from; empty: all.
    profiles: tuple[str, ...] = ()

    def guards(self) -> Guards:
        """All guards but those that are off."""
        return Guards(**{name: name not in self.guards_off for name in Guards.names()})


class _AppliesTwice(Ledger):
    """Now and then an op takes effect again, on a node that has just been started."""

    def _take(self, name: bytes, outcome: LedgerOutcome) -> int:
        if len(self.answers) % 17 == 3:
            super()._take(name, outcome)
            self.answers.pop(name, None)
        return super()._take(name, outcome)


class _ForgetsAnAnswer(Ledger):
    """Of the rows, one answer is not stored: after a restart or a snapshot, its operation may happen again."""

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        puts, deletes = super().take_changes()
        kept = [row for row in puts if not (row[0][:1] == b"a" and row[1][-1] % 5 == 0)]
        return kept, deletes


def _guard(name: str, what: str, profiles: tuple[str, ...] = ()) -> Plant:
    return Plant(f"no-{name}", what, guards_off=(name,), profiles=profiles)


PLANTS: dict[str, Plant] = {
    plant.name: plant
    for plant in (
        Plant("no-trim", "a follower's log is cut at every append", ("trim", "pipeline"), profiles=("stalls",)),
        _guard("snapcommit", "a snapshot's message lifts the commit index", ("snapshots",)),
        _guard("snapseq", "chunks of different snapshots are spliced", ("everything",)),
        _guard("align", "a journal that does not begin where the state ends is cleared", ("power",)),
        _guard("sync", "answers, votes and acknowledgements leave before the fsync", ("kills",)),
        _guard("reset", "every batch that does not fit asks for a reset", ("backlog",)),
        _guard("term", "an acknowledgement of an earlier term counts", ("partitions",)),
        _guard("vote", "a vote that comes twice counts twice", ("elections",)),
        Plant(
            "no-epoch",
            "a connection that was replaced still delivers, and cuts the log",
            ("epoch", "trim"),
            profiles=("network",),
        ),
        _guard("reqid", "a reply to an earlier run answers a call of this one", ("kills",)),
        _guard("ci", "at the start, the end of the journal is taken for committed", ("snapshots",)),
        _guard("fallback", "a leader without a majority leads on for 30 s", ("network",)),
        _guard("stranger", "a removed node unseats leaders", ("members",)),
        _guard("stall", "a leader whose disk stands still leads on", ("disks",)),
        Plant(
            "torn", "a transaction is not atomic when the power goes", disk=("torn",), profiles=("alone", "everything")
        ),
        Plant("unchecked", "entries have no checksum", disk=("unchecked",), profiles=("disks",)),
        Plant("lost-vote", "the vote is not stored", disk=("forgets_vote",), profiles=("elections",)),
        Plant("apply-twice", "an op takes effect twice", machine=_AppliesTwice, profiles=("kills",)),
        Plant("drop-dedup", "an answer is missing from the stored rows", machine=_ForgetsAnAnswer, profiles=("kills",)),
    )
}
