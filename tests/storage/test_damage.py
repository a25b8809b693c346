"""Bytes that changed on disk are noticed, named, and stop the store; they are never taken for data."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from resourcelease.storage import (
    CorruptStore,
    JournalEntry,
    LmdbStore,
    StoreState,
    StoreStopped,
    WriteBatch,
    records,
)

from . import damage_child
from .model import append, entries, held

Opener = Callable[..., LmdbStore]

ROWS = [(b"row%05d" % number, b"value of row %05d" % number) for number in range(3000)]


def _filled(opened: Opener) -> None:
    store = opened()
    store.write(append(1, 300, size=200))
    store.write(WriteBatch(row_puts=ROWS, rows_index=5, rows_term=1, vote=(7, "voted-for"))).result()
    store.close()


def _flip(path: Path, text: bytes, offset: int = 0) -> None:
    """Flips a bit in each copy of ``text`` in the file; older copies of a page are among them."""
    content = bytearray(path.read_bytes())
    position = content.find(text)
    assert position >= 0
    while position >= 0:
        content[position + offset] ^= 0x10
        position = content.find(text, position + 1)
    path.write_bytes(content)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "node/lmdb/data.mdb"


def test_a_flipped_bit_in_an_entry(opened: Opener, data: Path) -> None:
    _filled(opened)
    _flip(data, b"123/1 ", 3)
    store = opened()
    assert list(store.entries(1, 122)) == entries(1, 122, size=200)
    with pytest.raises(CorruptStore, match=r"data\.mdb: journal entry 123 does not match its checksum") as caught:
        list(store.entries(1, 300))
    assert caught.value.path == data
    # Damage stops the writer too.
    with pytest.raises(StoreStopped, match="journal entry 123"):
        store.write(append(301, 301)).result()
    assert store.status.state is StoreState.STOPPED


def test_a_flipped_bit_in_an_entrys_term(opened: Opener, data: Path) -> None:
    store = opened()
    store.write(WriteBatch(appends=[JournalEntry(1, 0x1122334455667788, b"x")])).result()
    store.close()
    _flip(data, (0x1122334455667788).to_bytes(8))
    with pytest.raises(CorruptStore, match="journal entry 1 "):
        list(opened().entries(1, 1))


def test_a_flipped_bit_in_a_row(opened: Opener, data: Path) -> None:
    _filled(opened)
    _flip(data, b"value of row 02222", 14)
    with pytest.raises(CorruptStore, match=r"the row b'row02222' does not match its checksum"):
        list(opened().rows())


def test_a_flipped_bit_in_a_rows_key(opened: Opener, data: Path) -> None:
    _filled(opened)
    _flip(data, b"row02222", 7)
    with pytest.raises(CorruptStore, match="does not match its checksum"):
        list(opened().rows())


def test_a_flipped_bit_in_the_vote(opened: Opener, data: Path) -> None:
    _filled(opened)
    _flip(data, b"voted-for")
    with pytest.raises(CorruptStore, match="the record 'vote' does not match its checksum"):
        opened()


def test_a_file_that_lost_its_end(opened: Opener, data: Path) -> None:
    _filled(opened)
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size // 2)
    with pytest.raises(CorruptStore, match="its last commit reaches to"):
        opened()


def test_a_missing_entry(opened: Opener, data: Path) -> None:
    store = opened()
    store.write(append(1, 100)).result()
    with store._env.begin_write() as txn:
        txn.delete(records.index_key(50), db=store._env.journal)
    with pytest.raises(CorruptStore, match="entry 50 is missing; the next one is 51"):
        list(store.entries(1, 100))
    store.close()
    with pytest.raises(CorruptStore, match="99 entries between 1 and 100"):
        opened()


@pytest.mark.parametrize("seed", range(2))
def test_random_flips_never_pass_for_data(opened: Opener, tmp_path: Path, seed: int) -> None:
    """Also in LMDB's own pages, where a flip may well kill the process that reads; that, too, is stopping."""
    _filled(opened)
    store = opened()
    truth = repr(held(store))
    store.close()
    draw = random.Random(seed)
    top = Path(__file__).parents[damage_child.__name__.count(".")]
    flipped = []
    for number in range(8):
        copy = tmp_path / f"copy{number}"
        shutil.copytree(tmp_path / "node", copy)
        content = bytearray((copy / "lmdb/data.mdb").read_bytes())
        for _ in range(3):
            # The first two pages are LMDB's own, without checksums: see the page's trade-offs.
            content[draw.randrange(8192, len(content))] ^= 1 << draw.randrange(8)
        (copy / "lmdb/data.mdb").write_bytes(content)
        command = [sys.executable, "-m", damage_child.__name__, str(copy)]
        flipped.append(subprocess.Popen(command, cwd=top, stdout=subprocess.PIPE, text=True))
    for process in flipped:
        said, _ = process.communicate(timeout=60)
        assert process.returncode < 0 or said.strip() in ("CorruptStore", truth)
