"""History goes oldest first, when it is told to, and not before its readers have had it."""

from pathlib import Path

import pytest

from resourcelease.machine import Machine
from resourcelease.storage import CorruptStore, NewerFormat, WrongIdentity
from resourcelease.storage.segments import HistoryGone, Log, Owner, Query, Register, Retention, segment_paths, verify
from resourcelease.storage.segments.retention import retire

from .work import OWNER, Work, encoded, feed, resume, write


@pytest.fixture
def work() -> Work:
    work = Work(41)
    work.run(90)
    return work.finish()


@pytest.fixture
def log(tmp_path: Path, work: Work) -> Path:
    write(tmp_path / "log", work)
    return tmp_path / "log"


def firsts(log: Path) -> list[int]:
    return [first for first, _ in segment_paths(log)]


def newest_ms(path: Path) -> int:
    return max(event.occurred_at_ms for event in Log(path.parent).events(Query(first=int(path.stem))))


def test_nothing_goes_unasked(log: Path) -> None:
    assert retire(log, Register.open(log, OWNER), Retention(), 1 << 60) == []


def test_by_size(log: Path, work: Work) -> None:
    before, size = firsts(log), sum(path.stat().st_size for _, path in segment_paths(log))
    gone = retire(log, Register.open(log, OWNER), Retention(max_bytes=size - 1), 0)
    assert [int(path.stem) for path in gone] == before[:1]
    assert firsts(log) == before[1:]
    with pytest.raises(
        HistoryGone, match=f"event 1 is not kept here any more: the first that can be had is {before[1]}"
    ):
        list(Log(log).records(Query(first=1)))
    report = verify(log)
    assert report.ok
    assert not report.notes
    assert Register.open(log, OWNER).retired == before[1] - 1
    # However little is allowed, the last file stays.
    retire(log, Register.open(log, OWNER), Retention(max_bytes=1), 0)
    assert firsts(log) == before[-1:]


def test_by_age(log: Path) -> None:
    files = Log(log).segments()
    walls = [file.footer.span.most_wall_ms for file in files if file.footer]
    now_ms = walls[2] + 1_000 + 1
    gone = retire(log, Register.open(log, OWNER), Retention(max_age_ms=1_000), now_ms)
    oldest = next(place for place, wall in enumerate([*walls, 1 << 60]) if now_ms - wall <= 1_000)
    assert len(gone) == oldest >= 1


def test_not_what_a_reader_has_yet_to_take(log: Path) -> None:
    register, everything = Register.open(log, OWNER), Retention(max_bytes=1)
    third = firsts(log)[2]
    register.protect("spark", third + 1)
    register.protect("sqlite", third - 1)
    retire(log, Register.open(log, OWNER), everything, 0)
    assert firsts(log)[0] == firsts(log)[0] < third
    assert firsts(log)[1] == third
    register.protect("sqlite", third)
    retire(log, register, everything, 0)
    assert firsts(log)[0] == third
    register.release("sqlite")
    retire(log, register, everything, 0)
    assert firsts(log)[0] == third
    retire(log, register, everything._replace(even_unread=True), 0)
    assert len(firsts(log)) == 1
    assert Register.open(log, OWNER).readers == {"spark": third + 1}


def test_a_damaged_file_goes_by_size_only(log: Path) -> None:
    _, path = segment_paths(log)[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert retire(log, Register.open(log, OWNER), Retention(max_age_ms=1), 1 << 60) == []
    assert retire(log, Register.open(log, OWNER), Retention(max_bytes=1), 0)[0] == path


def test_the_writer_retires_as_it_goes(tmp_path: Path, work: Work) -> None:
    writer = resume(tmp_path, Machine("c1"), retention=Retention(max_bytes=9_000))
    writer.register.protect("reader", 1)
    feed(writer, work.steps[:-10])
    assert firsts(tmp_path)[0] == 1
    writer.register.release("reader")
    feed(writer, work.steps[-10:])
    writer.close()
    writer = resume(tmp_path, work.machine, retention=Retention(max_bytes=9_000))
    writer.close()
    assert firsts(tmp_path)[0] > 1
    assert sum(path.stat().st_size for _, path in segment_paths(tmp_path)[1:]) <= 9_000
    first = firsts(tmp_path)[0]
    assert encoded(Log(tmp_path).records()) == encoded(record for record in work.records if record.sequence >= first)


def test_a_reader_that_is_reading_is_not_disturbed(log: Path, work: Work) -> None:
    records = Log(log).records()
    seen = [next(records)]
    _, second = segment_paths(log)[1]
    retire(log, Register.open(log, OWNER), Retention(max_bytes=1), 0)
    with pytest.raises(HistoryGone) as gone:
        seen += records
    assert gone.value.wanted == int(second.stem)
    assert gone.value.first == firsts(log)[0]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": 1}', '{"format": 1, "cluster_id": "c1", "node_id": "n1", "shard": ""}']
)
def test_a_damaged_register(tmp_path: Path, text: str) -> None:
    (tmp_path / "register.json").write_text(text)
    with pytest.raises(CorruptStore, match="register"):
        Register.open(tmp_path, OWNER)
    assert not verify(tmp_path).ok


def test_registers_of_others(tmp_path: Path) -> None:
    assert Register.read(tmp_path) is None
    Register.open(tmp_path, OWNER).protect("a", 5)
    register = Register.open(tmp_path, OWNER)
    assert (register.owner, register.readers, register.retired) == (OWNER, {"a": 5}, 0)
    with pytest.raises(WrongIdentity):
        Register.open(tmp_path, Owner("c1", "n9"))
    text = (tmp_path / "register.json").read_text().replace('"format": 1', '"format": 2')
    (tmp_path / "register.json").write_text(text)
    with pytest.raises(NewerFormat):
        Register.open(tmp_path, OWNER)
