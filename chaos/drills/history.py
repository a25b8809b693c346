"""What clients asked and were told: one line of JSON for each call, with its start, its end and its outcome."""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

__all__ = ["OK", "REFUSED", "UNKNOWN", "Call", "History", "read"]

OK = "ok"
REFUSED = "refused"
UNKNOWN = "unknown"


@dataclass(slots=True)
class Call:
    """One call. Times are seconds since the drill began, on one clock for all clients.

    ``kind``: enqueue, lease (the call), grant (each lease that it brought), beat, complete, fail, give-back, bury (fail
    for good), write (to the protected store), look (what became of an item, asked at the very end).
    """

    client: str
    kind: str
    start: float
    end: float
    outcome: str
    item: int = 0
    attempt: int = 0
    fence: int = 0
    request: str = ""
    # The reason of a refusal; for a look, the place that the item was found in.
    detail: str = ""

    @property
    def unknown(self) -> bool:
        """Whether it may have taken effect or not, then or at any later time."""
        return self.outcome == UNKNOWN


class History:
    """All calls of a drill, in memory and in a file."""

    def __init__(self, path: Path) -> None:
        self.calls: list[Call] = []
        self.began = time.monotonic()
        self._file: IO[str] = path.open("w", encoding="utf-8")

    def now(self) -> float:
        """Seconds since the drill began."""
        return time.monotonic() - self.began

    def add(self, call: Call) -> None:
        """A call has ended, or its caller has given it up."""
        self.calls.append(call)
        self._file.write(json.dumps({key: value for key, value in asdict(call).items() if value not in ("", 0)}) + "\n")

    def of(self, *kinds: str, outcome: str = OK) -> Iterator[Call]:
        """The calls of some kinds that ended so."""
        return (call for call in self.calls if call.kind in kinds and call.outcome == outcome)

    def close(self) -> None:
        """Nothing more comes."""
        self._file.close()


def read(path: Path) -> list[Call]:
    """The calls of a history file."""
    filled = {"start": 0.0, "end": 0.0, "client": ""}
    return [Call(**(filled | json.loads(line))) for line in path.read_text(encoding="utf-8").splitlines()]
