"""Drawn histories of the fair tree: who comes into a world, what is limited, and the referee that watches."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from spark_throttle.core.fair.work import MESSAGE
from tests.core.fair.fluid import Path
from tests.core.fair.worlds import Bucket, World


def drawn(  # noqa: PLR0912 - a draw each
    seed: int, kind: type[World] = World
) -> tuple[World, random.Random, list[Path], list[int]]:
    """Draw a world."""
    r = random.Random(seed)
    sizes = r.choice([[1], [1, 10], [1, 60], list(range(1, 1001, 37)), [1, 1000]])
    dims = r.choice(["messages", "bytes", "both"])
    big = sum(sizes) / len(sizes)
    rows = r.choice([3, 20, 100])

    def rate(part: float) -> tuple[int | None, int | None]:
        m, b = max(1, int(rows * part)), max(1, int(rows * part * big))
        return (m if dims != "bytes" else None, b if dims != "messages" else None)

    weights: dict[Path, int] = {}
    palette = r.choice([[1], [1, 2, 5], [1, 1000], [1, 10, 100, 1000]])
    groups = [f"g{i}" for i in range(r.choice([1, 1, 2, 4]))]
    paths: list[Path] = []
    for g in groups:
        weights[g,] = r.choice(palette)
        for t in range(r.choice([1, 2, 6])):
            weights[g, f"t{t}"] = r.choice(palette)
            for n in range(r.choice([1, 2, 8])):
                path: Path = (g, f"t{t}", f"n{n}")
                weights[path] = r.choice(palette)
                paths.append(path)
    buckets: dict[object, Bucket] = {}
    where = r.choice(["job", "groups", "both", "tenants", "all"])
    if where in {"job", "both", "all"}:
        buckets[()] = Bucket(rate(1))
    if where in {"groups", "both", "all"}:
        for g in groups:
            buckets[g,] = Bucket(rate(r.choice([0.3, 0.6, 1]) if where != "groups" else 1))
    if where in {"tenants", "all"}:
        for t in range(6):
            if r.random() < 0.5:
                buckets["tenant", f"t{t}"] = Bucket(rate(r.choice([0.1, 0.3])))
        if where == "tenants":
            for g in groups:
                buckets.setdefault((g,), Bucket(rate(1)))
    for path in paths:
        if r.random() < 0.15:
            buckets[path] = Bucket(rate(r.choice([0.05, 0.2])))
    if dims == "messages":
        world = kind(weights, buckets)
    else:
        world = kind(weights, buckets, max(1, int(big)) if dims == "both" else 1, dims == "both")
    return world, r, paths, sizes


def contended(seed: int) -> tuple[World, random.Random, list[Path], list[int]]:
    """Draw a world of many light flows, a heavy one, and rows of one byte beside rows of megabytes."""
    r = random.Random(seed)
    sizes = r.choice([[1], [1, 60], [1, 1000], [1, 8_000_000], [1] * 7 + [50], [3, 700]])
    dims = r.choice(["messages", "bytes", "both", "both"])
    big, rows, many = sum(sizes) / len(sizes), r.choice([1, 7, 40, 200]), r.choice([3, 10, 60])
    palette = r.choice([[1], [1, 1000], [1, 10, 100, 1000], list(range(1, 1000, 13))])
    shape, groups = r.choice(["wide", "deep"]), [f"g{n}" for n in range(r.choice([1, 3]))]
    heavy: Path = ("g0", "heavy", "n")
    paths: list[Path] = [heavy]
    for g in groups:
        for t in range(many if shape == "wide" else 3):
            paths += [(g, f"t{t}", f"n{n}") for n in range(r.choice([1, 2]) if shape == "wide" else many)]
    weights = {path[:depth]: r.choice(palette) for path in paths for depth in (1, 2, 3)}
    weights[heavy[:2]] = r.choice([1000, len(paths)])

    def bucket(part: float) -> Bucket:
        messages, size = max(1, int(rows * part)), max(1, int(rows * part * big * r.choice([1, 1, 0.1, 3])))
        return Bucket((messages if dims != "bytes" else None, size if dims != "messages" else None))

    where = r.choice(["job", "groups", "both", "all"])
    buckets: dict[object, Bucket] = {} if where == "groups" else {(): bucket(1)}
    if where != "job":
        buckets |= {(g,): bucket(r.choice([0.5, 1])) for g in groups}
    if where == "all":
        tenants = sorted({path[1] for path in paths})
        buckets |= {("tenant", t): bucket(r.choice([0.05, 0.2, 0.5])) for t in tenants if r.random() < 0.4}
    buckets |= {path: bucket(r.choice([0.05, 0.2])) for path in paths if r.random() < 0.1}
    if dims == "messages":
        return World(weights, buckets), r, paths, sizes
    return World(weights, buckets, max(1, int(big)) if dims == "both" else 1, dims == "both"), r, paths, sizes


@dataclass
class Referee:
    """The worst that nodes of one depth were apart from their ideal, in work of the largest row."""

    depth: int
    largest: float
    behind: float = 0.0
    """While a node waits."""

    ahead: float = 0.0
    in_a_window: float = 0.0
    """What a node fell behind over any window in which it waits."""

    lead_sum: float = 0.0
    """The sum of the leads of siblings, in any direction."""

    least: dict[Path, float] = field(default_factory=dict)

    def watch(self, world: World) -> None:
        lags = {path: lag / self.largest for path, lag in world.lags(self.depth).items()}
        waiting = world.waiting(self.depth)
        self.least = {path: min(self.least.get(path, 0.0), lag) for path, lag in lags.items() if path in waiting}
        self.behind = max([self.behind, *(lags[path] for path in waiting)])
        self.ahead = max([self.ahead, *(-lag for lag in lags.values())])
        self.in_a_window = max([self.in_a_window, *(lags[path] - least for path, least in self.least.items())])
        self.lead_sum = max([self.lead_sum, *(abs(each) / self.largest for each in world.lead_sums(self.depth))])


def referees_of(world: World, sizes: list[int]) -> list[Referee]:
    return [Referee(depth, max(world.work(size) for size in sizes) / MESSAGE) for depth in (1, 2, 3)]


@dataclass
class History:
    """A drawn world, and who comes into it."""

    world: World
    r: random.Random
    paths: list[Path]
    sizes: list[int]
    churn: int = 0
    """The number of names of each batch that never come again."""

    referees: list[Referee] = field(default_factory=list)

    def watched(self, batches: int, comes: Callable[[int], None]) -> list[Referee]:
        """Return what the referees of groups, tenants and namespaces see; `comes` offers the rows of a batch."""
        referees = self.referees = referees_of(self.world, self.sizes)
        for batch in range(batches):
            comes(batch)
            for n in range(self.churn):
                tenant = self.r.choice(["t0", f"x{batch}-{n}", "newt"])
                self.world.offer((self.r.choice(self.paths)[0], tenant, f"new{batch}-{n}"), [self.r.choice(self.sizes)])
            self.world.batch()
            for referee in referees:
                referee.watch(self.world)
        return referees


def lived(seed: int, batches: int, kind: type[World] = World) -> list[Referee]:
    """Return what the referees saw in a drawn history."""
    history = History(*drawn(seed, kind))
    world, r, sizes = history.world, history.r, history.sizes
    history.churn, lazy = r.choice([0, 0, 10, 30, 200 if seed % 16 == 0 else 5]), r.choice([0.2, 0.6, 1])

    def comes(_: int) -> None:
        for path in history.paths:
            if r.random() < lazy:
                world.offer(path, [r.choice(sizes) for _ in range(r.choice([0, 1, 2, 5, 20]))])

    return history.watched(batches, comes)


def repeated(seed: int, batches: int) -> list[Referee]:
    """Return what the referees saw where each namespace repeats a few sizes in one order, and no queue ends.

    Scopes may earn less in a batch than the largest row takes.
    """
    history = History(*drawn(seed))
    world, r, sizes = history.world, history.r, history.sizes
    order = {path: r.choices(sizes, k=r.choice([1, 2, 3, 5])) for path in history.paths}
    part = r.choice([0.03, 0.2, 1])
    for bucket in world.buckets.values():
        bucket.rate = scaled(bucket.rate, part)

    def comes(_: int) -> None:
        for path in history.paths:
            while len(world.queues[path]) < 200:
                world.offer(path, order[path])

    return history.watched(batches, comes)


def fought(seed: int, batches: int) -> list[Referee]:
    """Return what the referees saw where the heavy flow may come late, and which resource is short may alternate."""
    history = History(*contended(seed))
    world, r, paths, sizes = history.world, history.r, history.paths, history.sizes
    one_size = {path: [r.choice(sizes)] if r.random() < 0.5 else sizes for path in paths}
    lazy, history.churn, alternates, first = (
        r.choice([0.1, 0.5, 1]),
        r.choice([0, 0, 5, 50]),
        r.random() < 0.5,
        r.choice([0, 5]),
    )
    rates = {scope: bucket.rate for scope, bucket in world.buckets.items() if scope not in paths}

    def comes(batch: int) -> None:
        parts = r.choice([(1, 0.2), (0.2, 1), (3, 0.5)]) if alternates and batch % 2 else (1, 1)
        for scope, (messages, size) in rates.items():
            world.buckets[scope].rate = (
                None if messages is None else max(1, int(messages * parts[0])),
                None if size is None else max(1, int(size * parts[1])),
            )
        for path in paths:
            number = r.choice([0, 1, 2, 5, 20]) if r.random() < lazy else 0
            if path == paths[0]:
                number = 200 if batch >= first else 0
            world.offer(path, [r.choice(one_size[path]) for _ in range(number)])

    return history.watched(batches, comes)


def changed(seed: int, batches: int, kind: type[World] = World) -> list[Referee]:
    """Return what the referees saw where weights and rates change between batches; windows begin at a change."""
    history = History(*drawn(seed, kind))
    world, r, sizes = history.world, history.r, history.sizes
    history.churn, often = r.choice([0, 0, 5, 30]), r.choice([0.2, 0.5, 1])
    palette = r.choice([[1, 2, 5], [1, 1000], [1, 10, 100, 1000], list(range(1, 1001, 37))])
    rates = {scope: bucket.rate for scope, bucket in world.buckets.items()}

    def comes(batch: int) -> None:
        if batch and r.random() < often:
            weights = {node: r.choice(palette) for node in sorted(world.weights) if r.random() < 0.5}
            parts = {scope: r.choice([0.3, 1, 3]) for scope in rates}
            world.change(weights, {scope: scaled(rate, parts[scope]) for scope, rate in rates.items()})
            for referee in history.referees:
                referee.least.clear()
        for path in history.paths:
            world.offer(path, [r.choice(sizes) for _ in range(r.choice([0, 1, 2, 5, 20]))])

    return history.watched(batches, comes)


def scaled(rate: tuple[int | None, int | None], part: float) -> tuple[int | None, int | None]:
    messages, size_bytes = (None if each is None else max(1, int(each * part)) for each in rate)
    return messages, size_bytes


PROVED_ROWS_A_LEVEL = 2
"""Largest rows by which a node may be behind or ahead of its ideal, for itself and each node above it."""

ROWS_A_LEVEL = 1.5
"""No drawn history has a node further behind: what breaks the order goes beyond this soon."""


def judged(referees: list[Referee], seed: int, *, past: float = 0, kept_back: int = 0) -> None:
    """Judge a history.

    Parameters
    ----------
    past
        Rows that what was before a change may cost a node.
    kept_back
        Siblings that quotas of their own keep back. Who has none gets what they leave: each may be a row behind.
    """
    for each in referees:
        assert each.behind <= ROWS_A_LEVEL * each.depth + past, seed
        assert each.ahead <= PROVED_ROWS_A_LEVEL * each.depth + past + kept_back + 1e-9, seed
        assert each.in_a_window <= ROWS_A_LEVEL * (each.depth + 1) + past, seed
        assert each.lead_sum <= PROVED_ROWS_A_LEVEL + past, seed
