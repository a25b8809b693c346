"""Python's garbage collector, in a process that holds millions of items."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["all_stays", "spare_the_old"]

# Never reached: the oldest generation is not collected unasked.
_NEVER = 1 << 30
# So many new objects are looked through together, and so many times that number before they count as old. Each is
# looked at twice, whatever the numbers; they say how long everything stands still for it: less than a millisecond.
_YOUNG, _GENERATION = 1_000, 2


@contextmanager
def all_stays() -> Iterator[None]:
    """Collects nothing meanwhile: of the hundreds of thousands of objects that a node loads, each is there to stay.

    To look for cycles among them takes as long as to make them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def spare_the_old() -> None:
    """Collects young objects as usual, but leaves alone what has grown old.

    A full collection walks every item that waits, for tens of milliseconds, and finds nothing: the state makes no
    reference cycles. Cycles of the libraries around it mostly die young; where one may live for long, as that of a call
    which waits before it is refused, whoever makes it breaks it (``frontdoor.dispatch``).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _GENERATION, _NEVER)
