"""A directory opens for its own node only, and for one process at a time."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from resourcelease.storage import (
    FORMAT_VERSION,
    CorruptStore,
    DirectoryInUse,
    DirectoryRefused,
    Identity,
    LmdbStore,
    NewerFormat,
    SnapshotRefused,
    StoreMissing,
    WriteBatch,
    WrongIdentity,
    founding,
    snapshots,
)

from .model import CLUSTER, NODE, append, entries, open_store

Opener = Callable[..., LmdbStore]


def test_the_identity_is_kept(opened: Opener) -> None:
    store = opened()
    assert store.identity == Identity(CLUSTER, NODE, FORMAT_VERSION)
    store.close()
    assert opened().identity == Identity(CLUSTER, NODE, FORMAT_VERSION)


def test_another_nodes_directory_is_refused(opened: Opener) -> None:
    opened().close()
    with pytest.raises(WrongIdentity, match=r"belongs to node 'n1', not to 'n2'"):
        opened(node_id="n2")
    # And the refusal leaves no lock behind.
    opened().close()


def test_another_clusters_directory_is_refused(opened: Opener, tmp_path: Path) -> None:
    opened().close()
    with pytest.raises(WrongIdentity, match=r"belongs to cluster 'c1', not to 'c2'"):
        LmdbStore(tmp_path / "node", cluster_id="c2", node_id=NODE)


def test_a_newer_format_is_refused(opened: Opener) -> None:
    with mock.patch.object(founding, "FORMAT_VERSION", FORMAT_VERSION + 1):
        opened().close()
    with pytest.raises(NewerFormat, match=f"has format {FORMAT_VERSION + 1}; this release knows up to"):
        opened()


def test_a_newer_format_is_refused_in_snapshots(opened: Opener) -> None:
    store = opened()
    manifest = snapshots.Manifest(CLUSTER, "n2", FORMAT_VERSION + 1, 1, 1, "", 1, "")
    with pytest.raises(SnapshotRefused, match="upgrade this node first"):
        store.snapshots.receive(manifest)


def test_one_store_at_a_time(opened: Opener) -> None:
    opened()
    with pytest.raises(DirectoryInUse, match="in use by process"):
        opened()


def test_one_process_at_a_time(opened: Opener, tmp_path: Path) -> None:
    opened()
    code = (
        "import sys; from resourcelease.storage import *\n"
        "try: LmdbStore(sys.argv[1], cluster_id='c1', node_id='n1')\n"
        "except DirectoryInUse as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code, tmp_path / "node"], capture_output=True, text=True, check=True)
    assert "is in use by process" in run.stdout


def test_a_store_that_should_be_there(tmp_path: Path) -> None:
    for root in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(DirectoryRefused, match="is its disk mounted"):
            LmdbStore(root, cluster_id=CLUSTER, node_id=NODE, create=False)


def test_a_store_that_lost_its_file_is_not_founded_anew(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    store.write(WriteBatch(appends=entries(1, 2), rows_index=2, rows_term=1)).result()
    store.snapshot("digest").result()
    store.close()
    (tmp_path / "node/lmdb/data.mdb").unlink()
    with pytest.raises(StoreMissing, match="must not come back under its name"):
        opened()


def test_data_without_an_identity_is_refused(opened: Opener, tmp_path: Path) -> None:
    store = opened()
    store.write(append(1, 2)).result()
    store.close()
    with (
        mock.patch.object(founding, "read_identity", return_value=None),
        pytest.raises(CorruptStore, match="no identity"),
    ):
        open_store(tmp_path / "node")


def test_other_formats_of_the_file_are_refused(opened: Opener, tmp_path: Path) -> None:
    opened().close()
    data = tmp_path / "node/lmdb/data.mdb"
    data.write_bytes(b"this is no database " * 1000)
    with pytest.raises(CorruptStore, match="LMDB cannot open it"):
        opened()
