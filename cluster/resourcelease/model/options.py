"""The options of a namespace: replicated, changed at run time, checked in one place."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from resourcelease.model.errors import Reason, Refusal
from resourcelease.model.limits import MAX_DELAY_MS, MAX_OP_BYTES

__all__ = ["DEFAULT_OPTIONS", "QueueOptions", "changed_options"]


@dataclass(frozen=True, slots=True)
class QueueOptions:
    """How one namespace treats its items. Times are milliseconds of the lease clock."""

    # Items that are not yet settled: pending, delayed and active together.
    capacity: int = 1_000_000
    lease_duration_ms: int = 30_000
    # What a client aims at; the machine does not look at it.
    heartbeat_interval_ms: int = 10_000
    max_attempts: int = 5
    # The wait before attempt n + 1 is requeue_delay_ms * requeue_multiplier ** (n - 1), at most the cap (0: no cap).
    requeue_delay_ms: int = 0
    requeue_multiplier: int = 1
    requeue_delay_cap_ms: int = 0
    # Backpressure is on from pending >= high until pending <= low; off altogether while either is None.
    high_watermark: int | None = None
    low_watermark: int | None = None
    # How long a request id stays known after its item's end, and how many of them are kept.
    dedup_window_ms: int = 3_600_000
    dedup_limit: int = 1_000_000
    dead_letter_limit: int = 100_000
    max_body_bytes: int = 1024 * 1024
    # With enforcement a disconnected peer must heartbeat before it is granted anything.
    enforce_peer_health: bool = False
    peer_grace_ms: int = 30_000

    def as_map(self) -> dict[str, Any]:
        """Every option by name, in the order of declaration."""
        return asdict(self)

    def requeue_wait_ms(self, attempts_used: int) -> int:
        """The wait after the given number of attempts, at least 1, has been used."""
        wait, cap = self.requeue_delay_ms, self.requeue_delay_cap_ms or MAX_DELAY_MS
        if not wait:
            return 0
        for _ in range(attempts_used - 1):
            if wait >= cap or self.requeue_multiplier == 1:
                break
            wait *= self.requeue_multiplier
        return min(wait, cap)


DEFAULT_OPTIONS = QueueOptions()

# Smallest and largest value of each whole number; None is allowed where the default is None.
_BOUNDS: dict[str, tuple[int, int]] = {
    "capacity": (1, 1 << 40),
    "lease_duration_ms": (1, MAX_DELAY_MS),
    "heartbeat_interval_ms": (1, MAX_DELAY_MS),
    "max_attempts": (1, 1 << 20),
    "requeue_delay_ms": (0, MAX_DELAY_MS),
    "requeue_multiplier": (1, 100),
    "requeue_delay_cap_ms": (0, MAX_DELAY_MS),
    "high_watermark": (1, 1 << 40),
    "low_watermark": (0, 1 << 40),
    "dedup_window_ms": (0, MAX_DELAY_MS),
    "dedup_limit": (0, 1 << 40),
    "dead_letter_limit": (0, 1 << 40),
    "max_body_bytes": (0, MAX_OP_BYTES // 2),
    "peer_grace_ms": (1, MAX_DELAY_MS),
}
_NAMES = tuple(field.name for field in fields(QueueOptions))


def changed_options(current: QueueOptions, changes: Mapping[str, Any]) -> QueueOptions | Refusal:
    """The options after the changes, or the first thing that is wrong with them.

    >>> changed_options(DEFAULT_OPTIONS, {"capacity": 10}).capacity
    10
    >>> changed_options(DEFAULT_OPTIONS, {"capcity": 10}).field
    'options.capcity'
    """
    for name, value in changes.items():
        wrong = _wrong(name, value)
        if wrong:
            return Refusal(Reason.INVALID_ARGUMENT, f"option {name}: {wrong}", f"options.{name}")
    options = replace(current, **changes)
    high, low = options.high_watermark, options.low_watermark
    if high is not None and low is not None and low >= high:
        message = f"low_watermark ({low}) must be below high_watermark ({high})"
        return Refusal(Reason.INVALID_ARGUMENT, message, "options.low_watermark")
    if (high is None) != (low is None):
        missing = "low_watermark" if low is None else "high_watermark"
        return Refusal(
            Reason.INVALID_ARGUMENT, f"set both watermarks or neither; {missing} is not set", f"options.{missing}"
        )
    return options


def _wrong(name: str, value: object) -> str:
    if name not in _NAMES:
        return f"there is no such option; there are {', '.join(_NAMES)}"
    if name == "enforce_peer_health":
        return "" if type(value) is bool else "must be true or false"
    if value is None:
        return "" if getattr(DEFAULT_OPTIONS, name) is None else "must be a whole number"
    low, high = _BOUNDS[name]
    if type(value) is not int or not low <= value <= high:
        return f"must be a whole number from {low} to {high}"
    return ""
