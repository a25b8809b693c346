"""Whatever happens to a file, it is found and named, and nothing wrong is taken for an event."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resourcelease.machine import Machine
from resourcelease.model import limits
from resourcelease.storage import NewerFormat
from resourcelease.storage.segments import CorruptSegment, Damage, Log, Query, SegmentFile, segment_paths, verify
from resourcelease.storage.segments.format import FOOTER, FRAME, HEADER, pack_block, pack_trailer, read_block

from .work import Work, again, encoded, feed, resume, write


@pytest.fixture
def work() -> Work:
    work = Work(31)
    work.run(70)
    return work.finish()


@pytest.fixture
def log(tmp_path: Path, work: Work) -> Path:
    write(tmp_path / "log", work)
    assert len(segment_paths(tmp_path / "log")) >= 4
    return tmp_path / "log"


def paths_of(directory: Path) -> list[Path]:
    return [path for _, path in segment_paths(directory)]


def read_all(directory: Path) -> list[bytes]:
    return encoded(Log(directory).records())


@pytest.mark.parametrize("which", ["sealed", "last sealed", "open"])
def test_a_flipped_bit_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setattr(limits, "SEGMENT_BYTES", 900)
    work, log = Work(33), tmp_path / "log"
    work.run(40)
    write(log, work.finish())
    paths = paths_of(log)
    path = {"sealed": paths[1], "last sealed": paths[-2], "open": paths[-1]}[which]
    # The files before are of no interest here.
    small = tmp_path / "small"
    small.mkdir()
    for other in paths:
        if other == path or (which == "sealed" and other == paths[2]):
            (small / other.name).write_bytes(other.read_bytes())
    path = small / path.name
    content = path.read_bytes()
    draw = random.Random(1)
    with path.open("r+b") as file:
        for offset in range(len(content)):
            file.seek(offset)
            file.write(bytes((content[offset] ^ (1 << draw.randrange(8)),)))
            file.flush()
            found = verify(small).problems
            assert found, f"byte {offset}"
            assert (found[0].path, found[0].kind) == (path, Damage.DAMAGED)
            assert 0 <= found[0].offset <= offset or found[0].reason.startswith("the trailer"), (offset, found[0])
            file.seek(offset)
            file.write(content[offset : offset + 1])
            file.flush()
    assert verify(small).ok


def test_damage_is_named_with_its_block(log: Path, work: Work) -> None:
    path = paths_of(log)[1]
    with SegmentFile(path) as file:
        frames = list(file.scan())
    damaged = bytearray(path.read_bytes())
    damaged[frames[2].end - 5] ^= 4
    path.write_bytes(damaged)
    with pytest.raises(CorruptSegment) as found:
        read_all(log)
    assert (found.value.path, found.value.offset) == (path, frames[2].offset)
    assert str(found.value).startswith(f"{path}: at byte {frames[2].offset}: the frame that begins here does not match")
    # The rest can be read, before and behind.
    first = frames[3].meta.span.first
    assert encoded(Log(log).records(Query(last=frames[1].meta.span.last)))
    behind = [record for record in work.records if record.sequence >= first]
    assert encoded(Log(log).records(Query(first=first))) == encoded(behind)
    # And verify goes on to the other files.
    report = verify(log)
    assert [(problem.path, problem.offset) for problem in report.problems] == [(path, frames[2].offset)]
    assert len(report.files) == len(paths_of(log)) - 1


@pytest.mark.parametrize("cut", [1, 20, 24, 60, 400, 2000])
def test_a_cut_tail_of_a_sealed_file(log: Path, cut: int) -> None:
    path = paths_of(log)[1]
    os.truncate(path, path.stat().st_size - cut)
    report = verify(log)
    assert report.problems[0].path == path
    assert report.problems[0].kind in (Damage.CUT, Damage.DAMAGED)
    with pytest.raises(CorruptSegment, match=r"ends here without a footer|frame") as found:
        read_all(log)
    assert found.value.path == path


@pytest.mark.parametrize("size", [0, 10])
def test_a_sealed_file_of_which_nothing_is_left(log: Path, size: int) -> None:
    path = paths_of(log)[1]
    os.truncate(path, size)
    assert (verify(log).problems[0].path, verify(log).problems[0].kind) == (path, Damage.CUT)
    with pytest.raises(CorruptSegment):
        read_all(log)


def test_bytes_behind_the_trailer(log: Path) -> None:
    for path in (paths_of(log)[0], paths_of(log)[-2]):
        content = path.read_bytes()
        path.write_bytes(content + b"x" * 40)
        assert verify(log).problems[0].path == path
        path.write_bytes(content)


def test_a_missing_file(log: Path) -> None:
    paths = paths_of(log)
    first, last = int(paths[1].stem), int(paths[2].stem) - 1
    paths[1].unlink()
    report = verify(log)
    assert [(problem.kind, problem.path) for problem in report.problems] == [(Damage.MISSING, paths[2])]
    assert f"events {first} to {last} are missing" in str(report.problems[0])


def test_a_missing_file_beside_a_damaged_one(log: Path) -> None:
    _, flipped, lost, after, *_ = paths_of(log)
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    first = int(lost.stem)
    lost.unlink()
    problems = verify(log).problems
    assert [(problem.kind, problem.path) for problem in problems] == [
        (Damage.DAMAGED, flipped),
        (Damage.MISSING, after),
    ]
    assert problems[1].reason == f"events {first} to {int(after.stem) - 1} are missing before this file"


def test_a_log_of_another_cluster_is_not_to_be_fetched(tmp_path: Path) -> None:
    assert "Fetch" in str(CorruptSegment(tmp_path, 0, "damaged"))
    assert "Fetch" not in str(CorruptSegment(tmp_path, 0, "another cluster's", Damage.STRANGER))


def test_missing_files_at_the_ends(log: Path, work: Work) -> None:
    paths = paths_of(log)
    paths[0].unlink()
    assert "were never here, or their files are lost" in verify(log).notes[0]
    paths[-1].unlink()
    report = verify(log, through=work.machine.sequence_number)
    assert [problem.kind for problem in report.problems] == [Damage.MISSING]
    assert f"is known to go to {work.machine.sequence_number}" in str(report.problems[0])


def test_a_file_of_another_cluster(tmp_path: Path, log: Path) -> None:
    other = Work(32, "c2")
    other.run(70)
    writer = resume(tmp_path / "other", Machine("c2"))
    writer._pen._owner = writer._pen._owner._replace(cluster_id="c2")
    writer._pen._next = writer._pen._next._replace(cluster_id="c2")
    feed(writer, other.steps)
    writer.close()
    strangers = paths_of(tmp_path / "other")
    shutil.copy(strangers[2], log)
    report = verify(log)
    assert (Damage.STRANGER, log / strangers[2].name) in [(problem.kind, problem.path) for problem in report.problems]


def test_files_of_a_diverged_node(tmp_path: Path, log: Path) -> None:
    """The same cluster by name, another history. Its files have names of their own, but for the first."""
    other = Work(34)
    other.run(70)
    write(tmp_path / "other", other)
    theirs = paths_of(tmp_path / "other")
    shutil.copy(theirs[0], log)
    report = verify(log)
    assert report.problems
    assert report.problems[0].kind in (Damage.OVERLAP, Damage.MISSING, Damage.UNCHAINED)
    assert not report.ok


def test_a_file_with_another_past(log: Path) -> None:
    path = paths_of(log)[1]
    path.write_bytes(rewritten(path, HEADER, lambda fields: fields | {"chain": b"?" * 32}))
    report = verify(log)
    assert report.problems[0].path == path
    assert "does not chain up to the digest" in report.problems[0].reason


def test_nodes_mixed_up(tmp_path: Path, work: Work, log: Path) -> None:
    """A node that joined in the middle of a segment names its first file by what it has of it."""
    ends = [place + 1 for place, step in enumerate(work.steps) if step.applied.sealed]
    at = next(place for place in range(ends[0] + 1, ends[1]) if work.steps[place - 1].records)
    writer = resume(tmp_path / "joined", again(work, at))
    feed(writer, work.steps[at:])
    writer.close()
    partial = paths_of(tmp_path / "joined")[0]
    # Beside the whole segment it holds nothing new. Where that one's end was cut, it does.
    shutil.copy(partial, log)
    assert verify(log).ok
    assert read_all(log) == encoded(work.records)
    whole = paths_of(log)[1]
    with SegmentFile(whole) as file:
        assert file.footer is not None
        cut = list(file.scan())[-2]
    shutil.copy(whole, tmp_path / "whole")
    os.truncate(whole, cut.end)
    found = {(problem.kind, problem.path) for problem in verify(log).problems}
    assert found == {(Damage.CUT, whole), (Damage.OVERLAP, log / partial.name)}


def test_a_renamed_file(log: Path) -> None:
    path = paths_of(log)[1]
    renamed = path.rename(path.with_name(f"{int(path.stem) + 1:020d}.rlseg"))
    report = verify(log)
    assert report.problems[0].path == renamed
    assert "it was renamed" in report.problems[0].reason


def test_a_newer_format(log: Path) -> None:
    path = paths_of(log)[0]
    fd = os.open(path, os.O_RDWR)
    head = bytearray(os.pread(fd, 24, 0))
    head[4] = 2
    os.pwrite(fd, head[:-4] + crc32(head[:-4]).to_bytes(4, "big"), 0)
    os.close(fd)
    with pytest.raises(NewerFormat, match="written in format 2; this release reads 1"):
        read_all(log)
    assert not verify(log).ok


# What has sound checksums and is wrong all the same: nobody's hand is trusted.

Edit = Callable[[Any], Any]


def rewritten(path: Path, kind: bytes, edit: Edit) -> bytes:
    """The file with the meta of its first block of a kind edited, and every checksum and offset right again."""
    fd, out, at = os.open(path, os.O_RDONLY), bytearray(), 0
    size, done, footer = path.stat().st_size, False, None
    while at < size - 24:
        block = read_block(fd, path, at, size)
        assert block is not None
        meta = block.meta
        if block.kind == FOOTER:
            footer = len(out)
        if block.kind == kind and not done:
            meta, done = msgpack.packb(edit(msgpack.unpackb(meta))), True
        out += pack_block(block.kind, meta, block.stored, codec=block.codec, flags=block.flags)
        at = block.end
    os.close(fd)
    assert footer is not None
    return bytes(out) + pack_trailer(footer, len(out) - footer)


def put(place: int, value: Any) -> Edit:
    return lambda fields: [*fields[:place], value, *fields[place + 1 :]] if place >= 0 else [*fields[:place], value]


HUGE = 1 << 60


@pytest.mark.parametrize(
    "edit",
    [
        put(0, 0), put(0, "1"), put(1, HUGE), put(2, 1 << 61), put(4, HUGE), put(6, HUGE), put(8, 0), put(8, HUGE),
        put(9, []), put(9, [["jobs", 70, 5]]), put(9, [[1, 1, 1]]), put(9, {}), put(10, HUGE), put(10, 1),
        put(11, b"short"), put(11, b"x" * 32), lambda fields: fields[:5], lambda fields: [*fields, 1],
        lambda fields: 7, lambda fields: {"first": 1}, lambda fields: None,
    ],
)  # fmt: skip
def test_frames_that_lie(log: Path, edit: Edit) -> None:
    path = paths_of(log)[1]
    path.write_bytes(rewritten(path, FRAME, edit))
    problems = verify(log).problems
    assert problems
    assert problems[0].path == path


def index(column: str, value: Any) -> Edit:
    return lambda fields: fields | {"frames": fields["frames"] | {column: value}}


@pytest.mark.parametrize(
    "edit",
    [
        lambda fields: fields | {"digest": b"x" * 32},
        lambda fields: fields | {"digest": 5},
        lambda fields: fields | {"ends_early": 1},
        lambda fields: fields | {"bodiless": True},
        lambda fields: fields | {"span": []},
        lambda fields: fields | {"span": [*fields["span"][:6], 0, *fields["span"][7:]]},
        lambda fields: fields | {"namespaces": [1, 2, 3]},
        lambda fields: fields | {"namespaces": []},
        lambda fields: fields | {"frames": None},
        lambda fields: {name: value for name, value in fields.items() if name != "frames"},
        lambda fields: [],
        index("offset", []),
        index("offset", "abc"),
        index("offset", [HUGE] * 50),
        index("types", [0]),
        index("first", None),
        lambda fields: index("offset", [1, *fields["frames"]["offset"][1:]])(fields),
        lambda fields: index("types", [1 << 61] * len(fields["frames"]["types"]))(fields),
        lambda fields: index("least_wall_ms", [0] * len(fields["frames"]["types"]))(fields),
        lambda fields: index("namespaces", [b"" for _ in fields["frames"]["types"]])(fields),
        lambda fields: index("first", list(reversed(fields["frames"]["first"])))(fields),
    ],
)
def test_footers_that_lie(log: Path, edit: Edit) -> None:
    path = paths_of(log)[1]
    path.write_bytes(rewritten(path, FOOTER, edit))
    problems = verify(log).problems
    assert problems
    assert problems[0].path == path


@pytest.mark.parametrize("name", ["cluster_id", "shard", "first", "segment_first", "chain"])
@pytest.mark.parametrize("value", [None, -1, HUGE * 8, b"x", "x", []])
def test_headers_that_lie(log: Path, name: str, value: Any) -> None:
    path = paths_of(log)[1]
    path.write_bytes(rewritten(path, HEADER, lambda fields: fields | {name: value}))
    assert path in [problem.path for problem in verify(log).problems]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_files_of_anything(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Blocks of anything with sound checksums raise nothing but what they should."""
    directory = tmp_path_factory.mktemp("anything")
    anything = st.recursive(
        st.none() | st.booleans() | st.integers(-5, 1 << 63) | st.binary(max_size=40) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
        max_leaves=12,
    )
    header = {"cluster_id": "c1", "shard": "", "first": 1, "segment_first": 1, "chain": bytes(32)}
    content = pack_block(HEADER, msgpack.packb(header))
    for kind in data.draw(st.lists(st.sampled_from([FRAME, FRAME, FOOTER, HEADER]), max_size=3)):
        start = len(content)
        codec = data.draw(st.integers(0, 2))
        meta = data.draw(st.binary(max_size=20) | anything.map(msgpack.packb))
        content += pack_block(kind, meta, data.draw(st.binary(max_size=50)), codec=codec)
        if kind == FOOTER and data.draw(st.booleans()):
            content += pack_trailer(start, len(content) - start)
    (directory / f"{1:020d}.rlseg").write_bytes(content)
    report = verify(directory)
    try:
        records = list(Log(directory).records())
    except CorruptSegment:
        assert not report.ok
    else:
        assert not records
