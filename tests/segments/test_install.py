"""A segment fetched from another node takes the place of what is damaged, incomplete or missing here."""

from pathlib import Path

import pytest

from resourcelease.machine import Machine, fold
from resourcelease.storage import WrongIdentity
from resourcelease.storage.segments import (
    CorruptSegment,
    Log,
    Owner,
    SegmentFile,
    SegmentRefused,
    install,
    segment_paths,
    verify,
    verify_file,
)
from resourcelease.storage.segments.footer import pack_footer
from resourcelease.storage.segments.format import pack_trailer

from .work import OWNER, Work, again, encoded, feed, resume, write


@pytest.fixture
def work() -> Work:
    work = Work(51)
    work.run(70)
    return work.finish()


@pytest.fixture
def theirs(tmp_path: Path, work: Work) -> list[Path]:
    """The files of a node that has everything, made otherwise than ours."""
    write(tmp_path / "theirs", work, compression="zlib", frame_bytes=1_000)
    return [path for _, path in segment_paths(tmp_path / "theirs")]


def whole(directory: Path, work: Work) -> None:
    assert encoded(Log(directory).records()) == encoded(work.records)
    assert fold("c1", Log(directory).records()).digest() == work.machine.digest()
    report = verify(directory, owner=OWNER)
    assert report.ok
    assert not report.notes
    assert not list(directory.glob("*.incoming"))


def test_a_damaged_segment(tmp_path: Path, work: Work, theirs: list[Path]) -> None:
    ours = tmp_path / "ours"
    write(ours, work)
    for place, cut in ((0, 1), (1, 700), (2, None)):
        path = ours / theirs[place].name
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        path.write_bytes(damaged[:cut])
    for problem in verify(ours).problems:
        checked = install(tmp_path / "theirs" / problem.path.name, ours, OWNER)
        assert checked.path == problem.path
    whole(ours, work)


def test_a_missing_segment(tmp_path: Path, work: Work, theirs: list[Path]) -> None:
    ours = tmp_path / "ours"
    write(ours, work)
    (ours / theirs[1].name).unlink()
    install(theirs[1], ours, OWNER)
    whole(ours, work)


def test_a_node_that_joined_fetches_its_history(tmp_path: Path, work: Work, theirs: list[Path]) -> None:
    """From the newest to the oldest, while it goes on writing."""
    ends = [place + 1 for place, step in enumerate(work.steps) if step.applied.sealed]
    at = next(place for place in range(ends[1] + 1, ends[2]) if work.steps[place - 1].records)
    writer = resume(tmp_path / "ours", again(work, at))
    feed(writer, work.steps[at:-5])
    for path in reversed(theirs[:3]):
        install(path, tmp_path / "ours", OWNER)
    feed(writer, work.steps[-5:])
    writer.close()
    whole(tmp_path / "ours", work)


def test_a_gap_in_the_middle_of_a_segment(tmp_path: Path, work: Work, theirs: list[Path]) -> None:
    ends = [place + 1 for place, step in enumerate(work.steps) if step.applied.sealed]
    inside = [place for place in range(ends[0] + 1, ends[1]) if work.steps[place - 1].records]
    ours = tmp_path / "ours"
    writer = resume(ours, Machine("c1"))
    feed(writer, work.steps[: inside[0]])
    writer.restart(again(work, inside[-1]))
    feed(writer, work.steps[inside[-1] :])
    writer.close()
    assert len(segment_paths(ours)) == len(theirs) + 1
    assert not verify(ours).ok
    install(theirs[1], ours, OWNER)
    whole(ours, work)


def test_what_is_refused(tmp_path: Path, work: Work, theirs: list[Path]) -> None:
    ours = tmp_path / "ours"
    write(ours, work)
    before = {path.name: path.read_bytes() for path in ours.iterdir()}
    with pytest.raises(WrongIdentity):
        install(theirs[1], ours, Owner("c2", "n1"))
    with pytest.raises(SegmentRefused, match="does not hold its whole segment"):
        install(theirs[-1], ours, OWNER)
    damaged = bytearray(theirs[1].read_bytes())
    damaged[200] ^= 1
    theirs[1].write_bytes(damaged)
    with pytest.raises(CorruptSegment):
        install(theirs[1], ours, OWNER)
    write(tmp_path / "bare", work, bodies=False)
    bare = segment_paths(tmp_path / "bare")[1][1]
    with pytest.raises(SegmentRefused, match="lacks the bodies"):
        install(bare, ours, OWNER)
    assert {path.name: path.read_bytes() for path in ours.iterdir()} == before
    install(bare, ours, OWNER, allow_bodiless=True)
    assert "bodies were left out" in verify(ours).notes[0]


def test_another_history_is_refused(tmp_path: Path, work: Work, theirs: list[Path]) -> None:
    other = Work(52)
    other.run(70)
    write(tmp_path / "other", other)
    ours = tmp_path / "ours"
    write(ours, work)
    for _, path in segment_paths(tmp_path / "other")[:-1]:
        with pytest.raises(SegmentRefused):
            install(path, ours, OWNER)
    whole(ours, work)


def test_the_same_cut_with_other_content_is_refused(tmp_path: Path, work: Work, theirs: list[Path]) -> None:
    """A sound footer that says otherwise is no damage that a peer could mend."""
    ours = tmp_path / "ours"
    write(ours, work)
    for _, path in segment_paths(ours)[1:]:
        path.unlink()
    before = theirs[0].read_bytes()
    checked = verify_file(theirs[0])
    place = ours / theirs[0].name
    mine = place.read_bytes()
    with SegmentFile(place) as file:
        assert file.footer is not None
        footer = file.footer
    changed = pack_footer(footer._replace(digest=b"?" * 32))
    place.write_bytes(mine[: footer.offset] + changed + pack_trailer(footer.offset, len(changed)))
    with pytest.raises(SegmentRefused, match="has another digest"):
        install(theirs[0], ours, OWNER)
    place.write_bytes(mine)
    assert install(theirs[0], ours, OWNER).digest == checked.digest
    assert theirs[0].read_bytes() == before == place.read_bytes()


def test_a_segment_that_is_being_written_is_left_alone(tmp_path: Path, work: Work, theirs: list[Path]) -> None:
    ends = [place + 1 for place, step in enumerate(work.steps) if step.applied.sealed]
    writer = resume(tmp_path / "ours", Machine("c1"))
    feed(writer, work.steps[: ends[1] - 1])
    with pytest.raises(SegmentRefused, match="is being written"):
        install(theirs[1], tmp_path / "ours", OWNER)
    feed(writer, work.steps[ends[1] - 1 :])
    writer.close()
    whole(tmp_path / "ours", work)
