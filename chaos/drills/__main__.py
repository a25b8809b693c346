"""``python -m chaos.drills``."""

import sys

from chaos.drills.program import heed_signals, main

if __name__ == "__main__":
    heed_signals()
    sys.exit(main())
