"""Reads a whole log and says everything that is wrong with it; nothing in it is believed."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from resourcelease.model.events import Record
from resourcelease.storage.errors import CorruptStore, NewerFormat
from resourcelease.storage.segments.directory import Owner, Register, segment_paths
from resourcelease.storage.segments.errors import CorruptSegment, Damage
from resourcelease.storage.segments.file import SegmentFile
from resourcelease.storage.segments.footer import FramePlace
from resourcelease.storage.segments.format import Header
from resourcelease.storage.segments.frames import Frame
from resourcelease.storage.segments.summary import Span, Tally

__all__ = ["Checked", "Problem", "Report", "verify", "verify_content", "verify_file"]

Progress = Callable[[int, int], None]


class Problem(NamedTuple):
    """One thing that is wrong; ``offset`` is where in the file, -1 where it is about the file as a whole."""

    kind: Damage
    path: Path
    offset: int
    reason: str

    def __str__(self) -> str:
        place = f" at byte {self.offset}" if self.offset >= 0 else ""
        return f"{self.path}{place}: {self.kind}: {self.reason}"


class Checked(NamedTuple):
    """A file that was read to its end and is in order."""

    path: Path
    header: Header
    last: int
    # The chain after the last event; of a whole file, the digest of its segment.
    digest: bytes
    sealed: bool
    ends_early: bool
    # Whether the digest was recomputed from the content; not where bodies were left out.
    recomputed: bool
    # Bytes of an unfinished write behind the last frame of an open file.
    torn_bytes: int

    @property
    def whole(self) -> bool:
        """Whether it holds its segment from the first event to the last."""
        return self.sealed and not self.ends_early and not self.header.partial


@dataclass(slots=True)
class Report:
    """What a verification found. ``ok`` is about damage; ``notes`` are for people."""

    directory: Path
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: list[Checked] = field(default_factory=list)
    events: int = 0
    read_bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    @property
    def digests(self) -> dict[int, bytes]:
        """The digest of each whole segment, by its first event: what nodes compare."""
        return {file.header.first: file.digest for file in self.files if file.whole}


def verify(
    directory: Path,
    *,
    owner: Owner | None = None,
    through: int = 0,
    first: int = 0,
    last: int = 0,
    progress: Progress | None = None,
) -> Report:
    """Checks a directory: every byte of it against its checksum, every digest against the content.

    ``owner`` and ``through`` say whose log it should be and how far it is known to go, if the caller knows; ``first``
    and ``last`` that only the files with these events are of interest. ``progress`` is called with bytes done and bytes
    in all. The log may be in use.
    """
    report = Report(directory)
    paths = _paths_of(directory, first, last)
    newest = paths[-1:] == [path for _, path in segment_paths(directory)[-1:]]
    total = sum(map(_size, paths))
    register = _register(directory, report)
    owner = owner or (register.owner if register else None)
    for place, path in enumerate(paths):
        done = report.read_bytes

        def told(here: int, done: int = done) -> None:
            if progress is not None:
                progress(done + here, total)

        _check_one(path, report, told, last=newest and place + 1 == len(paths))
    _check_neighbours(report, paths, owner)
    _check_ends(report, paths, None if first else register, through)
    return report


def _paths_of(directory: Path, first: int, last: int) -> list[Path]:
    """The files that may hold something of a range; 0 is no bound."""
    paths = segment_paths(directory)
    nexts = [begins for begins, _ in paths[1:]]
    return [
        path
        for place, (begins, path) in enumerate(paths)
        if (not last or begins <= last) and (not first or place >= len(nexts) or nexts[place] > first)
    ]


def verify_file(path: Path, progress: Callable[[int], None] = lambda done: None) -> Checked:
    """Checks one file by itself; raises ``CorruptSegment`` at the first thing that is wrong."""
    with SegmentFile(path) as file:
        tally, places, chain, recomputed, end = Tally(), [], file.header.chain, True, file.start
        for frame in file.scan():
            chain = _check_frame(frame, chain)
            recomputed &= frame.bodies
            tally.merge(frame.meta.span)
            places.append(FramePlace.of(frame.offset, frame.meta.span))
            end = frame.end
            progress(end)
        last = file.header.first - 1
        if places:
            last = tally.span().last
        if file.footer is not None:
            _check_footer(file, tally.span(), places, chain, bodiless=not recomputed)
        ends_early = file.footer is not None and file.footer.ends_early
        torn = 0 if file.sealed else file.size - end
        return Checked(path, file.header, last, chain, file.sealed, ends_early, recomputed, torn)


def verify_content(path: Path, progress: Callable[[int], None] = lambda done: None) -> bool:
    """Whether a file is sealed, and then that every byte of it and its digest are what was written.

    Cheaper than ``verify_file``, since records are not decoded. Raises ``CorruptSegment`` at what is not in order.
    """
    with SegmentFile(path) as file:
        if file.footer is None:
            return False
        chain = file.header.chain
        for frame in file.scan():
            chain = frame.chained(chain)
            if chain != frame.meta.chain:
                raise _wrong(frame, "its content does not chain up to the digest that it carries")
            progress(frame.end)
        if chain != file.footer.digest:
            raise CorruptSegment(path, file.footer.offset, "the footer's digest is not that of the content")
        return True


def _check_frame(frame: Frame, chain: bytes) -> bytes:
    """Recomputes all that a frame says of itself; the chain after it."""
    tally = Tally()
    expected = frame.meta.span.first
    entry_before = -1
    for entry in frame.entries():
        records = [frame.decode(encoded) for encoded in entry]
        expected = _check_entry(frame, records, expected, entry_before)
        entry_before = records[0].index
        tally.add(records)
        if frame.bodies:
            digest = sha256(chain)
            digest.update(b"".join(entry))
            chain = digest.digest()
    if tally.span() != frame.meta.span:
        raise _wrong(frame, "its description is not that of its content")
    if frame.bodies and chain != frame.meta.chain:
        raise _wrong(frame, "its content does not chain up to the digest that it carries")
    return frame.meta.chain


def _check_entry(frame: Frame, records: Sequence[Record], expected: int, entry_before: int) -> int:
    """Checks one entry's records against each other and those before; the event that comes next."""
    head = records[0]
    if head.index <= entry_before:
        raise _wrong(frame, f"entry {head.index} stands behind entry {entry_before}")
    same = (head.index, head.term, head.clock_ms, head.wall_ms)
    for record in records:
        if record.sequence != expected:
            raise _wrong(frame, f"event {record.sequence} stands where {expected} belongs")
        if (record.index, record.term, record.clock_ms, record.wall_ms) != same:
            raise _wrong(frame, f"event {record.sequence} is not of the entry that it stands in")
        expected += record.count
    return expected


def _check_footer(file: SegmentFile, span: Span, places: list[FramePlace], chain: bytes, *, bodiless: bool) -> None:
    footer = file.footer
    assert footer is not None
    found = {"ranges and counts": span, "digest": chain, "mark of bodies left out": bodiless}
    told = {"ranges and counts": footer.span, "digest": footer.digest, "mark of bodies left out": footer.bodiless}
    wrong = [name for name in found if found[name] != told[name]]
    # Names in the index stand in the footer's order, those of a frame in its own.
    if [_unordered(place) for place in places] != [_unordered(place) for place in footer.frames]:
        wrong.append("index of frames")
    if wrong:
        raise CorruptSegment(file.path, footer.offset, f"the footer's {', '.join(wrong)} are not those of the content")


def _unordered(place: FramePlace) -> tuple[object, ...]:
    return (*place[:-1], sorted(place.namespaces))


def _wrong(frame: Frame, reason: str) -> CorruptSegment:
    return CorruptSegment(frame.path, frame.offset, f"the frame of event {frame.meta.span.first}: {reason}")


# A directory.


def _register(directory: Path, report: Report) -> Register | None:
    try:
        return Register.read(directory)
    except (CorruptStore, NewerFormat) as error:
        report.problems.append(Problem(Damage.DAMAGED, directory / "register.json", -1, str(error)))
        return None


def _check_one(path: Path, report: Report, told: Callable[[int], None], *, last: bool) -> None:
    size = _size(path)
    try:
        checked = verify_file(path, told)
    except FileNotFoundError:
        return  # retired meanwhile
    except (CorruptSegment, NewerFormat) as error:
        if not (last and isinstance(error, CorruptSegment) and error.kind is Damage.CUT):
            where = error.offset if isinstance(error, CorruptSegment) else -1
            kind = error.kind if isinstance(error, CorruptSegment) else Damage.DAMAGED
            reason = error.reason if isinstance(error, CorruptSegment) else str(error)
            report.problems.append(Problem(kind, path, where, reason))
        else:
            report.notes.append(f"{path}: begun, and nothing is in it yet")
    else:
        report.files.append(checked)
        report.events += checked.last - checked.header.first + 1
        _note(checked, report, last=last)
    report.read_bytes += size
    told(0)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _note(file: Checked, report: Report, *, last: bool) -> None:
    if not file.sealed and not last:
        report.problems.append(Problem(Damage.CUT, file.path, -1, "it has no footer, and a later file exists"))
    if file.torn_bytes:
        report.notes.append(f"{file.path}: {file.torn_bytes} bytes of an unfinished write behind event {file.last}")
    if not file.recomputed:
        report.notes.append(f"{file.path}: bodies were left out, so its digest could not be recomputed")
    if file.header.partial:
        lacks = f"{file.header.segment_first} to {file.header.first - 1}"
        report.notes.append(f"{file.path}: holds its segment from the middle on; events {lacks} are not in it")
    if file.ends_early:
        report.notes.append(f"{file.path}: its segment goes on behind event {file.last}")


def _check_neighbours(report: Report, paths: list[Path], owner: Owner | None) -> None:
    """Files against each other: one history of one cluster, without overlap and without a gap."""
    broken = {problem.path for problem in report.problems}
    read = {file.path: file for file in report.files}
    before: Checked | None = None
    # How far the files so far go; None where one that is damaged, or retired meanwhile, does not tell.
    reached: int | None = None
    for path in paths:
        file = read.get(path)
        if file is not None:
            if owner is None:
                owner = Owner(file.header.cluster_id, "", file.header.shard)
            if (file.header.cluster_id, file.header.shard) != (owner.cluster_id, owner.shard):
                reason = f"it is of cluster {file.header.cluster_id}, shard {file.header.shard!r}"
                report.problems.append(Problem(Damage.STRANGER, path, -1, reason))
                continue
            if before is not None:
                report.problems += _between(before, file)
            if before is None or file.last > before.last:
                before = file
        first = int(path.stem)
        if reached is not None and first > reached + 1:
            reason = f"events {reached + 1} to {first - 1} are missing before this file"
            report.problems.append(Problem(Damage.MISSING, path, -1, reason))
        ends = _told_end(path) if file is None or path in broken else file.last
        reached = None if ends is None else max(reached or 0, ends)


def _told_end(path: Path) -> int | None:
    """The last event of a file that is not in order, if its footer is there to tell."""
    try:
        with SegmentFile(path) as file:
            return file.footer.span.last if file.footer is not None else None
    except (CorruptSegment, NewerFormat, FileNotFoundError):
        return None


def _between(before: Checked, file: Checked) -> Iterable[Problem]:
    first, path = file.header.first, file.path
    if first <= before.last:
        if not (before.whole and file.last <= before.last):
            yield Problem(Damage.OVERLAP, path, -1, f"events from {first} on are in {before.path.name} as well")
    elif first == before.last + 1 and file.header.chain != before.digest:
        reason = f"it does not follow {before.path.name}: the digest that it begins with is another"
        yield Problem(Damage.UNCHAINED, path, -1, reason)


def _check_ends(report: Report, paths: list[Path], register: Register | None, through: int) -> None:
    """The beginning against what was retired on purpose, the end against what the caller knows."""
    firsts = [int(path.stem) for path in paths]
    if firsts and register is not None and firsts[0] > register.retired + 1:
        report.notes.append(
            f"events {register.retired + 1} to {firsts[0] - 1} were never here, or their files are lost"
        )
    last = max((file.last for file in report.files), default=0)
    if through > last and not any(problem.path == path for problem in report.problems for path in paths[-1:]):
        reason = f"the log ends with event {last}, and is known to go to {through}"
        report.problems.append(Problem(Damage.MISSING, report.directory, -1, reason))
