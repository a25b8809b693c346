"""Opens a node's directory, or founds a new one, and makes sure that it is the right one."""

from resourcelease.storage.api import Identity
from resourcelease.storage.durable import Durable, read_durable, read_identity, write_identity
from resourcelease.storage.environment import Environment
from resourcelease.storage.errors import CorruptStore, NewerFormat, StoreMissing, WrongIdentity
from resourcelease.storage.install import finish_install
from resourcelease.storage.layout import Layout, fsync_directory, make_directories
from resourcelease.storage.options import StoreOptions
from resourcelease.storage.points import reach
from resourcelease.storage.records import FORMAT_VERSION

__all__ = ["check_exists", "open_environment"]


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


def check_exists(layout: Layout) -> None:
    """Raises ``StoreMissing`` when there is no store to open."""
    if not layout.data.exists():
        raise StoreMissing(
            f"there is no store in {layout.root}: is its disk mounted? A node that has lost its disk joins as a new one"
        )


def _check_may_found(layout: Layout) -> None:
    if layout.snapshots.exists() and any(layout.snapshots.iterdir()):
        raise StoreMissing(
            f"{layout.data} is gone, though {layout.snapshots} has snapshots of it. A node that forgot its vote must "
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
    return stored
