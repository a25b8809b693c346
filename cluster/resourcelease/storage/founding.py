"""Opens a node's directory, or founds a new one, and makes sure that it is the right one."""

from collections.abc import Sequence

from resourcelease.storage.ahead import Ahead, Numbered, unsettled
from resourcelease.storage.api import Identity
from resourcelease.storage.durable import Durable, read_durable, read_identity, write_identity
from resourcelease.storage.environment import Environment, is_damage, is_disk_full
from resourcelease.storage.errors import (
    CorruptStore,
    InvalidBatch,
    NewerFormat,
    StorageError,
    StoreMissing,
    WrongIdentity,
)
from resourcelease.storage.install import finish_install
from resourcelease.storage.layout import Layout, fsync_directory, make_directories
from resourcelease.storage.options import StoreOptions
from resourcelease.storage.points import reach
from resourcelease.storage.records import FORMAT_VERSION
from resourcelease.storage.space import Ballast
from resourcelease.storage.writer import Writer, batch_bytes, is_no_space

__all__ = ["check_exists", "open_ahead", "open_environment"]


def open_environment(
    layout: Layout, cluster_id: str, node_id: str, options: StoreOptions
) -> tuple[Environment, Identity, Durable]:
    """The environment of this node's store and what it holds; the caller holds the directory's lock."""
    finish_install(layout)
    founded = not layout.data.exists()
    if founded:
        _check_may_found(layout)
        make_directories(layout.environment)
    env = Environment(
        layout.environment,
        map_size=options.map_size_bytes,
        map_size_max=options.map_size_bytes_max,
        sync=options.sync,
    )
    try:
        if founded:
            reach("create.opened")
        identity = _identify(layout, env, Identity(cluster_id, node_id, FORMAT_VERSION))
        if founded:
            reach("create.written")
        # Each time, since the process that made the files may have died before this line.
        fsync_directory(layout.environment)
        fsync_directory(layout.root)
        with env.reading() as txn:
            return env, identity, read_durable(env, txn)
    except BaseException:
        env.close()
        raise


def open_ahead(layout: Layout, writer: Writer, ballast: Ballast, options: StoreOptions) -> Ahead | None:
    """The log ahead, or None where there is to be none; what it holds and LMDB does not settles first."""
    left = unsettled(layout.ahead, writer.durable.ahead)
    at = 0
    while at < len(left):
        end, size = at + 1, batch_bytes(left[at].batch)
        while end < len(left) and size < options.group_bytes_max:
            size += batch_bytes(left[end].batch)
            end += 1
        _settle(layout, writer, ballast, left[at:end])
        at = end
    if not options.ahead_bytes:
        return None
    try:
        return Ahead(layout.ahead, options.ahead_bytes, lambda: writer.durable.ahead, sync=options.sync)
    except OSError as error:
        if not is_disk_full(error):
            raise
        # A full disk: everything goes to LMDB, which waits for space.
        return None


def _settle(layout: Layout, writer: Writer, ballast: Ballast, left: Sequence[Numbered]) -> None:
    batches, numbers = [batch for _, batch in left], [number for number, _ in left]
    try:
        try:
            writer.write(batches, numbers)
        except Exception as error:
            if not (is_no_space(error) and ballast.drop()):
                raise
            writer.write(batches, numbers)
    except InvalidBatch as error:
        raise CorruptStore(layout.ahead, f"batches {numbers[0]} to {numbers[-1]} do not follow: {error}") from error
    except Exception as error:
        if is_no_space(error):
            raise StorageError(f"there is no space to open the store in {layout.root}: make room first") from error
        if is_damage(error):
            raise CorruptStore(layout.data, f"LMDB cannot write it ({error})") from error
        raise


def check_exists(layout: Layout) -> None:
    """Raises ``StoreMissing`` when there is no store to open."""
    if not layout.data.exists():
        raise StoreMissing(
            f"there is no store in {layout.root}: is its disk mounted? A node that has lost its disk joins as a new one"
        )


def _check_may_found(layout: Layout) -> None:
    for left in (layout.snapshots, layout.ahead):
        if not (left.exists() and any(left.iterdir())):
            continue
        raise StoreMissing(
            f"{layout.data} is gone, though {left} has what goes with it. A node that forgot its vote must "
            "not come back under its name: bring the file back, or empty the directory and let the node join anew"
        )


def _identify(layout: Layout, env: Environment, ours: Identity) -> Identity:
    with env.reading() as txn:
        stored = read_identity(env, txn)
        written = any(txn.stat(db)["entries"] for db in (env.journal, env.meta, env.rows))
    if stored is None:
        if written:
            raise CorruptStore(layout.data, "it holds data and no identity")
        founding = env.begin_write()
        write_identity(env, founding, ours)
        founding.commit()
        return ours
    if stored.format_version > ours.format_version:
        raise NewerFormat(
            f"{layout.root} has format {stored.format_version}; this release knows up to {ours.format_version}. "
            "Start it with the release that wrote it, or a later one"
        )
    if stored.cluster_id != ours.cluster_id:
        raise WrongIdentity(
            f"{layout.root} belongs to cluster {stored.cluster_id!r}, not to {ours.cluster_id!r}: check the node's "
            "configuration, or give it a directory of its own"
        )
    if stored.node_id != ours.node_id:
        raise WrongIdentity(
            f"{layout.root} belongs to node {stored.node_id!r}, not to {ours.node_id!r}: check the node's "
            "configuration, or give it a directory of its own"
        )
    if stored.format_version < ours.format_version:
        # The log ahead is new in format 2; nothing of format 1 is written otherwise.
        upgrading = env.begin_write()
        write_identity(env, upgrading, ours)
        upgrading.commit()
    return ours
