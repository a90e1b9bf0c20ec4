"""Drawn histories in which scopes run short of two resources at once, or tenants of tokens for several groups."""

from __future__ import annotations

import random
from collections import defaultdict

from spark_throttle.core.fair.work import MESSAGE
from tests.core.fair.fluid import Fluid, Path
from tests.core.fair.histories import ROWS_A_LEVEL, History, Referee
from tests.core.fair.worlds import Bucket, World

TENANTS = 30
"""The most tenants of a world, each of which may have a quota of its own."""


def crossed(seed: int, batches: int) -> list[Referee]:
    """Return what the referees saw where scopes are short of messages for light flows, and of bytes for heavy ones.

    Light flows have small rows, heavy ones large rows. So tokens often end at no amount, and a batch has more rounds.
    Work is counted in the proportion of the widest scope (`fair.work`): the narrower ones have others.
    """
    r = random.Random(seed)
    groups = [f"g{n}" for n in range(r.choice([1, 1, 2, 3]))]
    tenants, names = r.choice([(TENANTS, 1), (8, 3), (3, 12)])
    light: list[Path] = [(g, f"t{t}", f"n{n}") for g in groups for t in range(tenants) for n in range(names)]
    heavy: list[Path] = [(g, r.choice(["heavy", "t0"]), f"h{n}") for g in groups for n in range(r.choice([1, 1, 3]))]
    weights: dict[Path, int] = {(g,): r.choice([1, 1, 10]) for g in groups}
    for path in heavy:
        weights[path[:2]] = weights[path] = r.choice([1, 10, len(light), 1000])
    large, most = r.choice([20, 100]), r.choice([2, 5, 20])
    rows = r.choice([0.5, 1, 2]) * len(light)

    def bucket(part: float) -> Bucket:
        messages = max(1, int(rows * part))
        return Bucket((messages, messages * r.choice([1, 1, 3, large])))

    where = r.choice(["job", "groups", "both", "tenants", "all"])
    buckets: dict[object, Bucket] = {(): bucket(3)} if where in {"job", "both", "all"} else {}
    if where in {"groups", "both", "all"}:
        buckets |= {(g,): bucket(r.choice([1, 2])) for g in groups}
    if where in {"tenants", "all"}:
        for t in sorted({path[1] for path in light + heavy}):
            if r.random() < 0.6:
                buckets["tenant", t] = bucket(r.choice([0.3, 1]) / (1 if t == "heavy" else tenants))
    buckets |= {path: Bucket((r.choice([1, 3]), None)) for path in light if r.random() < 0.1}
    widest: list[object] = [()] if () in buckets else [(g,) for g in groups if (g,) in buckets]
    rates = [buckets[scope].rate for scope in widest]
    bytes_a_message = min((size // number for number, size in rates if number and size), default=large)
    buckets |= {
        scope: Bucket((number, (number or 0) * bytes_a_message))
        for scope, (number, _) in zip(widest, rates, strict=True)
    }
    world = World(weights, buckets, bytes_a_message)
    history, first = History(world, r, light + heavy, [1, large]), r.choice([0, 2])

    def comes(batch: int) -> None:
        for path in light:
            history.world.offer(path, [1] * r.choice([0, 1, most]))
        for path in heavy:
            history.world.offer(path, [large] * (20 if batch >= first else 0))

    return history.watched(batches, comes)


def spread(seed: int, batches: int) -> None:
    """Judge what a tenant's nodes in several groups get where groups and the job pass more than its tokens do.

    Then its nodes share them as children of one parent, whatever else is short.
    """
    r = random.Random(seed)
    groups, names = [f"g{n}" for n in range(r.choice([2, 2, 3]))], r.choice([1, 2, 5])
    rates = {f"t{n}": r.choice([1, 2, 7]) for n in range(r.choice([1, 2, 4]))}
    where, has_bytes = r.choice(["tenants", "groups", "job", "both"]), r.random() < 0.5
    sizes = r.choice([[1], [1, 10], [1, 100]])
    big, each = max(sizes), max(rates.values()) + 2

    def bucket(messages: int) -> Bucket:
        return Bucket((messages, messages * big if has_bytes else None))

    paths: list[Path] = [(g, t, f"n{n}") for g in groups for t in rates for n in range(r.choice([1, names]))]
    weights: dict[Path, int] = {path: r.choice([1, 1, 3]) for path in paths}
    buckets: dict[object, Bucket] = {("tenant", t): bucket(rate) for t, rate in rates.items()}
    whole = each * (len(rates) + 1)
    if where in {"groups", "both"}:
        buckets |= {(g,): bucket(whole) for g in groups}
    if where in {"job", "both"}:
        buckets[()] = bucket(whole * len(groups) - (2 if where == "both" else 0))
    world = World(weights, buckets, big if has_bytes else None)
    free: list[Path] = [(g, "free", f"n{n}") for g in groups for n in range(r.choice([1, 30]))]
    largest = max(map(world.work, sizes))
    size_of, often = {path: r.choice(sizes) for path in paths}, r.choice([0.5, 1, 1])
    fluids = {t: Fluid(defaultdict(lambda: 1, {within(p): weights[p] for p in paths if p[1] == t})) for t in rates}
    for _ in range(batches):
        for path in paths:
            if r.random() < often and len(world.queues[path]) < 60:
                number = 2 + 3 * rates[path[1]]
                world.offer(path, [size_of[path] if r.random() < 0.9 else r.choice(sizes) for _ in range(number)])
        for path in free:
            if len(world.queues[path]) < 3 * whole:
                world.offer(path, [1] * whole)
        world.batch()
        for t, fluid in fluids.items():
            mine = [path for path in paths if path[1] == t]
            served = {within(path): float(world.went[path]) for path in mine}
            came = {within(path): world.went[path] + sum(map(world.work, world.queues[path])) for path in mine}
            fluid.serve(came, served, {})
            for depth in (1, 2):
                lags: dict[Path, float] = defaultdict(float)
                for path, had in served.items():
                    lags[path[:depth]] += (fluid.ideal[path] - had) / largest
                assert max(map(abs, lags.values())) <= ROWS_A_LEVEL * depth, (seed, t, lags)
        assert max(map(abs, world.lead_sums(2)), default=0) <= ROWS_A_LEVEL * largest / MESSAGE, seed


def within(path: Path) -> Path:
    """Return the path of a leaf below its tenant, whose children are its nodes in groups."""
    return path[:1] + path[2:]
