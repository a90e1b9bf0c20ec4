"""L9: what a scope is guaranteed it has, whatever the others do; and what is left is divided as ever."""

from __future__ import annotations

import random

import pytest

from spark_throttle.core.quota import MICRO, Dimension
from tests.core.fair.fluid import Fluid
from tests.core.fair.guaranteed_worlds import DrawnWorld, Job, Values
from tests.effort import first_of
from tests.oracle.promised import Promise, PromisedBucket

UNITS = (MICRO, MICRO)


def hundred(**tenants: Values) -> Values:
    """Return a job of 100 messages a second among tenants."""
    return {
        "job": {"publish": {"messages_per_second": 100, "burst_seconds": 1}},
        "tenants": {name: {"publish": quota} for name, quota in tenants.items()},
    }


def played(world: DrawnWorld, rng: random.Random, batches: int, *, largest_bytes: int) -> dict[str, Promise]:
    """Return what became of each promise while everybody else offers a hundred times what the job has."""
    job = Job.of(world.document)
    promises = {
        path: Promise([None if rate is None else rate * 1_000 for rate in rates])
        for path, rates in world.guaranteed.items()
    }
    sends = {name: rng.random() < 0.8 for name in world.names}
    for _ in range(batches):
        sends |= {name: not sends[name] for name in world.names if rng.random() < 0.1}
        rows = [
            (name, rng.choice((1, largest_bytes // 2, largest_bytes)))
            for name in world.names
            for _ in range(rng.choice((20, 400)) if sends[name] else 0)
            if job.waiting[name] < 1_000
        ]
        rng.shuffle(rows)
        served = job.batch(rows, rng.choice((100, 500, 1_000, 3_000)))
        for path, promise in promises.items():
            names = world.names_of(path)
            total = [sum(served.get(name, (0, 0))[d] for name in names) for d in (0, 1)]
            promise.note(job.now_ms, total, is_behind=any(job.waiting[name] for name in names))
    return promises


@pytest.mark.parametrize("seed", first_of(4, range(200)))
def test_scope_has_what_it_is_guaranteed_in_every_window(seed: int) -> None:
    rng = random.Random(seed)
    world = DrawnWorld.draw(rng, in_bytes=seed % 2 == 1)
    for path, promise in played(world, rng, 25, largest_bytes=100).items():
        assert promise.most_behind(UNITS, (1, 100)) <= 1 + world.inside(path), (path, world.document)
