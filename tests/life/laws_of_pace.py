"""L3 where a scope limits messages and bytes: two equals are served at one pace, counted in time.

A namespace's service is the time in which its scope earns what the namespace was served, in the resource that takes
longer. So a namespace of small messages and one of large messages can be compared, whichever resource each of them is
short of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Final

from spark_throttle.testing.simulation.batch import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.life.contract import MICRO, Contract, Contracts, Limit, text_of
from tests.life.gap import Gap
from tests.life.laws import Law, World
from tests.life.laws_of_fairness import (
    REMEMBERED_MS,
    Costs,
    Demand,
    Sizes,
    by_name,
    served_in,
    shard_in,
    unknown_to_plan,
)

Limits = tuple[Limit, Limit]


@dataclass(slots=True)
class _Pair:
    """Two that compete under one policy, since both are backlogged."""

    sizes: tuple[int, int]
    """The one size that each one's rows have."""

    served: tuple[list[int], list[int]] = field(default_factory=lambda: ([0, 0], [0, 0]))
    """What each was served, in messages and in bytes, in micro-tokens."""

    gap: Gap = field(default_factory=Gap)
    uneven: Fraction = Fraction(0)
    """The largest part of the flows of either shard whose rows were of more than one size."""


class Pace(Law):
    """L3 in time: as `Fairness`, in a scope that limits both resources and is the only one that either passes.

    Where the flows live in several shards, the mixture in which those of each will be served is estimated from all
    that waits: two may come apart by another twentieth of their service. A flow whose first rows are of other sizes
    than its last ones is estimated wrong until they leave: its shard may lose that flow's part, or get it twice.
    Only namespaces whose rows are all of one size are compared: for others, the resource that takes longer depends on
    the span of time that is asked about.
    """

    name = "Pace"
    is_by_shard = True
    is_put_back = True
    _ESTIMATED: Final = Fraction(1, 20)

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._demand = Demand({}, {})
        self._contracts: Contracts | None = None
        self._sizes = Sizes(1)
        self._seen: dict[str, set[object]] = defaultdict(set)
        """Of every namespace: the sizes of its rows, and the scopes that they passed while they waited."""

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare every two that compete in such a scope."""
        contracts, shards = world.contracts(batch.revision), world.job.shards
        before, self._contracts = self._contracts or contracts, contracts
        self._sizes.shards = shards
        self._sizes.note(batch.arrived)
        for row in batch.arrived:
            self._seen[text_of(row.namespace)].add(row.size_bytes)
        for name in world.waiting:
            self._seen[name].add(contracts.of(name).enforced)
        served = defaultdict(lambda: [0, 0], served_in(batch))
        demand, last = Demand(by_name(batch.arrived), world.waited), self._demand
        self._demand = demand
        backlogged = [name for name in world.waited.keys() & world.waiting.keys() if not world.may_be_held(name)]
        unknown = unknown_to_plan(world, before, contracts, demand, last)
        uneven = _uneven_in(world)
        kept: dict[tuple[str, str], _Pair] = {}
        for names in combinations(sorted(backlogged), 2):
            found = contracts.of(names[0]), contracts.of(names[1])
            limits = _limits_of(*found)
            if limits is None or found != (before.of(names[0]), before.of(names[1])):
                continue
            sizes = _size_of(world.waited[names[0]]), _size_of(world.waited[names[1]])
            if sizes[0] is None or sizes[1] is None:
                continue
            pair = self._pairs.get(names)
            if pair is None or pair.sizes != sizes:
                pair = _Pair((sizes[0], sizes[1]))
            kept[names] = pair
            for total, name in zip(pair.served, names, strict=True):
                total[0] += served[name][0]
                total[1] += served[name][1]
            weights = found[0].weight, found[1].weight
            times = [_time_of(total, limits) / weight for total, weight in zip(pair.served, weights, strict=True)]
            difference = times[0] - times[1] - pair.gap.ahead
            shards_of = {shard_in(name, shards) for name in names}
            excused = Fraction(0)
            if len(shards_of) == 2:
                behind = names[0] if difference < 0 else names[1]
                is_drained = len(world.waited[behind]) * MICRO <= served[behind][0]
                others = [cost for name, cost in unknown.items() if name not in names]
                excused = abs(difference) if is_drained else _sum_of(others, limits) / min(weights)
            apart = pair.gap.add(difference, excused=excused)
            bound = self._bound(names, weights, limits, is_together=len(shards_of) == 1)
            pair.uneven = max(pair.uneven, *(uneven[shard] for shard in shards_of))
            bound += 0 if shards == 1 else max(self._ESTIMATED, pair.uneven) * max(times)
            bound += sum(REMEMBERED_MS for name in names if len(self._seen[name]) > 2)
            if apart > bound:
                where = "one shard" if len(shards_of) == 1 else f"{shards} shards"
                yield (
                    f"{names[0]!r} and {names[1]!r} (weights {weights}, {where}) were backlogged for "
                    f"{pair.gap.batches} batches, were served {float(times[0]):g} and {float(times[1]):g} ms of their "
                    f"group, and are {float(apart):g} ms apart; {float(bound):g} are allowed"
                )
        self._pairs = kept

    def _bound(
        self, names: tuple[str, str], weights: tuple[int, int], limits: Limits, *, is_together: bool
    ) -> Fraction:
        """Return the time of a message of each, a shard."""
        bound = Fraction(0)
        for name, weight in zip(names, weights, strict=True):
            message = [self._sizes.message(name, d, alone=is_together) for d in (0, 1)]
            bound += _time_of(message, limits) / weight
        return bound * (1 if is_together else self._sizes.shards)

    def forget(self) -> None:
        """Forget who was ahead."""
        self._pairs.clear()
        self._demand = Demand({}, {})
        self._contracts = None


def _limits_of(one: Contract, other: Contract) -> Limits | None:
    """Return both limits of the only scope in which two compete, or `None` if it is another case."""
    if one.enforced != other.enforced or len(one.enforced) != 1 or one.domain is None:
        return None
    messages, volume = one.enforced[0].limits
    if messages is None or volume is None or not messages.rate or not volume.rate:
        return None
    return messages, volume


def _size_of(rows: Sequence[Row]) -> int | None:
    """Return the size that all rows have, or `None`."""
    sizes = {row.size_bytes for row in rows}
    return sizes.pop() if len(sizes) == 1 else None


def _uneven_in(world: World) -> dict[int, Fraction]:
    """Return of every shard which part of its flows have rows of more than one size."""
    flows: dict[int, list[bool]] = defaultdict(list)
    for name, rows in world.waited.items():
        flows[shard_in(name, world.job.shards)].append(_size_of(rows) is None)
    return {shard: Fraction(sum(uneven), len(uneven)) for shard, uneven in flows.items()}


def _time_of(tokens: Sequence[int], limits: Limits) -> Fraction:
    """Return the milliseconds in which a scope earns messages and bytes."""
    return max(Fraction(tokens[0], limits[0].rate), Fraction(tokens[1], limits[1].rate))


def _sum_of(costs: list[Costs], limits: Limits) -> Fraction:
    return sum((_time_of(cost, limits) for cost in costs), start=Fraction(0))
