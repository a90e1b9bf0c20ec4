"""A world of the fair tree: what is limited, who waits, what goes, and what must hold of a batch."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
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
    last_weights: dict[Path, int] | None = None
    """Those of the last batch."""

    has_other_weights: bool = False
    """Whether weights changed before the last batch."""

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

    def works(self, sizes: Collection[int]) -> list[int]:
        of_size = {size: self.work(size) for size in set(sizes)}
        return [of_size[size] for size in sizes]

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
            works = self.works(queue)
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
        work = None if self.bytes_a_message is None else np.array(self.works(sizes.tolist()))
        rows = Rows.of(np.cumsum(counts) - counts, (np.append(0, np.cumsum(sizes)),), work)
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
        before = weights if self.last_weights is None else self.last_weights
        levels = {3 - len(path) for path in {*weights, *before} if weights.get(path, 1) != before.get(path, 1)}
        self.has_other_weights = bool(levels)
        if levels:
            standing = honoured(tree, standing, rows, eligible, sum(1 << level for level in levels))
        self.last_weights = weights
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
        works = sorted(
            self.works([s for path, queue in self.queues.items() if path[: len(node)] == node for s in queue])
        )
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

        Unless a narrower scope refuses the row; and under other weights, a tenant's node chooses anew what it holds
        behind a row that the child of the job holds.
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
                chooses_anew = self.has_other_weights and by_child and depth == 2
                if is_held and counts.get(path, 0) < row <= own.get(path, 0) and not chooses_anew:
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
