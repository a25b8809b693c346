"""A process killed with -9 between any two steps leaves a store that holds all it acknowledged, and no scraps."""

import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from resourcelease.storage import LmdbStore, WriteBatch
from resourcelease.storage.points import POINTS

from . import crash_child
from .crash_child import SNAPSHOT_AFTER, WRITES, parted, schedule
from .model import Model, append, entries, held, open_store, prefixes

STATES = prefixes(schedule())

WRITING = [
    (point, nth)
    for point in POINTS
    if point.startswith(("create.", "ahead.", "commit.", "compaction.", "grow."))
    # How often the map grows depends on what is written together.
    for nth in ((1,) if point.startswith("create.") else (1, 2) if point.startswith("grow.") else (1, 3))
]
AHEAD = 24 << 10
SNAPSHOTTING = [(point, nth) for point in POINTS if point.startswith("snapshot.") for nth in (1, 2)]
# Taking in a peer's snapshot goes through the points of a snapshot, too.
INSTALLING = [(point, 1) for point in POINTS if point.startswith(("snapshot.", "install."))]


def test_no_point_is_left_out() -> None:
    assert {point for point, _ in WRITING + SNAPSHOTTING + INSTALLING} == set(POINTS)


def run(scenario: str, directory: Path, point: str, nth: int, ahead: int) -> list[str]:
    """Runs the child until it dies at the point; what it said."""
    process = start(scenario, directory, point, nth, ahead)
    said, errors = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, f"{point} was not reached a time {nth}:\n{errors}"
    return said.split()


def start(scenario: str, directory: Path, point: str, nth: int, ahead: int) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", crash_child.__name__, scenario, str(directory), point, str(nth), str(ahead)]
    top = Path(__file__).parents[crash_child.__name__.count(".")]
    return subprocess.Popen(command, cwd=top, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_prefix(store: LmdbStore, acknowledged: int, end: int = WRITES) -> None:
    """The store holds the first batches, all acknowledged ones among them, and each of those whole."""
    found = held(store)
    assert found in STATES[acknowledged : end + 1]


def check_use(directory: Path) -> None:
    """Whatever happened, the store can be written, closed and opened again."""
    store = open_store(directory)
    last = store.load().last_index
    expected = held(store)
    batch = WriteBatch(appends=entries(last + 1, last + 1, term=1000), row_puts=[(b"after", b"")], vote=(1000, ""))
    store.write(batch).result()
    expected.apply(batch)
    store.close()
    store = open_store(directory)
    assert held(store) == expected
    store.close()
    assert not [path for path in directory.rglob("*") if path.name.startswith(("work-", "install", "probe"))]


@pytest.mark.parametrize("ahead", [0, AHEAD])
@pytest.mark.parametrize(("point", "nth"), WRITING)
def test_killed_while_writing(tmp_path: Path, point: str, nth: int, ahead: int) -> None:
    if point.startswith("ahead.") and not ahead:
        pytest.skip("there is no log ahead")
    said = run("writing", tmp_path / "node", point, nth, ahead)
    assert said == [str(number) for number in range(1, len(said) + 1)]
    store = open_store(tmp_path / "node")
    check_prefix(store, len(said))
    if point == ("ahead.synced" if ahead else "commit.synced"):
        assert held(store) != STATES[len(said)], "what was synced and not yet told is there, too"
    store.close()
    check_use(tmp_path / "node")


@pytest.mark.parametrize("ahead", [0, AHEAD])
@pytest.mark.parametrize(("point", "nth"), WRITING)
def test_killed_while_rows_come_later(tmp_path: Path, point: str, nth: int, ahead: int) -> None:
    """All that was acknowledged is there, with the rows of some moment before, whole, and the entries behind them."""
    if point.startswith("ahead.") and not ahead:
        pytest.skip("there is no log ahead")
    said = run("parting", tmp_path / "node", point, nth, ahead)
    store = open_store(tmp_path / "node")
    found = held(store)
    store.close()
    fits = []
    journal, batches = Model(), []
    for number, (batch, rows) in enumerate([(WriteBatch(), None), *parted()]):
        journal.apply(batch)
        if rows is not None:
            batches.append(rows)
        if number >= len(said):
            fits += [_with_rows(journal, batches[:count]) for count in range(len(batches) + 1)]
    assert found in fits
    check_use(tmp_path / "node")


def _with_rows(journal: Model, batches: list[WriteBatch]) -> Model:
    model = journal.copy()
    for batch in batches:
        model.apply(batch)
    return model


@pytest.mark.parametrize("ahead", [0, AHEAD])
def test_killed_at_any_moment(tmp_path: Path, ahead: int) -> None:
    draw = random.Random(7)
    for number in range(6):
        directory = tmp_path / str(number)
        process = start("writing", directory, "never", 1, ahead)
        assert process.stdout is not None
        said = [process.stdout.readline()]
        time.sleep(draw.uniform(0, 0.03))
        process.kill()
        said += process.stdout.readlines()
        process.communicate()
        store = open_store(directory)
        check_prefix(store, len(said))
        store.close()
        check_use(directory)


@pytest.mark.parametrize("ahead", [0, AHEAD])
@pytest.mark.parametrize(("point", "nth"), SNAPSHOTTING)
def test_killed_while_a_snapshot_is_taken(tmp_path: Path, point: str, nth: int, ahead: int) -> None:
    said = run("snapshotting", tmp_path / "node", point, nth, ahead)
    taken = said.count("snapshot")
    assert taken == nth - 1
    store = open_store(tmp_path / "node", snapshots_kept=1)
    check_prefix(store, len(said) - taken)
    found = store.snapshots.list()
    names = [snapshot.manifest.state_digest for snapshot in found]
    # An older one is only deleted once a newer one is complete.
    complete = {"snapshot.shelved": ["first", "second"][:nth], "snapshot.retired": ["first", "second"][nth - 1 : nth]}
    assert names == complete.get(point, ["first"][: nth - 1])
    for snapshot in found:
        state = STATES[SNAPSHOT_AFTER if snapshot.manifest.state_digest == "first" else WRITES]
        assert snapshot.manifest.index == state.rows_index
        assert dict(snapshot.rows()) == state.rows
    store.close()
    check_use(tmp_path / "node")


@pytest.fixture(scope="module")
def sent(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Model]:
    """A snapshot of another node, which is further ahead."""
    root = tmp_path_factory.mktemp("sender")
    store = open_store(root, node_id="n2")
    batches = [
        WriteBatch(
            appends=entries(1, 500), vote=(77, "n2"), row_puts=[(b"theirs%d" % n, b"%d" % n) for n in range(99)]
        ),
        WriteBatch(rows_index=400, rows_term=1, compact_through=300),
    ]
    model = Model()
    for batch in batches:
        store.write(batch)
        model.apply(batch)
    snapshot = store.snapshot("theirs").result()
    store.close()
    return snapshot.directory, model


@pytest.mark.parametrize("ahead", [0, AHEAD])
@pytest.mark.parametrize(("point", "nth"), INSTALLING)
def test_killed_while_a_snapshot_is_installed(
    tmp_path: Path, sent: tuple[Path, Model], point: str, nth: int, ahead: int
) -> None:
    directory, theirs = sent
    shutil.copytree(directory, tmp_path / "sent")
    said = run("installing", tmp_path / "node", point, nth, ahead)
    own = STATES[SNAPSHOT_AFTER]
    installed = own.copy()
    installed.install(theirs)
    followed = installed.copy()
    followed.apply(append(401, 402, term=99))
    planned = list(POINTS).index(point) >= list(POINTS).index("install.planned")
    assert not {"installed", "followed"} & set(said)

    store = open_store(tmp_path / "node")
    # Up to the plan nothing has happened; from the plan on everything has.
    assert held(store) == (installed if planned else own)
    assert store.load().term == own.term
    assert store.identity.node_id == "n1"
    store.close()
    check_use(tmp_path / "node")
