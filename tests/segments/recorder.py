"""Records files of the present format, for tests of later releases to read: ``python -m segments.recorder`` in tests/.

Each version is recorded once. What is there is never written anew: such files are on disks somewhere.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from resourcelease.machine import Machine
from resourcelease.model import limits
from resourcelease.model.events import Event
from resourcelease.storage.segments import SEGMENT_VERSION, Log, SegmentFile, segment_paths

from .work import Work, feed, resume

RECORDED = Path(__file__).parent / "recorded"


def spelled_out(event: Event) -> dict[str, Any]:
    """An event as JSON has it."""
    fields = event._asdict()
    fields["type"] = event.type.name
    fields["handle"] = event.handle and event.handle._asdict()
    fields["payload"] = event.payload and event.payload._asdict()
    if event.payload is not None and event.payload.body is not None:
        fields["payload"]["body"] = event.payload.body.hex()
    fields["metadata"] = dict(event.metadata)
    return json.loads(json.dumps(fields))  # type: ignore[no-any-return]


def described(path: Path) -> dict[str, Any]:
    """What a file says of itself."""
    with SegmentFile(path) as file:
        footer = file.footer
        return {
            "name": path.name,
            "header": file.header._asdict() | {"chain": file.header.chain.hex()},
            "span": footer and footer.span.packed(),
            "digest": footer and footer.digest.hex(),
            "bodiless": footer and footer.bodiless,
            "frames": [[frame.offset, frame.meta.span.first, frame.meta.chain.hex()] for frame in file.scan()],
        }


def record(directory: Path) -> None:
    """Four files: plain, compressed, without bodies, and an open one."""
    limits.SEGMENT_BYTES = 4_000
    work = Work(105)
    options: list[dict[str, Any]] = [{}, {"compression": "zlib"}, {"bodies": False}, {}]
    for chosen in options:
        with_these: Machine = Machine("c1") if not work.steps else work.machine
        writer = resume(directory, Machine.load_rows(with_these.dump_rows()), **chosen)
        while True:
            step = work.step()
            feed(writer, [step])
            if step.applied.sealed:
                break
            if chosen is options[-1] and work.machine.segment().size_bytes > 1_500:
                break
        writer.close()


def main() -> None:
    """Records the present version."""
    place = RECORDED / f"v{SEGMENT_VERSION}"
    if place.exists():
        sys.exit(f"{place} is there already, and stays as it is")
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        record(directory)
        (directory / "register.json").unlink()
        place.mkdir(parents=True)
        events = [spelled_out(event) for event in Log(directory).events()]
        for _, path in segment_paths(directory):
            (place / path.name).write_bytes(path.read_bytes())
        files = [described(path) for _, path in segment_paths(directory)]
        (place / "files.json").write_text("\n".join(json.dumps(one, sort_keys=True) for one in files) + "\n")
        (place / "events.json").write_text("\n".join(json.dumps(one, sort_keys=True) for one in events) + "\n")


if __name__ == "__main__":
    main()
