"""Figures of several rounds, and ratios with their spread."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

__all__ = ["percentile", "ratio", "rates", "summary_ms"]

_SHARES = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which a share of them lies (the nearest one that there is).

    >>> percentile([3, 1, 2], 0.5), percentile([], 0.5)
    (2, None)
    """
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary_ms(times_us: Sequence[float]) -> dict[str, float | None]:
    """Percentiles in milliseconds of times in microseconds; p99.9 only where a thousand times say something of it."""
    found: dict[str, float | None] = {}
    for name, share in _SHARES.items():
        value = percentile(times_us, share)
        enough = value is not None and (name != "p999_ms" or len(times_us) >= 1_000)
        found[name] = round(value / 1000, 3) if value is not None and enough else None
    return found


def rates(rounds: Sequence[float]) -> dict[str, Any]:
    """The median of some rounds, and how far they lie apart.

    >>> rates([3.0, 1.0, 2.0])
    {'lifecycles_per_s': 2.0, 'lowest': 1.0, 'highest': 3.0, 'rounds': [3.0, 1.0, 2.0]}
    """
    rounded = [round(rate, 1) for rate in rounds]
    return {
        "lifecycles_per_s": round(statistics.median(rounds), 1),
        "lowest": min(rounded),
        "highest": max(rounded),
        "rounds": rounded,
    }


def ratio(ours: Sequence[float], theirs: Mapping[str, Sequence[float]], *, less_is_better: bool = False) -> Any:
    """Ours to the best of them by the median; lowest and highest are of the rounds, each with its own.

    >>> ratio([4.0, 6.0], {"a": [2.0, 2.0], "b": [1.0, 1.0]})
    {'ratio': 2.5, 'lowest': 2.0, 'highest': 3.0, 'best_peer': 'a'}
    """
    there = {name: rounds for name, rounds in theirs.items() if rounds and statistics.median(rounds) > 0}
    if not ours or not there:
        return None
    choose = min if less_is_better else max
    best = choose(there, key=lambda name: statistics.median(there[name]))
    each = [mine / other for mine, other in _pairs(ours, there[best]) if other > 0]
    whole = statistics.median(ours) / statistics.median(there[best])
    return {"ratio": round(whole, 3), "lowest": round(min(each), 3), "highest": round(max(each), 3), "best_peer": best}


def _pairs(ours: Sequence[float], theirs: Sequence[float]) -> Iterable[tuple[float, float]]:
    # A round that failed leaves one of them shorter.
    return zip(ours, theirs, strict=False)
