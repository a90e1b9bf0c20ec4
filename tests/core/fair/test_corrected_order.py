"""Who is next goes by what rows cost, as soon as it is known, and not by what they were estimated at."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest

from spark_throttle.core.corrections import CorrectedRows
from spark_throttle.core.fair.work import AMOUNT, MILLISECOND, MOST_WORK, TOKEN_BITS, corrected_work
from spark_throttle.core.quota import Dimension
from tests.core.test_reservations import Played, job
from tests.effort import first_of
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

RATE = 100
"""Units a second: what the job has for all, and so in a batch."""

ESTIMATES = {"a third": (1, 3), "exact": (1, 1), "ten times": (10, 1)}
"""What a row is estimated at, as a part of its cost."""

LEVELS = ("namespaces of a tenant", "tenants of a group", "tenants of the job")
"""Who compete."""


def world(level: str, weights: list[int]) -> tuple[dict[str, Any], list[str]]:
    """Return the scopes of a policy in which namespaces compete at a level, and their names."""
    if level == LEVELS[0]:
        names = [f"acme/n{at}" for at in range(len(weights))]
        each = {name: Namespace(limit(weight=weight)) for name, weight in zip(names, weights, strict=True)}
        return {"namespaces": each}, names
    group = "gold" if level == LEVELS[1] else None
    tenants = {f"t{at}": Tenant(limit(weight=weight), group) for at, weight in enumerate(weights)}
    groups = {"groups": {"gold": limit()}} if group else {}
    return {"tenants": tenants, **groups}, [f"{tenant}/n" for tenant in tenants]


def true_service(seed: int, batches: int) -> tuple[list[float], int]:
    """Return what the rows cost that left, by namespace and weight, and after how many batches costs are told.

    All have rows that wait in every batch.
    """
    draw = Random(seed)
    told_after, competing = draw.choice([1, 2, 4]), draw.choice([2, 3, 5])
    estimates = [ESTIMATES[draw.choice(list(ESTIMATES))] for _ in range(competing)]
    weights = [draw.choice([1, 1, 2, 5]) for _ in range(competing)]
    scopes, names = world(LEVELS[seed % len(LEVELS)], weights)
    quota = limit(units_per_second=RATE, burst_seconds=draw.choice([1, 5]))
    played = Played(replace(make_policy(job=quota, **scopes), reservation_ms=1_000 * batches))
    rows, cost = [], []
    for name, (times, of) in zip(names, estimates, strict=True):
        for _ in range(batches * RATE // 10):
            cost.append(draw.randint(1, 20))
            rows.append((name, cost[-1] * times // of, len(cost) - 1))
    draw.shuffle(rows)
    service: Counter[str] = Counter()
    told: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for batch in range(batches):
        for row in played.batch([] if batch else rows, told.pop(batch, [])):
            service[row.namespace] += cost[row.identity]
            told[batch + told_after].append((row.identity, cost[row.identity]))
    assert len(set(played.state.queue.flow.tolist())) == competing
    return [service[name] / weight for name, weight in zip(names, weights, strict=True)], told_after


@pytest.mark.parametrize("seed", first_of(3, range(60)))
def test_those_that_compete_get_the_same_whatever_they_estimate(seed: int) -> None:
    """They are apart by what leaves for a third of its cost until that is told, and by what is open meanwhile."""
    service, told_after = true_service(seed, batches=60)
    for less, more in pairwise(sorted(service)):
        assert more - less <= 3 * RATE * (told_after + 1), service


def test_who_was_estimated_at_nothing_waits_until_others_had_as_much() -> None:
    """All of its rows leave at once, into a debt of the job. Then the other has its turn, as long."""
    played = Played(job(RATE, burst_seconds=1))
    free = [("a/n", 0, at) for at in range(200)]
    played.batch([*free[:100], *(("b/n", 10, 1_000 + at) for at in range(300))])
    assert not played.batch(free[100:], [(at, 10) for at in range(100)])
    left = [row.namespace for _ in range(24) for row in played.batch([])]
    assert left[:80] == ["b/n"] * 80


def test_units_that_did_not_count_are_not_given_back_in_the_order() -> None:
    """Rows count by their bytes, as which they go on to count, whatever units they were estimated at and cost."""
    for estimate, cost in ((100, 0), (0, 100)):
        quota = limit(bytes_per_second=1_000, units_per_second=1_000, burst_seconds=2)
        played = Played(make_policy(job=quota))
        rows = [(name, units, at) for at in range(200) for name, units in ((f"a/{at}", estimate), ("b/n", 0))]
        told, left = list[tuple[int, int]](), Counter[str]()
        for batch in range(15):
            went = played.batch([] if batch else rows, told, size_bytes=100)
            told = [(row.identity, cost) for row in went if row.namespace != "b/n"]
            left.update(row.namespace[0] for row in went)
        assert abs(left["a"] - left["b"]) <= 3, (estimate, cost, left)


def test_what_is_given_back_to_a_full_bucket_puts_nobody_ahead() -> None:
    """Who was estimated too high while alone does not make others wait for what the burst has no room for."""
    played = Played(replace(make_policy(job=limit(units_per_second=RATE, burst_seconds=2)), reservation_ms=1_000_000))
    told = []
    for at in range(100):
        told += [(row.identity, 0) for row in played.batch([("a/n", 95, at + 1)])]
    rows = [(name, 10, 1_000 + at) for at in range(100) for name in ("a/n", "b/n")]
    left = Counter(
        row.namespace for batch in range(4) for row in played.batch([] if batch else rows, [] if batch else told)
    )
    assert left["b/n"] >= left["a/n"] - 2 * RATE // 10 - 2


def test_what_many_rows_cost_more_together_counts_in_full() -> None:
    """Though no row counts more than `MOST_WORK`: 600 million units, and 160 seconds of 16 rows."""
    units = [np.array([each << TOKEN_BITS]) for each in (0, 0, AMOUNT, MILLISECOND)]
    first, job = np.zeros(1_000, dtype=np.int64), np.array([[-1, -1, 0]])
    tokens = CorrectedRows.of(Dimension.UNITS, first, first + 1, first, first + 600_000)
    assert corrected_work(tokens, first[:1], units, job) // AMOUNT == 600_000_000 - 1  # of a message each
    time = CorrectedRows.of(Dimension.TIME, first[:1], np.array([16]), np.array([20 * 10**9]), np.array([180 * 10**9]))
    assert corrected_work(time, first[:1], units, job) // MILLISECOND == 160_000
    one = CorrectedRows.of(Dimension.UNITS, first[:1], first[:1] + 1, np.array([2**36]), first[:1])
    assert corrected_work(one, first[:1], units, job) == 1 - MOST_WORK
