"""The shapes of load, and how long each lasts."""

from dataclasses import dataclass

__all__ = ["DEPTH_BATCH", "DEPTH_WORKERS", "LOADS", "QUICK", "FULL", "SHAPES", "Effort", "LoadShape"]


@dataclass(frozen=True)
class LoadShape:
    """Workers in a closed loop: so many processes, workers in each, items in a worker's life."""

    name: str
    title: str
    processes: int
    workers: int
    batch: int


LOADS = {
    shape.name: shape
    for shape in (
        LoadShape("1x1", "1 worker, 1 item", 1, 1, 1),
        LoadShape("32x1", "32 workers, 1 item", 1, 32, 1),
        LoadShape("32x10", "32 workers, 10 items", 1, 32, 10),
        LoadShape("32x100", "32 workers, 100 items", 1, 32, 100),
        LoadShape("4p", "4 processes of 32 workers, 1 item", 4, 32, 1),
    )
}

SHAPES = {name: shape.title for name, shape in LOADS.items()} | {
    "half": "32 workers at half of the peer's own 32x1 rate",
    "even": "32 workers, all peers at one rate",
    "depth": "32 workers, 10 items, with a backlog",
    "failover": "the leader killed",
}
"""All there are, in the order they are run in."""

DEPTH_WORKERS, DEPTH_BATCH = 32, 10


@dataclass(frozen=True)
class Effort:
    """How much of everything a run does; times are seconds."""

    rounds: int
    warm: float
    seconds: float
    steady_seconds: float
    depths: tuple[int, ...]
    depth_rounds: int
    # How long the load goes before the first backlog is measured: who has just begun has tables that are short yet,
    # and caches that hold all of them, which is not what a backlog is compared with.
    depth_seasoning: float
    # For filling one backlog; what does not fit into it is measured at the depth that was reached.
    fill_seconds: float
    failovers: int
    # How long what a failover left behind may take to come back: a lease of 30 s for each caller that has gone with it.
    drain_seconds: float


QUICK = Effort(
    rounds=1,
    warm=0.7,
    seconds=2.5,
    steady_seconds=4.0,
    depths=(1_000, 100_000),
    depth_rounds=1,
    depth_seasoning=3.0,
    fill_seconds=12.0,
    failovers=3,
    drain_seconds=0.0,
)
FULL = Effort(
    rounds=3,
    warm=1.0,
    seconds=3.5,
    steady_seconds=6.0,
    depths=(1_000, 100_000, 1_000_000),
    depth_rounds=3,
    depth_seasoning=10.0,
    fill_seconds=40.0,
    failovers=20,
    drain_seconds=75.0,
)
