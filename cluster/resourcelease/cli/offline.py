"""``verify DIR``: the files of one node, without any node."""

from pathlib import Path

import click

from resourcelease.cli.output import Output
from resourcelease.storage.segments import segment_paths, verify

__all__ = ["verify_directory"]


def verify_directory(directory: Path, first: int, last: int, out: Output) -> int:
    """Reads every byte and says what is wrong; 1 if something is."""
    segments = directory / "segments" if (directory / "segments").is_dir() else directory
    if not (segments / "register.json").exists() and not segment_paths(segments):
        raise click.ClickException(f"{directory} is no node's directory, and has no segments of a history")
    total = sum(path.stat().st_size for _, path in segment_paths(segments))
    seen = 0
    with out.progress("bytes verified", total) as advance:

        def told(done: int, _: int) -> None:
            nonlocal seen
            advance(max(0, done - seen))
            seen = max(seen, done)

        report = verify(segments, first=first, last=last, progress=told)
    if out.as_json:
        out.data(
            {
                "directory": str(segments),
                "ok": report.ok,
                "events": report.events,
                "files": len(report.files),
                "problems": [
                    {"kind": each.kind.value, "path": str(each.path), "offset": each.offset, "reason": each.reason}
                    for each in report.problems
                ],
                "notes": report.notes,
                "digests": {str(begins): digest.hex() for begins, digest in report.digests.items()},
            }
        )
        return 0 if report.ok else 1
    for problem in report.problems:
        out.say(str(problem))
    for note in report.notes:
        out.say(f"note: {note}")
    found = "nothing is wrong" if report.ok else f"{len(report.problems)} problems"
    out.say(f"{report.events:,} events in {len(report.files)} sound files of {segments}: {found}")
    return 0 if report.ok else 1
