"""Drawn histories of the fair tree: who comes, what is limited, what goes, and the referee that watches."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from spark_throttle.core.fair.contest import Scopes, Standing, decide, honoured
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.work import MESSAGE, Rows
from tests.core.fair.fluid import Fluid, Path

UNLIMITED = 1 << 50


@dataclass
class Bucket:
    """Tokens of two kinds; a rate of `None` is no limit."""

    rate: tuple[int | None, int | None]
    balance: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.balance = [UNLIMITED if rate is None else rate for rate in self.rate]

    def refill(self) -> None:
        self.balance = [
            UNLIMITED if rate is None else min(rate, had + rate)
            for rate, had in zip(self.rate, self.balance, strict=True)
        ]

    @property
    def is_open(self) -> bool:
        return min(self.balance) >= 0

    @property
    def room(self) -> list[int]:
        """The most tokens that may go before a row, -1 if none may; large if unlimited."""
        return [had if self.is_open or rate is None else -1 for rate, had in zip(self.rate, self.balance, strict=True)]


@dataclass
class World:
    """One job and its history."""

    weights: dict[Path, int]
    """Of every node; 1 by default."""

    buckets: dict[object, Bucket]
    """By scope: a path of a group or the job, ``("tenant", name)``, or a leaf's path."""

    bytes_a_message: int | None = None
    """Set where bytes count in the order: that many bytes are as much work as a message."""

    counts_messages: bool = True
    queues: dict[Path, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    standing: dict[Path, tuple[int, ...]] = field(default_factory=dict)
    came: dict[Path, float] = field(default_factory=lambda: defaultdict(float))
    served: dict[Path, float] = field(default_factory=lambda: defaultdict(float))
    went: dict[Path, int] = field(default_factory=lambda: defaultdict(int))
    """The work of all rows that went; of a namespace that `served` has forgotten, too."""

    born: dict[Path, int] = field(default_factory=dict)
    of_last_batch: object = None
    """Its weights and rates."""

    rounds: int = 0
    batches: int = 0

    def __post_init__(self) -> None:
        self.weights = defaultdict(lambda: 1, self.weights)
        self.fluid = Fluid(self.weights)
        self.eligible_work: dict[Path, float] = {}

    def offer(self, path: Path, sizes: list[int]) -> None:
        if not self.queues[path]:
            self.born[path] = self.batches
        self.queues[path].extend(sizes)

    def work(self, size: int) -> int:
        work = MESSAGE if self.counts_messages else 1
        return max(work, self.work_of_bytes(size)) if self.bytes_a_message else MESSAGE

    def work_of_bytes(self, size: int) -> int:
        return size * MESSAGE // self.bytes_a_message if self.bytes_a_message else UNLIMITED

    def _own(self, path: Path) -> int:
        """How many rows the namespace's own bucket lets pass."""
        bucket, queue = self.buckets.get(path), self.queues[path]
        if bucket is None:
            return len(queue)
        left, passing = list(bucket.balance), 0
        for size in queue:
            if min(left) < 0:
                break
            left, passing = [left[0] - 1, left[1] - size], passing + 1
        return passing

    def batch(self) -> dict[Path, list[int]]:
        """Decide a batch, and watch L2, L4 and held rows; return the sizes of the rows that go."""
        self.batches += 1
        for bucket in self.buckets.values():
            bucket.refill()
        own = {path: self._own(path) for path in sorted(self.queues) if self.queues[path]}
        room, before = {name: bucket.room for name, bucket in self.buckets.items()}, self.standing
        counts = self.decide(own)
        self.check_holds(before, own, counts)
        gone: dict[Path, list[int]] = {}
        for path, eligible in own.items():
            queue, count = self.queues[path], counts[path]
            works = [self.work(size) for size in queue]
            assert 0 <= count <= eligible
            self.came[path] = max(self.came[path], self.served[path] + sum(works[:eligible]))
            gone[path] = [queue.popleft() for _ in range(count)]
            self.served[path] += sum(works[:count])
            self.went[path] += sum(works[:count])
            for bucket in self.on_the_way(path, path):
                bucket.balance = [b - t for b, t in zip(bucket.balance, (count, sum(gone[path])), strict=True)]
            if count:
                self.born[path] = self.batches
        self.check_room(gone, room)
        self.check_use({path: eligible - counts[path] for path, eligible in own.items()})
        scopes_of = {path[:1]: path[:1] for path in self.came} | {path[:2]: ("tenant", path[1]) for path in self.came}
        more = {node: self.more(node, name) for node, name in scopes_of.items() if name in self.buckets}
        self.fluid.serve(self.came, self.served, more)
        for path in list(self.came):
            if not self.queues[path] and self.served[path] - self.fluid.ideal[path] < 1:
                del self.came[path], self.served[path]
                self.fluid.ideal.pop(path, None)
        return gone

    def change(self, weights: dict[Path, int], rates: dict[object, tuple[int | None, int | None]]) -> None:
        """Bring other weights and rates: the ideal begins anew, and with it what may go as far as own limits count."""
        self.weights.update(weights)
        for scope, rate in rates.items():
            self.buckets[scope].rate = rate
        self.fluid.ideal.update(self.served)
        self.came.update(self.served)

    def on_the_way(self, path: Path, *more: object) -> list[Bucket]:
        """Return the buckets of the job, the group and the tenant of a namespace, and of `more`."""
        return [self.buckets[name] for name in ((), path[:1], ("tenant", path[1]), *more) if name in self.buckets]

    def decide(self, own: dict[Path, int]) -> dict[Path, int]:
        """Return how many rows of each namespace go, of those that its own bucket lets pass."""
        known = {*own, *self.standing}
        paths: list[Path] = sorted(path for path in known if len(path) == 3)
        tenants: list[Path] = sorted({path[:2] for path in known if len(path) >= 2})
        children: list[Path] = sorted({path[:1] for path in known})
        if not paths:
            self.standing = {}
            return {}

        def level_of(level: Sequence[Path], above: Sequence[Path]) -> Level:
            at = {path: n for n, path in enumerate(above)}
            parent = np.array([at[p[:-1]] for p in level], dtype=np.int64)
            return Level.of(parent, len(above), np.array([self.weights[p] for p in level], dtype=np.int64))

        tree = Tree((level_of(paths, tenants), level_of(tenants, children), level_of(children, [()])))

        def told(level: Sequence[Path], at: int) -> np.ndarray:
            return np.array([self.standing.get(p, (0, 0, 0))[at] for p in level], dtype=np.int64)

        standing = Standing(
            (told(paths, 0), told(tenants, 0), told(children, 0)), told(tenants, 1), (told(paths, 1), told(paths, 2))
        )
        sizes = np.array([size for p in paths for size in self.queues[p]], dtype=np.int64)
        counts = np.array([len(self.queues[p]) for p in paths], dtype=np.int64)
        work = None if self.bytes_a_message is None else np.array([self.work(size) for size in sizes.tolist()])
        rows = Rows.of(np.cumsum(counts) - counts, np.append(0, np.cumsum(sizes)), work)
        at = {name: n for n, name in enumerate(self.buckets)}
        scopes = Scopes(
            np.array([at.get(("tenant", p[1]), -1) for p in tenants], dtype=np.int64),
            np.array([at.get(p, -1) for p in children], dtype=np.int64),
            np.array([at.get((), -1)], dtype=np.int64),
            np.array([bucket.room for bucket in self.buckets.values()], dtype=np.int64).reshape(len(at), 2).T,
        )
        tie = np.empty(len(paths), dtype=np.int64)
        tie[sorted(range(len(paths)), key=lambda n: (self.born.get(paths[n], 0), paths[n]))] = np.arange(len(paths))
        eligible = np.array([own.get(p, 0) for p in paths], dtype=np.int64)
        weights = {path: weight for path, weight in self.weights.items() if weight != 1}
        policy = weights, [bucket.rate for bucket in self.buckets.values()]
        if self.of_last_batch not in (None, policy):
            standing = honoured(tree, standing, rows, eligible)
        self.of_last_batch = policy
        outcome = decide(tree, standing, rows, eligible, scopes, tie)
        self.rounds, after = outcome.rounds, outcome.standing
        remembered: list[tuple[Any, ...]] = [
            *zip(paths, after.leads[0].tolist(), after.held[0].tolist(), after.held[1].tolist(), strict=True),
            *zip(tenants, after.leads[1].tolist(), after.tenant_leads.tolist(), strict=True),
            *zip(children, after.leads[2].tolist(), strict=True),
        ]
        self.standing = {path: tuple([*told, 0, 0][:3]) for path, *told in remembered if any(told)}
        return dict(zip(paths, outcome.count.tolist(), strict=True))

    def more(self, node: Path, name: object) -> float:
        """Return the least work of waiting rows below a node with which its tokens end."""
        bucket = self.buckets[name]
        if not bucket.is_open:
            return 0
        messages, size = bucket.balance
        works = sorted(self.work(s) for path, queue in self.queues.items() if path[: len(node)] == node for s in queue)
        return min(sum(works[: messages + 1]), max(self.work_of_bytes(size), *works[:1], 0))

    def check_room(self, gone: dict[Path, list[int]], room: dict[object, list[int]]) -> None:
        """L2: no scope gives more than it had, and one message."""
        for name, (messages, size_bytes) in room.items():
            took = [
                s for path, sizes in gone.items() if name in ((), path[:1], ("tenant", path[1]), path) for s in sizes
            ]
            if took:
                assert min(messages, size_bytes) >= 0, (name, took)
                assert len(took) <= messages + 1, (name, took, messages)
                assert sum(took) - max(took) <= size_bytes, (name, took, size_bytes)

    def check_use(self, left: dict[Path, int]) -> None:
        """L4: no eligible row is left all of whose scopes have a balance that is not negative."""
        for path, rows in left.items():
            assert not rows or not all(bucket.is_open for bucket in self.on_the_way(path)), (path, rows)

    def check_holds(self, before: dict[Path, tuple[int, ...]], own: dict[Path, int], counts: dict[Path, int]) -> None:
        """A node sends nothing before the row that it holds, and holds it until it goes.

        Unless a narrower scope refuses the row.
        """
        held: dict[Path, tuple[int, ...]] = {}
        held |= {path: told[1:] for path, told in before.items() if len(path) == 3 and any(told[1:])}
        sent: dict[Path, int] = defaultdict(int)
        for path, count in counts.items():
            sent[path[:1]] += count
            sent[path[:2]] += max(0, count - held.get(path, (0, 0))[1])  # a tenant has sent what its group holds
        for path, (by_tenant, by_child) in held.items():
            if ("tenant", path[1]) in self.buckets:
                continue
            for depth, row, is_held in (
                (1, 1, by_child and path[:1] not in self.buckets),
                (2, 1 + by_child, by_tenant),
            ):
                if is_held and counts.get(path, 0) < row <= own.get(path, 0):
                    assert not sent[path[:depth]], (path, depth)
                    # In a later round, a group may refuse a row that its node took over from the tenant's.
                    took_over = self.rounds > 1 and path[:1] in self.buckets
                    assert took_over or any(self.standing[path][3 - depth :]), (path, depth)

    def lags(self, depth: int = 3) -> dict[Path, float]:
        """Return how far every node is behind its ideal, in messages' work; negative where it is ahead."""
        lag: dict[Path, float] = defaultdict(float)
        for path in self.came:
            lag[path[:depth]] += (self.fluid.ideal[path] - self.served[path]) / MESSAGE
        return lag

    def waiting(self, depth: int = 3) -> set[Path]:
        """Return the nodes that have rows left."""
        return {path[:depth] for path in self.came if self.queues[path]}

    def lead_sums(self, depth: int) -> list[float]:
        """Return the sums of the leads of all siblings of a depth, in messages' work; a tenant's nodes are siblings."""
        sums: dict[Path, float] = defaultdict(float)
        for path, told in self.standing.items():
            if len(path) == depth:
                sums[path[:-1]] += told[0] / MESSAGE
                if depth == 2:
                    sums["tenant", path[1]] += told[1] / MESSAGE
        return list(sums.values())


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
            weights = {node: r.choice(palette) for node in list(world.weights) if r.random() < 0.5}
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


def judged(referees: list[Referee], seed: int, *, past: float = 0) -> None:
    """Judge a history; what was before a change may cost a node `past` rows."""
    for each in referees:
        assert each.behind <= ROWS_A_LEVEL * each.depth + past, seed
        assert each.ahead <= PROVED_ROWS_A_LEVEL * each.depth + past + 1e-9, seed
        assert each.in_a_window <= ROWS_A_LEVEL * (each.depth + 1) + past, seed
        assert each.lead_sum <= PROVED_ROWS_A_LEVEL, seed
