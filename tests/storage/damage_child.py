"""Run by a test as a process of its own: says what a store holds, or that it is damaged, or dies of it."""

import sys
from pathlib import Path

from resourcelease.storage import CorruptStore

from .model import held, open_store


def main(directory: Path) -> None:
    try:
        store = open_store(directory)
        said = repr(held(store))
        store.close()
    except CorruptStore:
        said = "CorruptStore"
    print(said, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
