"""Where the library's own test-suite comes from: its repository, since its source distribution does not carry it.

It is MIT licensed and not copied into this tree. One file, pinned by digest, is fetched once into a cache directory.
"""

import hashlib
import os
import urllib.request
from pathlib import Path

import pytest

COMMIT = "2ec056dae2cd91f0e5735af0d9b3e6cd37d7ca0d"
SHA256 = "625fe12b4776acebba4ba3c2f0103b8a79c051ae79901ef5ac09872a9d351fa6"
URL = f"https://raw.githubusercontent.com/bakwc/PySyncObj/{COMMIT}/test_syncobj.py"
# A copy of the file, for machines without a way to it.
VARIABLE = "RESOURCELEASE_UPSTREAM_TESTS"
_TIMEOUT_S = 5.0


def upstream_source() -> str:
    """The text of the suite; skips the test, saying why, where it cannot be had."""
    given = os.environ.get(VARIABLE)
    cached = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "resourcelease" / f"{SHA256}.py"
    path = Path(given) if given else cached
    if not path.exists():
        _fetch(path)
    data = path.read_bytes()
    assert hashlib.sha256(data).hexdigest() == SHA256, f"{path} is not the file of commit {COMMIT}; delete it"
    return data.decode()


def _fetch(path: Path) -> None:
    try:
        with urllib.request.urlopen(URL, timeout=_TIMEOUT_S) as answer:
            data = answer.read()
    except OSError as error:
        pytest.skip(f"the library's own tests cannot be fetched ({error}); put a copy of {URL} where {VARIABLE} says")
    path.parent.mkdir(parents=True, exist_ok=True)
    work = path.with_suffix(f".{os.getpid()}")
    work.write_bytes(data)
    work.rename(path)
