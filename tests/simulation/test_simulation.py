"""The cluster under all its guards lives through the seeds; without one of them it does not."""

import pickle
from typing import Any

import pytest

from chaos.simulation.plants import PLANTS
from chaos.simulation.profiles import PROFILES
from chaos.simulation.run import CLEAN, run_seed
from chaos.simulation.stock import run_stock_seed

# How far to look for a seed that shows a plant.
SEEDS_MAX = 2000


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_guarded_cluster_is_clean(profile: Any) -> None:
    for seed in range(4):
        result = run_seed(seed, profile=profile)
        assert result.code == CLEAN, f"seed {seed} of {profile.name}: {result.detail}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("plant", PLANTS.values(), ids=lambda plant: plant.name)
def test_every_plant_is_found(plant: Any) -> None:
    assert any(run_seed(seed, plant=plant).code != CLEAN for seed in range(SEEDS_MAX))


def test_a_seed_is_the_same_run_every_time() -> None:
    stories: list[list[str]] = [[], []]
    for story in stories:
        run_seed(8, tell=story.append)
    assert stories[0] == stories[1]
    assert len(stories[0]) > 20


def test_nothing_is_pickled(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("pickle was used")

    for name in ("dump", "dumps", "load", "loads", "_load", "_loads"):
        monkeypatch.setattr(pickle, name, refuse)
    for seed in (5, 8, 11):
        assert run_seed(seed).code == CLEAN


def test_the_library_as_it_ships_loses_acknowledged_operations() -> None:
    backlog = next(profile for profile in PROFILES if profile.name == "backlog")
    results = [run_stock_seed(seed, profile=backlog) for seed in range(10)]
    assert any("acknowledged operations stay" in result.detail for result in results)
