"""``python -m chaos.simulate --seeds A:B``: lives, faults and verdicts of seeds A to B - 1.

Exit code 0: all clean; 2: a cluster did not come together in peace; 3: a promise was broken.
"""

import argparse
import gc
import logging
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial

from chaos.simulation.plants import PLANTS
from chaos.simulation.profiles import PROFILES
from chaos.simulation.run import CLEAN, SAFETY, Result, run_seed
from chaos.simulation.stockrun import run_stock_seed

__all__ = ["main"]

# How often a long sweep says how far it is.
_PROGRESS_S = 30.0


def _one(
    seed: int,
    *,
    nodes: int,
    plant_name: str,
    profile_name: str,
    stock: bool,
    tell: Callable[[str], None] | None = None,
) -> Result:
    profile = next((profile for profile in PROFILES if profile.name == profile_name), None)
    # What the library says of itself when it breaks is no news here.
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        if stock:
            return run_stock_seed(seed, nodes=nodes, profile=profile, tell=tell)
        return run_seed(seed, nodes=nodes, plant=PLANTS.get(plant_name), profile=profile, tell=tell)
    finally:
        logging.disable(before)
        if not gc.isenabled():
            gc.collect()


@contextmanager
def _collecting_between_seeds() -> Iterator[None]:
    """Rings of references are looked for once a seed, among what the seed made; also in processes forked within."""
    if not hasattr(gc, "freeze"):  # PyPy's collector costs nothing for what lives on
        yield
        return
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last)) if last else range(int(first), int(first) + 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos.simulate", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(100), metavar="A:B", help="A to B - 1, or one seed")
    parser.add_argument("--nodes", type=int, default=0, metavar="N", help="how many nodes; else the seed draws it")
    parser.add_argument("--profile", default="", choices=["", *(profile.name for profile in PROFILES)])
    parser.add_argument("--plant", default="", choices=["", *PLANTS], metavar="NAME", help="plant a defect")
    parser.add_argument("--list-plants", action="store_true")
    parser.add_argument("--stock", action="store_true", help="the library as it ships, without our guards")
    parser.add_argument("--trace", action="store_true", help="tell the story of each seed")
    parser.add_argument("--until-found", action="store_true", help="stop at the first seed that is not clean")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the seeds; the exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.list_plants:
        for plant in PLANTS.values():
            print(f"{plant.name:<16} {plant.what}")
        return CLEAN
    began, cpu_s = time.perf_counter(), _cpu_s()
    with _collecting_between_seeds():
        results = _sweep(arguments)
    _summary(results, time.perf_counter() - began, _cpu_s() - cpu_s)
    return max((result.code for result in results), default=CLEAN)


def _sweep(arguments: argparse.Namespace) -> list[Result]:
    began = told_at = time.perf_counter()
    results: list[Result] = []
    for result in _results(arguments):
        results.append(result)
        if result.code != CLEAN:
            kind = "SAFETY" if result.code == SAFETY else "LIVENESS"
            print(f"seed {result.seed} ({result.profile}, {result.nodes} nodes): {kind}: {result.detail}")
            print(f"  replay: {_replay(arguments, result.seed)}", flush=True)
            if arguments.until_found:
                break
        if time.perf_counter() - told_at > _PROGRESS_S:
            told_at = time.perf_counter()
            bad = sum(result.code != CLEAN for result in results)
            print(
                f"... {len(results)} of {len(arguments.seeds)} seeds, {bad} not clean, {told_at - began:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return results


def _cpu_s() -> float:
    """What this process and those that it has waited for have had of the processors."""
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(one.ru_utime + one.ru_stime for one in used)


def _results(arguments: argparse.Namespace) -> Iterator[Result]:
    one = partial(
        _one,
        nodes=arguments.nodes,
        plant_name=arguments.plant,
        profile_name=arguments.profile,
        stock=arguments.stock,
    )
    if arguments.trace:
        for seed in arguments.seeds:
            print(f"--- seed {seed}")
            yield one(seed, tell=print)
    elif arguments.jobs <= 1:
        yield from map(one, arguments.seeds)
    else:
        with ProcessPoolExecutor(arguments.jobs) as pool:
            yield from pool.map(one, arguments.seeds, chunksize=8)


def _replay(arguments: argparse.Namespace, seed: int) -> str:
    words = ["python -m chaos.simulate", f"--seeds {seed}:{seed + 1}"]
    if arguments.nodes:
        words.append(f"--nodes {arguments.nodes}")
    if arguments.profile:
        words.append(f"--profile {arguments.profile}")
    if arguments.plant:
        words.append(f"--plant {arguments.plant}")
    if arguments.stock:
        words.append("--stock")
    return " ".join([*words, "--trace"])


def _summary(results: list[Result], took_s: float, cpu_s: float) -> None:
    for name in sorted({result.profile for result in results}):
        of = [result for result in results if result.profile == name]
        unsafe = sum(result.code == SAFETY for result in of)
        stuck = sum(result.code not in (CLEAN, SAFETY) for result in of)
        print(f"{name:<12} {len(of):6} seeds  {unsafe:5} safety  {stuck:5} liveness")
    faults: Counter[str] = Counter()
    for result in results:
        faults += result.faults
    print("faults: " + (", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())) or "none"))
    hours = sum(result.lived_s for result in results) / 3600.0
    node_hours = sum(result.lived_s * result.nodes for result in results) / 3600.0
    unsafe = sum(result.code == SAFETY for result in results)
    stuck = sum(result.code not in (CLEAN, SAFETY) for result in results)
    print(
        f"{len(results)} seeds, {hours:.2f} virtual hours ({node_hours:.2f} node-hours), "
        f"{sum(result.entries for result in results)} entries, "
        f"{sum(result.acknowledged for result in results)} operations acknowledged, {faults.total()} faults, "
        f"{unsafe} safety and {stuck} liveness violations, "
        f"{took_s:.1f} s, {cpu_s:.1f} s of CPU"
    )


if __name__ == "__main__":
    sys.exit(main())
