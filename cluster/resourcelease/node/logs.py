"""What a node says of itself, on stderr: lines for people, or one JSON object a line for programs."""

import json
import logging
import sys
import time
from typing import TextIO

from resourcelease.node.schema import LogSection

__all__ = ["JsonLines", "PlainLines", "set_up"]

# Attributes that every record has; what else is on one was given by ``extra``.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class PlainLines(logging.Formatter):
    """``2026-11-18 12:00:00.123 INFO  node n1: …``."""

    def __init__(self, node_id: str) -> None:
        super().__init__(
            f"%(asctime)s.%(msecs)03d %(levelname)-7s {node_id} %(name)s: %(message)s", "%Y-%m-%d %H:%M:%S"
        )

    def formatException(self, ei: object) -> str:
        """A traceback on one line is still found by whoever greps for its error."""
        text = super().formatException(ei)  # type: ignore[arg-type]
        return " | ".join(line.strip() for line in text.splitlines())


class JsonLines(logging.Formatter):
    """One object a line: ``ts``, ``level``, ``node``, ``logger``, ``message``, and what the caller added."""

    def __init__(self, node_id: str) -> None:
        super().__init__()
        self._node_id = node_id

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "ts": f"{when}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "node": self._node_id,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


def set_up(config: LogSection, node_id: str, stream: TextIO | None = None) -> logging.Handler:
    """Has everything of this process logged so; the handler, to be taken off again."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(node_id) if config.format == "json" else PlainLines(node_id))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(config.level.upper())
    return handler
