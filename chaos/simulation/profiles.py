"""What goes wrong in a run, and how often. The seed picks the profile, and everything within it."""

from dataclasses import dataclass, fields, replace

from chaos.simulation.network import NetworkFaults

__all__ = ["PROFILES", "Profile", "network_faults"]


@dataclass(frozen=True, slots=True)
class Profile:
    """Each ``*_every_s`` is the mean time between two such faults in the safety phase; 0 for never."""

    name: str
    nodes: tuple[int, ...] = (3, 3, 5)
    safety_s: float = 12.0
    # The founders start within this time.
    start_max_s: float = 0.2
    clients: int = 6
    # Pause of a client between an answer and its next call, at most.
    think_s: float = 0.4

    kill_every_s: float = 0.0
    power_every_s: float = 0.0
    # The power of all nodes at once.
    blackout_every_s: float = 0.0
    down_max_s: float = 3.0
    reset_every_s: float = 0.0
    cut_every_s: float = 0.0
    cut_max_s: float = 4.0
    # How often a cut also breaks the connection.
    cut_reset_rate: float = 0.3
    # The leader and a minority on one side, everybody else on the other.
    split_every_s: float = 0.0
    split_max_s: float = 3.5
    # A leader is split off with one follower, deposed, and made the leader again.
    rerun_every_s: float = 0.0
    pause_every_s: float = 0.0
    pause_max_s: float = 3.0
    wall_jump_every_s: float = 0.0
    flip_every_s: float = 0.0
    # A disk is lost with all that was on it; not the next before the node has caught up.
    lose_every_s: float = 0.0
    # One of a bare majority forgets what it acknowledged, and meets the others.
    forget_every_s: float = 0.0
    # A disk has no space for so long at most.
    full_every_s: float = 0.0
    full_max_s: float = 3.0
    transfer_every_s: float = 0.0
    # Nodes beyond the first ones, that are added and removed.
    spare_nodes: int = 0
    change_every_s: float = 0.0

    delay_min_s: float = 0.0002
    delay_max_s: float = 0.002
    slow_rate: float = 0.0
    slow_max_s: float = 0.0
    # How often a message arrives again, and what a broken connection had on its way arrives after all.
    twice_rate: float = 0.0
    twice_max_s: float = 0.5
    late_rate: float = 0.3
    # What a sender holds for a peer before it has no room for more; 0 for no bound.
    buffer_bytes: int = 0
    stall_rate: float = 0.0
    stall_max_s: float = 0.0
    sync_max_s: float = 0.002
    # A leader's disk is stuck from the end of the safety phase on.
    stuck_rate: float = 0.0
    # Clock rates are drawn from 1 ± this.
    clock_drift: float = 0.02

    # Rows are stored, and the journal cut, after so many entries; so much is kept behind.
    flush_entries: int = 30
    keep_entries: int = 10
    chunk_bytes: int = 256
    # An append carries no more than this, so that a backlog takes many.
    append_bytes: int = 8 * 1024 * 1024
    election_max_s: float = 1.1


def network_faults(profile: Profile) -> NetworkFaults:
    """The network of a profile."""
    return NetworkFaults(
        **{field.name: getattr(profile, field.name) for field in fields(NetworkFaults) if hasattr(profile, field.name)}
    )


_KILLS = Profile("kills", kill_every_s=1.5, reset_every_s=2.0)
_NETWORK = Profile(
    "network", reset_every_s=0.7, cut_every_s=1.2, slow_rate=0.05, slow_max_s=0.6, twice_rate=0.02, append_bytes=2048
)

PROFILES: tuple[Profile, ...] = (
    _KILLS,
    Profile("power", power_every_s=2.0, blackout_every_s=4.0, reset_every_s=2.0, sync_max_s=0.01),
    _NETWORK,
    # Connections are replaced all the time, and go on delivering.
    replace(_NETWORK, name="late", reset_every_s=0.4, slow_rate=0.1, twice_rate=0.0, late_rate=0.8),
    Profile(
        "stalls",
        nodes=(5, 5, 3),
        cut_every_s=0.7,
        cut_max_s=6.0,
        cut_reset_rate=0.0,
        slow_rate=0.02,
        slow_max_s=1.0,
        twice_rate=0.05,
        kill_every_s=6.0,
        append_bytes=2048,
        clients=6,
        safety_s=16.0,
    ),
    Profile(
        "elections",
        nodes=(5, 5, 3),
        kill_every_s=0.25,
        down_max_s=0.1,
        slow_rate=0.5,
        slow_max_s=0.6,
        twice_rate=0.8,
        twice_max_s=0.1,
        election_max_s=0.7,
        clients=3,
    ),
    Profile(
        "partitions",
        nodes=(5,),
        rerun_every_s=4.0,
        twice_rate=0.5,
        twice_max_s=6.0,
        append_bytes=2048,
        clients=4,
        safety_s=18.0,
    ),
    Profile(
        "backlog",
        clients=8,
        think_s=0.05,
        split_every_s=2.0,
        reset_every_s=5.0,
        append_bytes=1536,
        safety_s=8.0,
        keep_entries=1000,
    ),
    Profile(
        "snapshots",
        kill_every_s=2.5,
        reset_every_s=0.8,
        down_max_s=5.0,
        flush_entries=10,
        keep_entries=0,
        chunk_bytes=64,
        think_s=0.05,
        slow_rate=0.05,
        slow_max_s=0.3,
    ),
    Profile(
        "disks",
        power_every_s=3.0,
        reset_every_s=2.0,
        flip_every_s=4.0,
        stall_rate=0.01,
        stall_max_s=4.0,
        stuck_rate=0.3,
        sync_max_s=0.03,
    ),
    # The disks are slow, and the power goes while they write.
    Profile(
        "writes",
        power_every_s=0.6,
        blackout_every_s=3.0,
        down_max_s=0.3,
        sync_max_s=0.08,
        flush_entries=3,
        keep_entries=0,
        think_s=0.1,
    ),
    Profile(
        "losses",
        start_max_s=3.0,
        lose_every_s=0.8,
        forget_every_s=4.0,
        kill_every_s=1.0,
        cut_every_s=1.0,
        reset_every_s=2.0,
        down_max_s=0.5,
        append_bytes=1536,
    ),
    # In the end a leader's disk takes nothing any more.
    Profile("stuck", kill_every_s=4.0, stall_rate=0.01, stall_max_s=1.0, stuck_rate=1.0, safety_s=6.0),
    Profile(
        "clocks",
        pause_every_s=1.5,
        wall_jump_every_s=1.0,
        clock_drift=0.1,
        transfer_every_s=2.0,
        reset_every_s=2.0,
    ),
    Profile(
        "members",
        nodes=(3, 3, 1),
        spare_nodes=2,
        change_every_s=1.5,
        kill_every_s=3.0,
        reset_every_s=2.0,
        transfer_every_s=3.0,
        safety_s=15.0,
    ),
    # Hardly any faults, and much to do for the machine.
    Profile("lives", nodes=(3,), kill_every_s=6.0, cut_every_s=4.0, clients=6, think_s=0.2, transfer_every_s=5.0),
    Profile(
        "alone",
        nodes=(1,),
        kill_every_s=1.5,
        power_every_s=2.0,
        sync_max_s=0.02,
        safety_s=8.0,
        think_s=0.1,
        flush_entries=5,
        keep_entries=2,
    ),
    replace(
        _NETWORK,
        name="everything",
        append_bytes=2048,
        kill_every_s=3.0,
        power_every_s=6.0,
        blackout_every_s=12.0,
        pause_every_s=5.0,
        transfer_every_s=6.0,
        flush_entries=15,
        keep_entries=5,
        chunk_bytes=128,
        stall_rate=0.003,
        stall_max_s=2.0,
        cut_every_s=3.0,
    ),
    # Disks that have no space, and connections that have no room. The last one, as seeds draw profiles by their place.
    Profile(
        "full",
        full_every_s=1.2,
        kill_every_s=3.0,
        cut_every_s=1.5,
        cut_max_s=2.0,
        cut_reset_rate=0.1,
        sync_max_s=0.01,
        buffer_bytes=1024,
        append_bytes=2048,
        think_s=0.1,
        keep_entries=200,
    ),
)
