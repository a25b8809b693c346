"""What commands print: tables for people, JSON for programs."""

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

__all__ = ["Output", "plain", "short_bytes", "since"]

# What is not a terminal is as wide as its content.
_WIDE = 4096


class Output:
    """Where a command writes to."""

    def __init__(self, *, as_json: bool) -> None:
        self.as_json = as_json

    def data(self, value: Any) -> None:
        """One JSON document."""
        print(json.dumps(value, ensure_ascii=False, default=str), flush=True)

    def say(self, text: str) -> None:
        """A line for people; programs get none."""
        if not self.as_json:
            self._console().print(text, highlight=False)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str = "") -> None:
        """A table for people. A column whose name starts with ``>`` is set to the right."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
        for name in columns:
            table.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
        for row in rows:
            table.add_row(*(cell if isinstance(cell, Text) else Text(_cell(cell)) for cell in row))
        self._console().print(table)

    @contextmanager
    def progress(self, what: str, total: int | None = None) -> Any:
        """Shows how far long work is, on a terminal; gives a function that takes how much has been done since."""
        if self.as_json or not sys.stderr.isatty():
            with nullcontext():
                yield lambda more: None
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(what, total=total)
            yield lambda more: progress.advance(task, more)

    def _console(self) -> Any:
        from rich.console import Console

        return Console(width=None if sys.stdout.isatty() else _WIDE, soft_wrap=False)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def plain(message: Any) -> dict[str, Any]:
    """A message as JSON wants it: every field by its name in the files, numbers as numbers, enums by name.

    >>> from resourcelease.v1 import Depth
    >>> plain(Depth(pending=3))
    {'pending': 3, 'active': 0, 'delayed': 0}
    """
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                result[field.name] = dict(value)
            else:
                result[field.name] = [_value(field, each) for each in value]
        elif field.has_presence and not message.HasField(field.name):
            continue
        else:
            result[field.name] = _value(field, value)
    return result


def _value(field: Any, value: Any) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        if known is None:
            return value
        return known.name.removeprefix(_prefix(field.enum_type.name))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value


def _prefix(enum: str) -> str:
    return "".join("_" + letter if letter.isupper() and at else letter for at, letter in enumerate(enum)).upper() + "_"


def short_bytes(body: bytes, size: int = 40) -> str:
    """The beginning of a body, as text if it is text.

    >>> short_bytes(b"hello"), short_bytes(b"\\xff\\x00")
    ('hello', '2 bytes')
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return f"{len(body)} bytes"
    if not text.isprintable():
        text = text.encode("unicode_escape").decode()
    return text if len(text) <= size else text[: size - 1] + "…"


def since(milliseconds: float) -> str:
    """A span of time as people say it.

    >>> since(950), since(61_000), since(7_200_000)
    ('0.9 s', '1 min 1 s', '2 h 0 min')
    """
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{int(seconds * 10) / 10:g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds < 48 * 3600:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"
