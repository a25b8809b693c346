"""Every planted defect is found, so what the simulator does not find is likely not there."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.simulation.plants import PLANTS, Plant
from chaos.simulation.profiles import PROFILES
from chaos.simulation.run import CLEAN, SAFETY, Result, profile_of, run_seed
from resourcelease.consensus.settings import Guards

# The first seed that shows each plant, where that is not seed 0. A change of anything that draws from the seed moves
# them: ``python -m chaos.simulate --plant NAME --seeds 0:2000 --until-found`` tells the new one.
FIRST_SEEDS: dict[str, int] = {
    "no-snapcommit": 13,
    "no-snapseq": 67,
    "no-vote": 13,
    "no-epoch": 1,
    "no-ci": 1,
    "no-fallback": 1,
    "no-newborn": 1,
    "no-proof": 253,
    "torn": 2,
    "lost-vote": 6,
    "no-effects": 2,
}
# If the first seed does not show it any more: how many seeds to try before that is taken for a failure.
SEEDS_NEAR = 60
# What the issue promises.
SEEDS_MAX = 2000

# What it comes out as, where that says whether the right judge is awake; for the rest, whatever is noticed will do.
PROMISES = {
    "no-term": "a majority holds what is committed",
    "no-sync": "a majority holds what is committed",
    "no-fsync": "a majority holds what is committed",
    "full-yes": "a majority holds what is committed",
    "no-vote": "one leader a term",
    "no-proof": "nothing committed is replaced",
    "lost-vote": "one leader a term",
    "no-fallback": "no stale leader",
    "apply-twice": "exactly once",
    "no-answers": "exactly once",
    "false-yes": "acknowledged operations stay",
    "wrong-fence": "acknowledged operations stay",
    "no-verdicts": "one verdict",
    "no-requests": "one item a request",
    "reused-fence": "fences rise",
    "two-holders": "one live lease",
    "late-ack": "a late ack is refused",
    "early-expiry": "no lease is cut short",
    "wall-clock": "no lease is cut short",
    "hidden-event": "no gaps",
    "no-effects": "one result an effect",
    "silent-change": "the events are the state",
    "drop-answers": "equal states",
    "drop-requests": "equal states",
    "drop-items": "equal states",
    "divergence": "one history",
}


def found(plant: Plant, seeds: range) -> Result | None:
    promise = PROMISES.get(plant.name, "")
    for seed in seeds:
        result = run_seed(seed, plant=plant)
        if result.code != CLEAN and result.detail.startswith(promise):
            return result
    return None


@pytest.mark.parametrize("plant", PLANTS.values(), ids=lambda plant: plant.name)
def test_every_plant_is_found(plant: Plant) -> None:
    first = FIRST_SEEDS.get(plant.name, 0)
    result = found(plant, range(first, first + 1)) or found(plant, range(SEEDS_NEAR))
    assert result is not None, f"not in {SEEDS_NEAR} seeds; see FIRST_SEEDS"


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("plant", PLANTS.values(), ids=lambda plant: plant.name)
def test_every_plant_is_found_from_the_first_seed_on(plant: Plant) -> None:
    assert found(plant, range(SEEDS_MAX)) is not None


def test_every_guard_has_a_plant() -> None:
    assert {guard for plant in PLANTS.values() for guard in plant.guards_off} == set(Guards.names())


def test_plants_name_profiles_that_there_are() -> None:
    names = {profile.name for profile in PROFILES}
    assert all(set(plant.profiles) <= names for plant in PLANTS.values())


def test_a_vote_must_arrive_twice_to_count_twice() -> None:
    profile = profile_of(0, PLANTS["no-vote"])
    first = FIRST_SEEDS["no-vote"]
    assert any(
        run_seed(seed, plant=PLANTS["no-vote"], profile=profile).code == SAFETY for seed in range(first, first + 8)
    )
    once = replace(profile, twice_rate=0.0)
    assert all(run_seed(seed, plant=PLANTS["no-vote"], profile=once).code == CLEAN for seed in range(first, first + 5))


def test_a_replaced_connection_must_deliver_late_to_do_harm() -> None:
    """And it is the guard **epoch** that stops it: with **trim** alone off, the same run is clean."""
    epoch, trim = PLANTS["no-epoch"], Plant("", "", ("trim",))
    late = profile_of(0, epoch)
    in_time = replace(late, late_rate=0.0)
    assert any(
        run_seed(seed, plant=epoch, profile=late).code == SAFETY
        and run_seed(seed, plant=epoch, profile=in_time).code == CLEAN
        and run_seed(seed, plant=trim, profile=late).code == CLEAN
        for seed in range(20)
    )


def test_plants_are_told_apart_from_the_guarded_cluster() -> None:
    """The seeds that show the plants are clean without them."""
    shown: dict[tuple[str, int], Any] = {}
    for plant in PLANTS.values():
        seed = FIRST_SEEDS.get(plant.name, 0)
        profile = profile_of(seed, plant)
        shown[profile.name, seed] = profile
    for (name, seed), profile in shown.items():
        result = run_seed(seed, profile=profile)
        assert result.code == CLEAN, f"seed {seed} of {name}: {result.detail}"
