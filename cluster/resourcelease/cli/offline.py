"""``verify DIR``: the files of one node, without any node."""

from pathlib import Path

import click

from resourcelease.cli.output import Output
from resourcelease.storage.segments import has_history, log_directory, segment_paths, verify

__all__ = ["verify_directory"]


def verify_directory(directory: Path, first: int, last: int, out: Output) -> int:
    """Reads every byte and says what is wrong; 1 if something is."""
    segments = log_directory(directory)
    if segments is None or not has_history(segments):
        raise click.ClickException(f"{directory} is no node's directory, and has no segments of a history")
    paths = segment_paths(segments)
    total = sum(path.stat().st_size for _, path in paths)
    seen = 0
    with out.progress("bytes verified", total) as advance:

        def told(done: int, _: int) -> None:
            nonlocal seen
            advance(max(0, done - seen))
            seen = max(seen, done)

        # Whoever asks for events that should be behind the last file knows of them.
        through = last if not paths or last >= paths[-1][0] else 0
        report = verify(segments, first=first, last=last, through=through, progress=told)
    if first and paths and first < paths[0][0]:
        report.notes.append(f"what is here begins with event {paths[0][0]}")
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
    count = len(report.problems)
    found = "nothing is wrong" if report.ok else "1 problem" if count == 1 else f"{count} problems"
    out.say(f"{report.events:,} events in {len(report.files)} sound files of {segments}: {found}")
    return 0 if report.ok else 1
