"""Python's garbage collector, in a process that holds millions of items."""

import gc

__all__ = ["spare_the_old"]

# Never reached: the oldest generation is not collected unasked.
_NEVER = 1 << 30


def spare_the_old() -> None:
    """Collects young objects as usual, but leaves alone what has grown old.

    A full collection walks every item that waits, for tens of milliseconds, and finds nothing: the state makes no
    reference cycles. Cycles of the libraries around it die young.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5_000, 20, _NEVER)
