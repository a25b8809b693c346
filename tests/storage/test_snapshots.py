"""Snapshots: taken while writes go on, sent, verified, installed; and everything that is refused on the way."""

import hashlib
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from resourcelease.storage import (
    InvalidBatch,
    LmdbStore,
    Manifest,
    RowsChanged,
    Snapshot,
    SnapshotDamaged,
    SnapshotFailed,
    SnapshotRefused,
    StoreState,
    StoreStopped,
    WriteBatch,
    points,
)
from resourcelease.storage.records import FORMAT_VERSION

from .model import CLUSTER, append, entries, held

Opener = Callable[..., LmdbStore]


def with_rows(store: LmdbStore, count: int = 50, index: int = 5) -> None:
    last = store.load().last_index
    puts = [(b"row%06d" % number, b"value %d" % number) for number in range(count)]
    batch = WriteBatch(appends=entries(last + 1, index + 5), row_puts=puts, rows_index=index, rows_term=1)
    store.write(batch).result()


def send(snapshot: Snapshot, target: LmdbStore) -> Snapshot:
    receiver = target.snapshots.receive(Manifest.from_json(snapshot.manifest.to_json()))
    content = snapshot.data.read_bytes()
    for start in range(0, len(content), 10_000):
        receiver.write(content[start : start + 10_000])
    return receiver.finish()


def test_a_snapshot_and_its_manifest(store: LmdbStore) -> None:
    with_rows(store)
    snapshot = store.snapshot("0123abcd").result()
    content = snapshot.data.read_bytes()
    assert snapshot.manifest == Manifest(
        cluster_id=CLUSTER,
        node_id="n1",
        format_version=FORMAT_VERSION,
        index=5,
        term=1,
        state_digest="0123abcd",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    assert snapshot.directory.name == "00000000000000000005-1"
    assert dict(snapshot.rows()) == dict(store.rows())
    assert store.snapshots.latest() == snapshot


def test_a_snapshot_holds_what_was_handed_over_before_it(opened: Opener) -> None:
    store = opened(map_size_bytes=64 << 20)
    with_rows(store, count=20_000)
    stop = threading.Event()
    written = 0

    def go_on() -> None:
        nonlocal written
        index = 10
        while not stop.is_set():
            index += 1
            batch = append(index, index)
            batch.row_puts = [(b"row%06d" % (index % 20_000), b"changed"), (b"new%d" % index, b"")]
            batch.rows_index, batch.rows_term = index, 1
            store.write(batch).result()
            written += 1

    before = dict(store.rows())
    future = store.snapshot("before")
    writer = threading.Thread(target=go_on)
    writer.start()
    snapshot = future.result(30)
    assert snapshot.manifest.index == 5
    assert dict(snapshot.rows()) == before
    while written < 3:
        stop.wait(0.01)
    later = store.snapshot("later").result(30)
    stop.set()
    writer.join()
    assert later.manifest.index > 5
    assert sum(value == b"changed" for _, value in later.rows()) <= later.manifest.index


def test_only_the_newest_are_kept(opened: Opener) -> None:
    store = opened(snapshots_kept=2)
    for index in (5, 15, 25):
        with_rows(store, index=index)
        store.snapshot(str(index)).result()
    assert [snapshot.manifest.index for snapshot in store.snapshots.list()] == [15, 25]
    # Taken again, it replaces the one of the same entry.
    assert store.snapshot("again").result().manifest.state_digest == "again"
    assert [snapshot.manifest.state_digest for snapshot in store.snapshots.list()] == ["15", "again"]


def test_snapshots_without_a_manifest_do_not_count(store: LmdbStore, caplog: pytest.LogCaptureFixture) -> None:
    with_rows(store)
    snapshot = store.snapshot("x").result()
    (snapshot.directory / "manifest.json").write_text("{}")
    assert store.snapshots.latest() is None
    assert "is of no use" in caplog.text


def test_one_snapshot_at_a_time(opened: Opener) -> None:
    store = opened(snapshot_bytes_per_s=100_000, snapshot_piece_bytes=4096)
    with_rows(store, count=2000)
    first = store.snapshot("first")
    with pytest.raises(SnapshotFailed, match="another snapshot is being taken"):
        store.snapshot("second").result(10)
    store.close()
    with pytest.raises(SnapshotFailed, match="was closed"):
        first.result(10)
    assert opened().snapshots.list() == []


def test_a_snapshot_of_nothing(store: LmdbStore) -> None:
    with pytest.raises(SnapshotFailed, match="no rows yet"):
        store.snapshot("x").result()


def test_a_map_that_must_grow_ends_a_snapshot(opened: Opener) -> None:
    store = opened(snapshot_bytes_per_s=300_000, snapshot_piece_bytes=64 << 10)
    # More than fits into the pipe.
    with_rows(store, count=80_000)
    future = store.snapshot("slow")
    index = 11
    store.write(append(index, index)).result()
    size = store.stats().map_size_bytes
    while store.stats().map_size_bytes == size:
        index += 1
        store.write(append(index, index, size=1_000_000)).result(5)
    with pytest.raises(SnapshotFailed, match="needed a larger map"):
        future.result(10)
    assert store.snapshots.list() == []
    assert store.snapshot("again") is not future


def test_an_installed_snapshot_is_this_nodes_own_state(opened: Opener) -> None:
    sender = opened("sender", node_id="n2")
    with_rows(sender, count=100, index=50)
    sender.write(WriteBatch(vote=(90, "n2"))).result()
    target = opened()
    target.write(WriteBatch(appends=entries(1, 20), vote=(3, "n9"), row_puts=[(b"mine", b"x")])).result()
    snapshot = send(sender.snapshot("d").result(), target)
    assert snapshot.manifest.node_id == "n2"
    assert target.snapshots.latest() == snapshot

    staged = target.stage(snapshot).result()
    # The store goes on until the very moment.
    target.write(append(21, 22))
    loaded = target.install(staged)
    target.write(append(51, 52, term=4)).result()
    assert loaded.result()[2:5] == (50, 1, 51)
    for _ in range(2):
        assert target.identity.node_id == "n1"
        assert target.load() == (3, "n9", 50, 1, 51, 52)
        assert dict(target.rows()) == dict(sender.rows())
        assert list(target.entries(51, 52)) == entries(51, 52, term=4)
        target.close()
        target = opened()


def test_a_journal_may_begin_with_entries_of_the_snapshot(opened: Opener) -> None:
    sender, target = opened("sender", node_id="n2"), opened()
    with_rows(sender, index=50)
    staged = target.stage(send(sender.snapshot("d").result(), target)).result()
    for wrong in (entries(48, 49), entries(51, 51), [*entries(48, 48), *entries(50, 50)]):
        with pytest.raises(InvalidBatch, match="do not end, without a gap"):
            target.install(staged, wrong)
    target.install(staged, entries(49, 50))
    target.write(append(51, 52)).result()
    for _ in range(2):
        assert target.load()[2:] == (50, 1, 49, 52)
        assert list(target.entries(49, 52)) == entries(49, 52)
        target.close()
        target = opened()


def test_readers_notice_an_install(opened: Opener) -> None:
    sender, target = opened("sender", node_id="n2"), opened()
    with_rows(sender, count=5000, index=50)
    with_rows(target, count=5000, index=10)
    rows, journal = target.rows(), target.entries(1, 15)
    next(rows)
    next(journal)
    target.install(target.stage(send(sender.snapshot("d").result(), target)).result()).result()
    with pytest.raises(RowsChanged):
        list(rows)
    # It had its turn before.
    assert len(list(journal)) == 14


def test_installs_that_are_refused(opened: Opener) -> None:
    sender, target = opened("sender", node_id="n2"), opened()
    with_rows(sender, index=50)
    snapshot = send(sender.snapshot("d").result(), target)
    first = target.stage(snapshot).result()
    second = target.stage(snapshot).result()
    with pytest.raises(SnapshotRefused, match="another snapshot was staged since"):
        target.install(first)
    with_rows(target, index=60)
    with pytest.raises(SnapshotRefused, match="stands for entry 50; the rows here already stand for 60"):
        target.install(second)
    assert target.load().rows_index == 60


def test_snapshots_of_another_cluster_are_refused(opened: Opener) -> None:
    store = opened()
    with_rows(store)
    snapshot = store.snapshot("d").result()
    foreign = replace(snapshot.manifest, cluster_id="c2")
    with pytest.raises(SnapshotRefused, match="is of cluster 'c2'"):
        store.snapshots.receive(foreign)
    with pytest.raises(SnapshotRefused, match="is of cluster 'c2'"):
        store.stage(Snapshot(snapshot.directory, foreign)).result()


@pytest.mark.parametrize("damage", ["short", "long", "flipped"])
def test_what_arrives_damaged_is_not_kept(opened: Opener, damage: str) -> None:
    sender, target = opened("sender", node_id="n2"), opened()
    with_rows(sender)
    snapshot = sender.snapshot("d").result()
    content = bytearray(snapshot.data.read_bytes())
    content[9000] ^= damage == "flipped"
    receiver = target.snapshots.receive(snapshot.manifest)
    receiver.write(bytes(content[:-1] if damage == "short" else content))
    with pytest.raises(SnapshotDamaged):
        receiver.write(b"x") if damage == "long" else receiver.finish()
    assert list((target.directory / "snapshots").iterdir()) == []


def test_a_snapshot_that_was_damaged_on_disk_is_not_installed(opened: Opener, tmp_path: Path) -> None:
    sender, target = opened("sender", node_id="n2"), opened()
    with_rows(sender)
    snapshot = send(sender.snapshot("d").result(), target)
    content = bytearray(snapshot.data.read_bytes())
    content[9000] ^= 1
    snapshot.data.write_bytes(content)
    with pytest.raises(SnapshotDamaged, match="It was not installed; fetch it again"):
        target.stage(snapshot).result()
    assert not (tmp_path / "node/install").exists()
    target.write(append(1, 1)).result()


def test_rows_that_were_damaged_at_the_sender_are_not_installed(opened: Opener) -> None:
    """The digest of the file is right; the row in it is not."""
    sender, target = opened("sender", node_id="n2"), opened()
    with_rows(sender)
    with sender._env.begin_write() as txn:
        txn.put(b"row000007", b"no checksum here", db=sender._env.rows)
    snapshot = send(sender.snapshot("d").result(), target)
    with pytest.raises(SnapshotDamaged, match="damaged when it was sent: the row b'row000007'"):
        target.stage(snapshot).result()


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"{", b'{"index": 1}'])
def test_what_is_no_manifest(text: bytes) -> None:
    with pytest.raises(SnapshotDamaged, match="no manifest"):
        Manifest.from_json(text)


def test_manifests_with_wrong_fields() -> None:
    manifest = Manifest(CLUSTER, "n1", 1, 5, 1, "d", 100, "00")
    assert Manifest.from_json(manifest.to_json()) == manifest
    for wrong in (b'"index": true', b'"index": 0', b'"index": "5"', b'"index": 5, "more": 1'):
        with pytest.raises(SnapshotDamaged, match="no manifest"):
            Manifest.from_json(manifest.to_json().replace(b'"index": 5', wrong))


def test_an_error_after_the_plan_stops_the_store_and_the_next_open_finishes(opened: Opener) -> None:
    sender, target = opened("sender", node_id="n2"), opened()
    with_rows(sender, index=50)
    staged = target.stage(send(sender.snapshot("d").result(), target)).result()

    def hook(point: str) -> None:
        if point == "install.closed":
            raise OSError("the disk is broken")

    points.set_hook(hook)
    with pytest.raises(StoreStopped, match="the install of the snapshot at entry 50 failed: the disk is broken"):
        target.install(staged).result()
    assert target.status.state is StoreState.STOPPED
    target.close()
    points.set_hook(None)
    again = opened()
    assert again.load().rows_index == 50
    assert held(again).rows == dict(sender.rows())
