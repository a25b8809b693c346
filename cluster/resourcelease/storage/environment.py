"""One LMDB environment: its options, its sub-databases, and the moments when its map must not be touched."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import lmdb

from resourcelease.storage.errors import CorruptStore, StorageError, StoreStopped

if TYPE_CHECKING:
    from lmdb import Transaction, _Database

__all__ = ["PAGES_BYTES", "Environment", "View", "ViewEnded", "is_damage", "is_disk_full", "is_short_write"]

# What any transaction may write anew at most, besides what it puts: the pages on the way to what it changes.
PAGES_BYTES = 256 << 10
# Views, turns of a read, and a running snapshot; a handful at a time.
_READERS_MAX = 126

# What LMDB raises when the file is not what it wrote.
_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.NotFoundError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
)


def is_damage(error: BaseException) -> bool:
    """Whether an error of LMDB says that the file is not what it wrote."""
    return isinstance(error, _DAMAGE)


def is_disk_full(error: BaseException) -> bool:
    """Whether an error of LMDB or of the system says that there is no space left."""
    return isinstance(error, lmdb.DiskError) or _number(error) in (errno.ENOSPC, errno.EDQUOT)


def is_short_write(error: BaseException) -> bool:
    """Whether an error may be LMDB's for a write that was cut short, which is how a disk fills up in mid-write."""
    return isinstance(error, lmdb.Error) and _number(error) == errno.EIO


def _number(error: BaseException) -> int | None:
    return getattr(error, "errno", None) if isinstance(error, OSError) else getattr(error, "code", None)


class ViewEnded(Exception):
    """The map moved, and with it went what a view saw."""


class Environment:
    """The sub-databases of a store, opened with the options that keep its promise.

    ``sync`` and ``metasync`` stay on: a commit ends after the fsync of its pages and of the page that makes them
    count. ``writemap`` and with it ``map_async`` stay off: a stray write cannot reach the file, a full disk is an error
    instead of a signal, and the file is no larger than its content. ``readahead`` stays on, since the one large read is
    that of all rows in order, and ``meminit`` stays on, since pages would otherwise carry scraps of this process's
    memory.

    ``set_mapsize`` replaces the map under everyone who reads. Readers therefore come through ``reading``, in short
    turns; views are ended before the map moves, and a running copy is, through ``end_copy``. A copy is ended as well
    before a transaction is undone, since the binding has that wait for all that is under way.
    """

    def __init__(
        self, directory: Path, *, map_size: int, map_size_max: int, sync: bool = True, readonly: bool = False
    ) -> None:
        self.directory = directory
        self.data = directory / "data.mdb"
        self.map_size = map_size
        self._map_size_max = map_size_max
        self._sync = sync
        # For a file that nobody writes to: without a lock file beside it.
        self._readonly = readonly
        # Taken again by its own holder when the collector closes a forgotten view in the middle of something.
        self._map_lock = threading.RLock()
        self._views: set[View] = set()
        self._copies = 0
        self._refused = False
        self.end_copy: Callable[[], None] = _nothing
        self._env: lmdb.Environment | None = None
        self._open()
        if not readonly:
            self.keep_headroom()

    def _open(self) -> None:
        size = self.data.stat().st_size if self.data.exists() else 0
        while self.map_size < size:
            self.map_size *= 2
        try:
            self._env = lmdb.open(
                str(self.directory),
                map_size=self.map_size,
                max_dbs=3,
                max_readers=_READERS_MAX,
                readonly=self._readonly,
                lock=not self._readonly,
                create=False,
                mode=0o750,
                sync=self._sync,
                metasync=self._sync,
                writemap=False,
                map_async=False,
                readahead=True,
                meminit=True,
            )
            self._check_length(self._env)
            if self._readonly:
                self._open_databases(self._env, None)
            else:
                # In one transaction, so that a store that was killed while it was made is empty or complete.
                with self._env.begin(write=True) as txn:
                    self._open_databases(self._env, txn)
        except _DAMAGE as error:
            self._close()
            raise CorruptStore(self.data, f"LMDB cannot open it ({error})") from error
        except lmdb.Error as error:
            self._close()
            raise StorageError(f"LMDB cannot open {self.directory}: {error}") from error

    def _open_databases(self, env: lmdb.Environment, txn: "Transaction[bytes] | None") -> None:
        create = txn is not None
        self.journal: _Database = env.open_db(b"journal", txn=txn, create=create)
        self.meta: _Database = env.open_db(b"meta", txn=txn, create=create)
        self.rows: _Database = env.open_db(b"rows", txn=txn, create=create)

    def _check_length(self, env: lmdb.Environment) -> None:
        """A file that lost its end would otherwise end the process with a signal, at the first page that is missing."""
        wanted = _used_bytes(env)
        size = self.data.stat().st_size
        if size < wanted:
            self._close()
            raise CorruptStore(self.data, f"the file ends at byte {size}; its last commit reaches to {wanted}")

    @property
    def used_bytes(self) -> int:
        """How far the file is in use, pages inside it that are free for reuse included."""
        with self._map_lock:
            return _used_bytes(self._opened())

    def begin_write(self, pages_bytes: int = PAGES_BYTES) -> "Transaction[bytes]":
        """The one write transaction; only the storage thread may ask, since it belongs to its thread.

        Pages that it takes and lets go of again count as part of the file and are never written. So that a file that
        has lost its end can be told from one that ends in such pages, the file is first made as long as the
        transaction, with ``pages_bytes``, may make it.
        """
        reach = min(self.used_bytes + pages_bytes, self.map_size)
        if self.data.stat().st_size < reach:
            os.truncate(self.data, reach)
        return self._opened().begin(write=True)

    def undo(self, txn: "Transaction[bytes]") -> None:
        """Undoes a write transaction, also one whose commit has failed."""
        self.end_copy()
        txn.abort()

    def begin_copy(self) -> "Transaction[bytes]":
        """What the store holds now, for a copy that ``end_copy`` can end; given back with ``finish_copy``."""
        self._copies += 1
        return self._opened().begin()

    def finish_copy(self, view: "Transaction[bytes]") -> None:
        """Lets go of what a copy has seen."""
        view.abort()
        self._copies -= 1

    def copy_to(self, fd: int, view: "Transaction[bytes]") -> None:
        """Writes what ``view`` sees to ``fd``, without free pages; other threads run meanwhile."""
        self._opened().copyfd(fd, compact=True, txn=view)

    @contextmanager
    def reading(self, view: "View | None" = None) -> "Iterator[Transaction[bytes]]":
        """A short look at what is durable, or was when ``view`` was taken.

        The map does not move meanwhile, so keep it to about a millisecond.
        """
        with self._map_lock:
            try:
                if view is not None:
                    yield view.txn
                else:
                    with self._opened().begin() as txn:
                        yield txn
            except _DAMAGE as error:
                raise CorruptStore(self.data, f"LMDB cannot read it ({error})") from error
            except lmdb.Error as error:
                raise StorageError(f"LMDB cannot read {self.data}: {error}") from error

    def view(self) -> "View":
        """What the store holds now, to be read at leisure; pages it sees cannot be used again until it is closed."""
        with self._map_lock:
            view = View(self, self._opened().begin())
            self._views.add(view)
            return view

    def _end_views(self) -> None:
        for view in list(self._views):
            view.close()

    def keep_headroom(self) -> None:
        """Grows the map early, while nobody reads, so that it rarely has to while somebody does."""
        if not self._views and not self._copies and not self._refused and 2 * self.used_bytes > self.map_size:
            self.grow()

    @property
    def over_limit(self) -> bool:
        """Whether the map has grown beyond its limit, for something that frees space in the end."""
        return self.map_size > self._map_size_max

    def free_inside(self) -> int:
        """How much of the file is free for reuse; pages that were freed just now are free a few commits later."""
        with self.reading() as txn:
            env = self._opened()
            stats = [env.stat(), *(txn.stat(db) for db in (self.journal, self.meta, self.rows))]
            used = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
            # The first two pages are LMDB's own.
            return (env.info()["last_pgno"] - 1 - used) * stats[0]["psize"]

    def grow(self, beyond_limit: int = 0) -> bool:
        """Doubles the map; False when the limit, or the system's address space, forbids it."""
        wanted = min(self.map_size * 2, self._map_size_max + beyond_limit)
        if wanted <= self.map_size:
            return False
        self.end_copy()
        with self._map_lock:
            self._end_views()
            try:
                self._opened().set_mapsize(wanted)
            except lmdb.Error:
                # The handle is of no use after this; the file is as it was.
                self._refused = True
                self._close()
                self._open()
                return False
            self._refused = False
            self.map_size = wanted
        return True

    @contextmanager
    def replaced(self) -> Iterator[None]:
        """Closes the environment while the caller puts another file in its place, then opens that."""
        self.end_copy()
        with self._map_lock:
            self._close()
            yield
            self._open()

    def close(self) -> None:
        """Lets go of the files; a second call does nothing."""
        self.end_copy()
        with self._map_lock:
            self._close()

    def _close(self) -> None:
        self._end_views()
        if self._env is not None:
            self._env.close()
            self._env = None

    def _opened(self) -> lmdb.Environment:
        if self._env is None:
            raise StoreStopped(f"the store in {self.directory.parent} is closed")
        return self._env


class View:
    """What an environment held at one moment."""

    def __init__(self, env: Environment, txn: "Transaction[bytes]") -> None:
        self._env = env
        self._txn: Transaction[bytes] | None = txn

    @property
    def txn(self) -> "Transaction[bytes]":
        """To read with; raises ``ViewEnded`` when the map has moved since."""
        if self._txn is None:
            raise ViewEnded
        return self._txn

    def close(self) -> None:
        """Lets its pages be used again; a second call does nothing."""
        with self._env._map_lock:
            if self._txn is not None:
                self._txn.abort()
                self._txn = None
                self._env._views.discard(self)


def _used_bytes(env: lmdb.Environment) -> int:
    return (env.info()["last_pgno"] + 1) * env.stat()["psize"]


def _nothing() -> None:
    """No copy is running."""
