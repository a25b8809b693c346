"""The figures of the benchmark: medians, percentiles, ratios."""

from bench.comparison.statistics import percentile, rates, ratio, summary_ms


def test_percentiles_are_values_that_were_there() -> None:
    assert percentile(list(range(100)), 0.99) == 99
    assert percentile([5.0], 0.5) == 5.0


def test_p999_needs_a_thousand_times() -> None:
    assert summary_ms([1000.0] * 999)["p999_ms"] is None
    assert summary_ms([1000.0] * 1000) == {"p50_ms": 1.0, "p99_ms": 1.0, "p999_ms": 1.0}
    assert summary_ms([])["p50_ms"] is None


def test_rates_give_the_median_and_the_spread() -> None:
    told = rates([10.0, 30.0, 20.0])
    assert (told["lifecycles_per_s"], told["lowest"], told["highest"]) == (20.0, 10.0, 30.0)


def test_the_ratio_is_to_the_best_rival() -> None:
    told = ratio([6.0, 6.0], {"slow": [1.0, 1.0], "fast": [2.0, 3.0], "absent": []})
    assert told == {"ratio": 2.4, "lowest": 2.0, "highest": 3.0, "best_peer": "fast"}


def test_where_less_is_better_the_best_is_the_least() -> None:
    assert ratio([2.0], {"a": [4.0], "b": [8.0]}, less_is_better=True)["best_peer"] == "a"


def test_without_rivals_there_is_no_ratio() -> None:
    assert ratio([1.0], {}) is None
    assert ratio([], {"a": [1.0]}) is None
