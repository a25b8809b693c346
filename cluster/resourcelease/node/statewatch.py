"""Digests over the whole state, taken on all nodes at one place of the log, also while it goes on.

A node names an index a little ahead, and each node looks at its state when the first entry at or behind it has been
applied: which entry that is the log decides, so it is the same on all. What is digested are the rows on disk, and over
them what has changed since, on threads: how large the state is makes no difference to those who wait for the loop.
"""

import asyncio
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from resourcelease.consensus import EventLog, Machines
from resourcelease.machine import Machine
from resourcelease.machine.machine import Applied
from resourcelease.node.pictures import Missed, Picture, take_picture
from resourcelease.node.takes import HeldLog, Take, Takes
from resourcelease.storage import CorruptStore, LmdbStore, RowsChanged, StorageError

__all__ = ["StateWatch", "judged"]

logger = logging.getLogger(__name__)

_KEPT = 16
# Places ahead that are waited for, and pictures whose digest is being taken.
_WANTED_MAX = 8
_PICTURES_MAX = 4
# A picture that is kept for another node, and that nobody asked for in so long, is let go.
_KEEP_S = 60.0


class StateWatch:
    """One node's part in it. Belongs to the loop; the disk is read on threads."""

    def __init__(self) -> None:
        self._store: LmdbStore | None = None
        self._takes = Takes(self._stored_index)
        # The places ahead, and whether the picture there is to be kept.
        self._wanted: dict[int, bool] = {}
        # By the index that was named: the index of the entry that was then applied, and the digest in hex.
        self._told: OrderedDict[int, asyncio.Future[str]] = OrderedDict()
        self._looking: set[asyncio.Task[None]] = set()
        self._reached = asyncio.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="state-digest")
        self._closing = threading.Event()
        self._kept: Picture | None = None
        # The stored rows are not what was written.
        self.on_damage: Callable[[CorruptStore], None] = lambda error: None

    def attach(self, store: LmdbStore) -> None:
        """Looks at the rows of this store."""
        self._store = store

    def hold(self, log: EventLog) -> EventLog:
        """What consensus is to wait for in place of a log of events, so that rows can be looked at in time."""
        return HeldLog(log, self._takes)

    def machines(self, cluster_id: str) -> Machines:
        """Machines that are watched."""

        def watched(machine: "_Watched") -> Machine:
            machine.watch = self
            self._takes.restart(machine.applied_index)
            return machine

        return Machines(lambda: watched(_Watched(cluster_id)), lambda rows: watched(_loaded(rows)))

    def want(self, machine: Machine, index: int, *, keep: bool = False) -> None:
        """Looks at the state at an index; one that has been passed is missed. ``keep``: for another node to fetch."""
        told = self._future(index)
        if machine.applied_index > index or len(self._wanted) >= _WANTED_MAX:
            if index not in self._wanted and not told.done():
                told.set_result("")
            return
        self._wanted[index] = keep or self._wanted.get(index, False)
        if machine.applied_index == index:
            self.look(machine)

    def look(self, machine: Machine) -> None:
        """An entry was applied."""
        if not self._wanted:
            return
        index = machine.applied_index
        due = [wanted for wanted in self._wanted if wanted <= index]
        if due:
            keep = max(self._wanted.pop(wanted) for wanted in due)
            self._look(machine, due, keep=keep)

    def stored(self, take: Take) -> Take:
        """These changes are about to be stored."""
        return self._takes.stored(take)

    @property
    def kept(self) -> Picture | None:
        """The picture that is kept for another node."""
        return self._kept

    async def reach(self, index: int, patience_s: float) -> int:
        """Waits until an index that is wanted has been looked at; the index of the entry it came to, or 0."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while self._kept is None or self._kept.index < index:
                    self._reached.clear()
                    await self._reached.wait()
        return self._kept.index if self._kept is not None and self._kept.index >= index else 0

    async def digest_at(self, index: int, patience_s: float) -> str:
        """The digest at an index, which this node may yet have to hear of; "" if it has none in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                return await asyncio.shield(self._future(index))
        return ""

    async def close(self) -> None:
        """Ends what is under way; before the store is closed."""
        self._closing.set()
        self._wanted.clear()
        await asyncio.gather(*self._looking, return_exceptions=True)
        self._let_go_of_kept()
        await asyncio.to_thread(self._pool.shutdown)

    def _stored_index(self) -> int:
        return self._store.settled_rows_index if self._store is not None else 0

    def _future(self, index: int) -> asyncio.Future[str]:
        future = self._told.get(index)
        if future is None:
            future = self._told[index] = asyncio.get_running_loop().create_future()
            while len(self._told) > _KEPT:
                _, oldest = self._told.popitem(last=False)
                _tell(oldest, "")
        return future

    def _look(self, machine: Machine, due: list[int], *, keep: bool) -> None:
        if self._store is None or len(self._looking) >= _PICTURES_MAX or self._closing.is_set():
            self._tell(due, "")
            return
        assert isinstance(machine, _Watched)
        index, term = machine.applied_index, machine.applied_term
        takes, floor = self._takes.look(machine.taken()), self._takes.floor
        task = asyncio.ensure_future(self._digest(self._store, takes, floor, (index, term), due, keep=keep))
        self._looking.add(task)
        task.add_done_callback(self._looking.discard)

    async def _digest(
        self,
        store: LmdbStore,
        takes: tuple[Take, ...],
        floor: int,
        place: tuple[int, int],
        due: list[int],
        *,
        keep: bool,
    ) -> None:
        index, term = place
        told, picture = "", None
        try:
            try:
                picture = await asyncio.to_thread(take_picture, store, takes, floor, index, term, keep=keep)
            finally:
                self._takes.let_go(index)
            if keep:
                self._keep(picture)
            run = asyncio.get_running_loop().run_in_executor
            told = f"{index}:{await run(self._pool, picture.digest, self._closing)}"
        except CorruptStore as error:
            self.on_damage(error)
        except (Missed, RowsChanged) as error:
            logger.info("the state at index %d is not digested: %s", index, error)
        except StorageError as error:
            logger.warning("the state at index %d cannot be digested: %s", index, error)
        finally:
            if picture is not None and not keep:
                picture.close()
            self._tell(due, told)

    def _keep(self, picture: Picture) -> None:
        self._let_go_of_kept()
        self._kept = picture
        self._reached.set()
        asyncio.get_running_loop().call_later(_KEEP_S, self._look_after, picture)

    def _look_after(self, picture: Picture) -> None:
        if self._kept is picture:
            left_s = picture.left_s(_KEEP_S)
            if left_s > 0:
                asyncio.get_running_loop().call_later(left_s, self._look_after, picture)
            else:
                self._let_go_of_kept()

    def _let_go_of_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def _tell(self, due: list[int], told: str) -> None:
        for index in due:
            _tell(self._future(index), told)


def _tell(future: asyncio.Future[str], told: str) -> None:
    if not future.done():
        future.set_result(told)


class _Watched(Machine):
    """A machine that says when an entry has been applied, and what of it is about to be stored."""

    watch: StateWatch | None = None

    def apply(self, index: int, term: int, data: bytes) -> Applied:
        """Applies one entry."""
        applied = super().apply(index, term, data)
        if self.watch is not None:
            self.watch.look(self)
        return applied

    def taken(self) -> Take:
        """What has changed since this, or ``take_changes``, was called last."""
        return Take(self.applied_index, *super().take_changes())

    def take_changes(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """What is to be stored."""
        take = self.taken()
        if self.watch is not None:
            take = self.watch.stored(take)
        return list(take.puts), list(take.deletes)


def _loaded(rows: Iterable[tuple[bytes, bytes]]) -> _Watched:
    machine = _Watched.load_rows(rows)
    assert isinstance(machine, _Watched)
    return machine


def judged(own: str, digests: Mapping[str, str]) -> int:
    """How many of all members agree on another digest than the own one; 0 if they are no majority.

    >>> judged("a", {"n1": "a", "n2": "b", "n3": "b"}), judged("a", {"n1": "a", "n2": "b", "n3": ""})
    (2, 0)
    """
    told = Counter(digest for digest in digests.values() if digest)
    if not own or not told:
        return 0
    usual, votes = told.most_common(1)[0]
    return votes if usual != own and votes * 2 > len(digests) else 0
