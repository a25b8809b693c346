"""The file that a drained bundle is kept in: a line that names the bundle, then its pages, each after its length.

A page carries a digest of its own, so the file needs none: what is cut off is seen by its length, what is damaged is
refused by the cluster that is to restore it.
"""

import json
import os
import struct
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import BinaryIO

__all__ = ["BundleFile", "read_pages"]

_MAGIC = b"resourcelease bundle 1 "
_LENGTH = struct.Struct(">Q")
_MAX_HEAD_BYTES = 4096
_MAX_PAGE_BYTES = 64 * 1024 * 1024


class BundleFile:
    """A bundle on its way to disk. What is left of a drain that broke off can be gone on with."""

    def __init__(self, file: BinaryIO, bundle_id: str, pages: int) -> None:
        self.bundle_id = bundle_id
        self.pages = pages
        """Whole pages in the file: the number of the next one."""
        self._file = file

    @staticmethod
    def create(path: str | os.PathLike[str], bundle_id: str) -> "BundleFile":
        """A new file; one that is there is never overwritten."""
        file = Path(path).open("xb")  # noqa: SIM115 - closed with the bundle
        made = BundleFile(file, bundle_id, 0)
        made._write(_MAGIC + json.dumps({"bundle_id": bundle_id}).encode() + b"\n")
        return made

    @staticmethod
    def resume(path: str | os.PathLike[str]) -> "BundleFile":
        """A file whose drain broke off; half a page at its end is cut off."""
        file = Path(path).open("r+b")  # noqa: SIM115 - closed with the bundle
        try:
            bundle_id = _head(file, path)
            pages, end = 0, file.tell()
            while _page(file):
                pages, end = pages + 1, file.tell()
            file.truncate(end)
            file.seek(end)
        except BaseException:
            file.close()
            raise
        return BundleFile(file, bundle_id, pages)

    def append(self, page: bytes) -> None:
        """Adds a page, and returns once it is on disk."""
        self._write(_LENGTH.pack(len(page)) + page)
        self.pages += 1

    def __enter__(self) -> "BundleFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())


def read_pages(source: "str | os.PathLike[str] | BinaryIO") -> Iterator[bytes]:
    """The pages of a file, in order.

    >>> import io
    >>> list(read_pages(io.BytesIO(b'resourcelease bundle 1 {"bundle_id": "b"}' + b"\\n" + bytes(7) + b"\\x02ab")))
    [b'ab']
    """
    with Path(source).open("rb") if isinstance(source, str | os.PathLike) else nullcontext(source) as file:
        _head(file, source)
        while page := _page(file):
            yield page
        if page is None:
            raise ValueError(f"{source}: the bundle is cut off; its last page is not whole")


def _head(file: BinaryIO, source: object) -> str:
    line = file.readline(_MAX_HEAD_BYTES)
    try:
        if not line.startswith(_MAGIC):
            raise ValueError
        return str(json.loads(line.removeprefix(_MAGIC))["bundle_id"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{source}: this is no bundle; a bundle is what `resourcelease drain` writes") from None


def _page(file: BinaryIO) -> bytes | None:
    """The next page; empty at the end, None if it is not whole."""
    length = file.read(_LENGTH.size)
    if not length:
        return b""
    size = _LENGTH.unpack(length)[0] if len(length) == _LENGTH.size else _MAX_PAGE_BYTES + 1
    page = file.read(size) if 0 < size <= _MAX_PAGE_BYTES else b""
    return page if len(page) == size else None
