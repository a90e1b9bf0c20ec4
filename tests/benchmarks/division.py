"""How policies divide a quota between ten jobs (`make bench-division`): 60 steady cases and a dynamic run, all seeded.

A job uses the lesser of its demand and its part. In a steady case demand stays, parts are equal at first, and the
division is repeated, from what was demanded (`max_min`) or used (the others) the cycle before. It has reached max-min
when every job's use is, and stays, within 1 % of what exact max-min gives it. In the dynamic run jobs are on and off.
`leased` is `max_min` through the whole protocol: `sharing.sharing`, its reports, claims and leases, from one case
straight to the next, the jobs' visits spread over the cycle.

    python -m tests.benchmarks.division
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from spark_throttle.core.quota import Int64s
from spark_throttle.core.shares.allocation import PLENTY
from spark_throttle.core.shares.division import max_min
from spark_throttle.sharing.pip82 import proportional, residual, steal
from tests.benchmarks.results import save
from tests.sharing.share_world import GOLD, SETTINGS, SimulatedJob, World

JOBS, CASES, ROUNDS, MOST_CYCLES = 10, 60, 200, 200
QUOTA = 1_000_000
_NEAR = 0.01
_FLOOR = QUOTA * 3 // 100 // JOBS

Divide = Callable[[Int64s, Int64s], Int64s]
"""Takes the demand and the usage of the last cycle, and returns the parts of the next."""


def _alone(demand: Int64s, floor: int) -> Int64s:
    seats = np.arange(JOBS)
    pairs = np.stack([demand, 0 * demand], axis=1)
    floors = np.stack([0 * demand + floor, 0 * demand], axis=1)
    return max_min(0 * seats, floors, seats, pairs, 0 * seats + 1, np.array([[QUOTA, PLENTY]]))[:, 0]


def _spread(value: int) -> Int64s:
    return np.full(JOBS, value, dtype=np.int64)


def _over_tokens(rule: Callable[[Int64s, Int64s, Int64s], Int64s], amount: Int64s) -> Int64s:
    """Return the parts of a rule that counts whole tokens a second, as Pulsar does."""
    whole = amount // 1000
    return rule(_spread(QUOTA // 1000), whole, _spread(int(whole.sum()))) * 1000


POLICIES: dict[str, Divide] = {
    "static": lambda demand, _: _spread(QUOTA) // _spread(JOBS) + 0 * demand,
    "proportional": lambda _, used: _over_tokens(proportional, used),
    "proportional to demand": lambda demand, _: _over_tokens(proportional, demand),
    "residual": lambda _, used: residual(_spread(QUOTA), used, _spread(int(used.sum()))),
    "steal": lambda _, used: steal(0 * used, _spread(QUOTA), used, _spread(int(used.sum()))),
    "max_min": lambda demand, _: _alone(demand, _FLOOR),
}


def exact(demand: Int64s) -> npt.NDArray[np.float64]:
    """Return max-min by the textbook: raise the level until the quota is out."""
    left, parts = float(QUOTA), np.zeros(JOBS)
    order = np.argsort(demand)
    for taken, job in enumerate(order.tolist()):
        parts[job] = min(float(demand[job]), left / (JOBS - taken))
        left -= parts[job]
    return parts


def steady_cases(seed: int = 20261121) -> list[Int64s]:
    """Return demands with heavy tails, of 0.6 to 3 times the quota in all."""
    rng = np.random.default_rng(seed)
    cases = []
    for _ in range(CASES):
        weight = rng.pareto(1.2, JOBS) + 0.05
        load = rng.uniform(0.6, 3.0)
        cases.append((weight / weight.sum() * load * QUOTA).astype(np.int64))
    return cases


def dynamic_run(seed: int = 7) -> Int64s:
    """Return demands of jobs that are on and off, shape (rounds, jobs)."""
    rng = np.random.default_rng(seed)
    mean = rng.pareto(1.2, JOBS) + 0.05
    mean = mean / mean.sum() * 2.4 * QUOTA
    is_on = rng.random(JOBS) < 0.5
    rounds = []
    for _ in range(ROUNDS):
        is_on ^= rng.random(JOBS) < 0.1
        rounds.append(np.where(is_on, mean * rng.lognormal(0, 0.2, JOBS), 0).astype(np.int64))
    return np.array(rounds)


@dataclass(frozen=True, slots=True)
class Result:
    """One policy's line."""

    policy: str
    reached: int
    """How many of the steady cases reach the goal."""

    cycles_median: float | None
    cycles_worst: int | None
    utilisation: float
    """What the dynamic run used, as a part of what it could have used."""

    over_admission_worst: float
    """The most that was used beyond the quota in one cycle, steady or dynamic, as a part of the quota."""

    jain: float
    """Of what each job got in the dynamic run by what max-min on the same cycle's demand gives it."""


def bench(name: str, divide: Divide) -> Result:
    """Measure a policy as a function."""
    cycles, over = [], 0.0
    for demand in steady_cases():
        fair, parts = exact(demand), _spread(QUOTA // JOBS)
        is_near = []
        for _ in range(MOST_CYCLES):
            used = np.minimum(demand, parts)
            over = max(over, float(used.sum() / QUOTA - 1))
            is_near.append(_is_near(used, fair))
            parts = divide(demand, used)
        if is_near[-1]:
            cycles.append(max((n + 1 for n, near in enumerate(is_near) if not near), default=0))
    parts, served = _spread(QUOTA // JOBS), []
    demands = dynamic_run()
    for demand in demands:
        used = np.minimum(demand, parts)
        served.append(used)
        parts = divide(demand, used)
    return _result(name, cycles, over, demands, np.array(served))


def bench_leased() -> Result:
    """Measure `max_min` through the protocol."""
    settings = replace(
        SETTINGS, report_change_percent=0
    )  # a case differs from the last by less than a tenth in some jobs
    world = World([SimulatedJob(f"job{n}", 1000 * n, settings=settings) for n in range(JOBS)])
    for job in world.jobs:
        job.demands = {GOLD: 1}
    world.cycle(6)
    cycles, over = [], 0.0
    for demand in steady_cases():
        _set(world, demand)
        fair, is_near = exact(demand), []
        for _ in range(5):
            used = np.minimum(demand, np.array(world.used()))
            over = max(over, float(used.sum() / QUOTA - 1))
            is_near.append(_is_near(used, fair))
            world.cycle()
        used = np.minimum(demand, np.array(world.used()))
        if _is_near(used, fair):
            cycles.append(max((n + 1 for n, near in enumerate(is_near) if not near), default=0))
    served, demands = [], dynamic_run()
    for demand in demands:
        served.append(np.minimum(demand, np.array(world.used())))
        _set(world, demand)
        world.cycle()
    return _result("max_min, leased", cycles, over, demands, np.array(served))


def _set(world: World, demand: Int64s) -> None:
    for job, wanted in zip(world.jobs, demand.tolist(), strict=True):
        job.demands = {GOLD: wanted}


def _is_near(used: Int64s, fair: npt.NDArray[np.float64]) -> bool:
    return bool((np.abs(used - fair) <= np.maximum(_NEAR * fair, 1)).all())


def _result(name: str, cycles: list[int], over: float, demands: Int64s, served: Int64s) -> Result:
    fair = np.array([exact(demand) for demand in demands])
    got = served.sum(axis=0) / np.maximum(fair.sum(axis=0), 1)
    return Result(
        name,
        len(cycles),
        float(np.median(cycles)) if cycles else None,
        max(cycles, default=None),
        float(np.minimum(served.sum(axis=1), QUOTA).sum() / np.minimum(demands.sum(axis=1), QUOTA).sum()),
        max(over, float((served.sum(axis=1) / QUOTA - 1).max()), 0.0),
        float(got.sum() ** 2 / (JOBS * (got**2).sum())),
    )


def main() -> None:
    """Print the table and write `build/bench-division.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/bench-division.json"))
    asked = parser.parse_args()
    results = [*(bench(name, divide) for name, divide in POLICIES.items()), bench_leased()]
    print(f"{'policy':<24}{'max-min':>9}{'cycles':>12}{'utilisation':>13}{'over quota':>12}{'Jain':>8}")
    for each in results:
        cycles = "-" if each.cycles_worst is None else f"{each.cycles_median:g} to {each.cycles_worst}"
        print(
            f"{each.policy:<24}{each.reached:>6}/{CASES}{cycles:>12}{each.utilisation:>13.3f}"
            f"{each.over_admission_worst:>12.1%}{each.jain:>8.3f}"
        )
    save({"division": [asdict(each) for each in results]}, asked.out)


if __name__ == "__main__":
    main()
