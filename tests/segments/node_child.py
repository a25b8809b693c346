"""Run by a test as a process of its own: a node alone, with its log, that enqueues until it is killed."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from resourcelease.consensus import Applied, Consensus, Machines, Settings
from resourcelease.machine import Machine
from resourcelease.model import limits
from resourcelease.model.items import ItemColumns
from resourcelease.model.ops import Call, Enqueue, pack_op
from resourcelease.storage import LmdbStore, StoreOptions

from .conftest import SEGMENT_BYTES
from .work import resume

# Rows are stored all the time and the journal is cut right behind them.
SETTINGS = Settings(
    heartbeat_s=0.02,
    election_min_s=0.1,
    election_max_s=0.2,
    flush_entries=3,
    flush_s=0.02,
    keep_entries=2,
    keep_bytes=1,
)
# They settle soon, too.
OPTIONS = StoreOptions(ballast_bytes=0, map_size_bytes=16 << 20, settle_s=0.005)


def open_store(directory: Path) -> LmdbStore:
    return LmdbStore(directory, cluster_id="c1", node_id="n1", options=OPTIONS)


async def live(directory: Path, *, follow: bool) -> None:
    applied: list[Applied] = []

    def on_applied(entries: Sequence[Applied]) -> None:
        applied.extend(entries)
        for index, _, outcome in [(entry.index, entry.term, entry.outcome) for entry in entries]:
            assert hasattr(outcome, "chain")
            writer.append(index, outcome.records, outcome.chain, sealed=outcome.sealed)  # type: ignore[attr-defined]

    consensus = Consensus(
        store=open_store(directory),
        machines=Machines(lambda: Machine("c1"), Machine.load_rows),
        listen="127.0.0.1:0",
        bootstrap={"n1": "127.0.0.1:1"},
        settings=SETTINGS,
        on_applied=on_applied,
        founding=True,
    )
    assert isinstance(consensus.machine, Machine)
    # Never written of its own accord, so that rows could get far ahead.
    writer = resume(directory / "segments", consensus.machine, flush_s=3.0)
    if follow:
        consensus.follow(writer)
    await consensus.start()
    for number in range(1_000_000):
        call = Call("jobs", "p1", "", f"{os.getpid()}-{number}", 0, None)
        await consensus.propose([pack_op(Enqueue(call, ItemColumns(1, "table", [str(number)]).packed()))], 10.0)
        os.write(1, b"%d\n" % applied[-1].index)


if __name__ == "__main__":
    limits.SEGMENT_BYTES = SEGMENT_BYTES
    asyncio.run(live(Path(sys.argv[1]), follow=sys.argv[2] == "follow"))
