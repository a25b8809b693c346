"""``python -m chaos.drills``."""

import signal
import sys

from chaos.drills.program import main

if __name__ == "__main__":
    # Asked to stop, as interrupted: nodes, namespaces and mounts are taken down either way.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
