"""``python -m resourcelease`` is the command line."""

import sys

from resourcelease.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
