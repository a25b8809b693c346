"""Defects that are planted on purpose, to see that the simulator finds them."""

from dataclasses import dataclass

from chaos.simulation import planted
from chaos.simulation.machines import Watched
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
    machine: type[Watched] = Watched
    # Every start is told that it founds the cluster, also that on a disk that was lost.
    always_founding: bool = False
    # The profiles that show it soonest, which its seeds are drawn from; empty: all.
    profiles: tuple[str, ...] = ()

    def guards(self) -> Guards:
        """All guards but those that are off."""
        return Guards(**{name: name not in self.guards_off for name in Guards.names()})


def _guard(name: str, what: str, profiles: tuple[str, ...] = ()) -> Plant:
    return Plant(f"no-{name}", what, guards_off=(name,), profiles=profiles)


def _disk(name: str, what: str, profiles: tuple[str, ...]) -> Plant:
    return Plant(name, what, disk=(name.replace("-", "_"),), profiles=profiles)


def _rule(name: str, what: str, machine: type[Watched], profiles: tuple[str, ...] = ("lives",)) -> Plant:
    return Plant(name, what, machine=machine, profiles=profiles)


_GUARDS = (
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
        profiles=("late",),
    ),
    _guard("reqid", "a reply to an earlier run answers a call of this one", ("kills",)),
    _guard("ci", "at the start, the end of the journal is taken for committed", ("snapshots",)),
    _guard("fallback", "a leader without a majority leads on for 30 s", ("network",)),
    _guard("stranger", "a removed node unseats leaders", ("members",)),
    Plant(
        "no-newborn",
        "a node whose disk was lost votes before it has caught up",
        always_founding=True,
        profiles=("losses",),
    ),
    _guard("proof", "a node whose disk was lost counts as soon as its log reaches into the leader's term", ("losses",)),
    _guard("stall", "a leader whose disk stands still leads on", ("stuck",)),
)

_DISKS = (
    _disk("no-fsync", "the disk says that it has synced, and has not", ("power",)),
    _disk("full-yes", "a full disk says that it has written, and has not", ("full",)),
    _disk("torn", "a transaction is not atomic when the power goes", ("writes",)),
    _disk("unchecked", "entries have no checksum", ("disks",)),
    _disk("lost-vote", "the vote is not stored", ("elections",)),
)

_RULES = (
    _rule("apply-twice", "an operation takes effect twice", planted.AppliesTwice),
    _rule("false-yes", "a completion is accepted and not done", planted.SaysYes),
    _rule("false-no", "a completion is done and refused", planted.RefusesTheRightful),
    _rule("wrong-fence", "a holder is told another fence than the history has", planted.AnswersAnother),
    _rule("reused-fence", "a fence is drawn twice", planted.ReusesAFence),
    _rule("any-fence", "an ack under an old fence counts for the live lease", planted.IgnoresFences),
    _rule("two-holders", "an item is granted while a lease of it lives", planted.GrantsAgain),
    _rule("late-ack", "an ack is accepted after its deadline", planted.AcceptsLateAcks),
    _rule("early-expiry", "leases end before their deadline", planted.CutsLeasesShort),
    _rule("no-due", "nobody sees to what falls due before the next call", planted.SleepsThrough),
    _rule("wall-clock", "leases end by the wall clock", planted.ExpiresByWallClock, ("clocks",)),
    _rule("no-verdicts", "what was completed is forgotten", planted.ForgetsVerdicts),
    _rule("no-answers", "answers by operation id are forgotten", planted.ForgetsAnswers, ("kills",)),
    _rule("no-requests", "request ids are forgotten", planted.ForgetsRequests),
    _rule("no-effects", "effects are forgotten", planted.ForgetsEffects),
    _rule("drop-answers", "answers are missing from the stored rows", planted.DropsAnswerRows, ("kills",)),
    _rule("drop-requests", "request ids are missing from the stored rows", planted.DropsRequestRows, ("kills",)),
    _rule("drop-items", "items are missing from the stored rows", planted.DropsItemRows, ("kills",)),
    _rule("divergence", "one node applies otherwise than the others", planted.Diverges),
    _rule("hidden-event", "an event is not written", planted.HidesAnEvent),
    _rule("silent-change", "the state changes and no event says so", planted.ChangesInSilence),
)

PLANTS: dict[str, Plant] = {plant.name: plant for plant in (*_GUARDS, *_DISKS, *_RULES)}
