"""What an operator may tune, and the guards, which only the simulator ever turns off."""

from dataclasses import dataclass, fields

__all__ = ["ALL_GUARDS", "Guards", "Settings"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in seconds, sizes in bytes. The defaults suit three to five nodes on one network.

    >>> Settings(heartbeat_s=0.05).election_min_s
    0.6
    """

    # A leader is heard from at least this often.
    heartbeat_s: float = 0.1
    # How long a follower that has proposed nothing may wait to be told that entries are committed; the next entries,
    # which mostly come sooner, tell it as well.
    news_s: float = 0.005
    # While entries keep coming, and those followers acknowledge them that do so first, the others may be as far behind
    # as this.
    behind_s: float = 0.02
    # A follower that hears nothing for a time drawn between these two stands for election.
    election_min_s: float = 0.6
    election_max_s: float = 1.1
    # A leader that a majority has not answered for this long stops leading.
    fallback_s: float = 2.0
    # A proposal without an answer is sent again after this long, under the same bytes.
    retry_s: float = 1.0
    # The same reset of the same leader is not repeated sooner.
    reset_repeat_s: float = 0.5
    # The log clock moves by at most this much between two turns: a node that was stopped must not shorten leases.
    clock_step_max_s: float = 1.0

    # One log entry: what a proposal may weigh, and up to where proposals are joined.
    entry_bytes_max: int = 4 * _MIB
    # One message of entries; above the largest entry, so that the library never splits one.
    append_bytes_max: int = 8 * _MIB
    # One frame on the wire.
    frame_bytes_max: int = 32 * _MIB
    # Entries a leader keeps on their way before it gathers more proposals into the next one.
    in_flight_entries_max: int = 64
    # Ops, and bytes, in those entries. They may all be applied in one turn of the loop, on every node at once, and that
    # turn must be much shorter than an election takes to begin: an op alone costs the machine some 30 microseconds, and
    # each of an op's items, of about 100 bytes, some 3.
    in_flight_ops_max: int = 10_000
    in_flight_bytes_max: int = 8 * _MIB
    # Proposals that wait here for a leader or for room; more are refused.
    pending_max: int = 100_000

    # State rows are written behind after so many entries, bytes or seconds, whatever comes first, and not before those
    # that were written last are stored. They are gathered in one turn of the loop, often on all nodes at the same
    # entry: that is to stay a matter of a few milliseconds.
    flush_entries: int = 250
    flush_bytes: int = 1 * _MIB
    flush_s: float = 5.0
    # The journal keeps this much behind the stored rows, so that a short absence costs no snapshot.
    keep_entries: int = 10_000
    keep_bytes: int = 64 * _MIB

    # One piece of a snapshot, and how long its receiver may take to answer for the whole.
    chunk_bytes: int = 256 * 1024
    snapshot_answer_s: float = 10.0
    # A node that joins counts once it lacks no more than this many entries.
    learner_gap_max: int = 100
    # How long a leader holds back proposals while it hands over.
    transfer_s: float = 1.0


@dataclass(frozen=True, slots=True)
class Guards:
    """The pieces that make the library safe, by the names of docs/consensus.md. All are on, always.

    The simulator proves that each is needed by turning one off and finding the harm.
    """

    trim: bool = True
    snapcommit: bool = True
    snapseq: bool = True
    align: bool = True
    sync: bool = True
    reset: bool = True
    term: bool = True
    vote: bool = True
    epoch: bool = True
    reqid: bool = True
    ci: bool = True
    fallback: bool = True
    # Re-sending what is already on its way is waste, not harm; it is on this list because it feeds ``trim``.
    pipeline: bool = True
    # A vote request of a node outside the configuration must not unseat a leader that is heard from.
    stranger: bool = True
    # What a node acknowledges whose disk was lost does not count, and it votes for nobody, until it has shown that all
    # it ever acknowledged is there again (**newborn**).
    proof: bool = True
    # A leader whose disk stands still must not keep the lead.
    stall: bool = True

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Every guard, in order."""
        return tuple(field.name for field in fields(cls))


ALL_GUARDS = Guards()
