"""The laws that compare namespaces: how far two equals come apart, and whether one starves while another is served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, permutations
from typing import Final, TypeAlias

from spark_throttle.testing.simulation.batch import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row, shard_of
from tests.life.account import DIMENSIONS, cost_of
from tests.life.contract import MICRO, Contract, Contracts, Key, Limit, Scope, text_of
from tests.life.gap import Gap
from tests.life.laws import Law, World

REMEMBERED_MS: Final = 2_000
"""How long it is remembered that a namespace lags in the resource of which it took less: its rows had another size, or
another policy did not limit it."""

Costs: TypeAlias = tuple[int, int]
"""Micro-tokens of messages and of bytes."""


@dataclass(slots=True)
class Sizes:
    """The largest row that each namespace ever offered."""

    shards: int
    _largest: dict[str, int] = field(default_factory=dict)

    def note(self, rows: Iterable[Row]) -> None:
        """Note rows that arrive."""
        for row in rows:
            name = text_of(row.namespace)
            self._largest[name] = max(self._largest.get(name, 0), row.size_bytes or 0)

    def message(self, name: str, dimension: int, *, alone: bool) -> int:
        """Return the cost of the largest message of a namespace, or, unless `alone`, of all that share its shard."""
        if dimension == 0:
            return MICRO
        shard = shard_in(name, self.shards)
        beside = [name] if alone else [mate for mate in self._largest if shard_in(mate, self.shards) == shard]
        return MICRO * max((self._largest.get(mate, 0) for mate in beside), default=0)


@dataclass(slots=True)
class _Pair:
    """Two that compete, since both are backlogged."""

    gap: Gap = field(default_factory=Gap)
    weights: tuple[int, int] = (1, 1)
    changes: Fraction = Fraction(0)
    """How much their own limits and weights have changed since; each change counts for 1 at most."""

    def reweigh(self, weights: tuple[int, int], bounds: tuple[Fraction, Fraction]) -> None:
        """Measure what was apart by other weights: as much of what they may be apart by these."""
        if weights != self.weights:
            factor = bounds[1] / bounds[0]
            gap = self.gap
            gap.ahead, gap.most, gap.least, gap.slack = (
                factor * value for value in (gap.ahead, gap.most, gap.least, gap.slack)
            )
            self.weights = weights


@dataclass(slots=True)
class Demand:
    """What namespaces ask for in a batch."""

    arrived: dict[str, list[Row]]
    waited: dict[str, list[Row]]

    def of(self, name: str, dimension: int) -> int:
        """Return what a namespace offers, or has waiting."""
        return _cost(self.arrived.get(name, ()), dimension) + _cost(self.waited.get(name, ()), dimension)

    def change(self, later: Demand, name: str, dimension: int) -> int:
        """Return by how much more, or less, of a namespace arrives in a later batch: the same was planned for."""
        return abs(_cost(later.arrived.get(name, ()), dimension) - _cost(self.arrived.get(name, ()), dimension))

    @property
    def names(self) -> set[str]:
        """Who asks for something."""
        return self.arrived.keys() | self.waited.keys()


class Fairness(Law):
    """L3: weighted service of two that stay backlogged in one domain differs by a message of each (a shard).

    One waits until its shard has repaid the last message of whoever shares the shard, and catches up after; so between
    shards, a message is the largest of the shard. Between shards the shares are right one batch after a change in
    demand (L4): what others asked for who came or went in a batch, or whose own limits changed, and by how much more or
    less of another came than before, may be missing on one side of two that live in different shards, but no more; nor
    is the batch in which they came themselves held against them (the first one in which their group lets anything pass,
    if the job waited for its share until then), nor one in which who is behind got all that was known to wait.

    A change of a policy costs two whose limits and weights it changes a message of each (a shard) at most, and of that
    only the part by which it changes them: a rate that is raised by a tenth costs a tenth. So many small changes cost
    no more than a few large ones, and one that does not concern them costs nothing.
    """

    name = "L3"
    is_by_shard = True
    is_put_back = True

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str, int], _Pair] = {}
        self._demand = Demand({}, {})
        self._contracts: Contracts | None = None
        self._sizes = Sizes(1)
        self._new: set[str] = set()
        """Those that wait for shared quotas, and whose groups have let nothing pass since they came."""

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare every two that can be compared."""
        contracts, shards = world.contracts(batch.revision), world.job.shards
        before, self._contracts = self._contracts or contracts, contracts
        self._sizes.shards = shards
        self._sizes.note(batch.arrived)
        served = served_in(batch)
        demand, last = Demand(by_name(batch.arrived), world.waited), self._demand
        self._demand = demand
        backlogged = [name for name in world.waited.keys() & world.waiting.keys() if not world.may_be_held(name)]
        came = {
            name for name in world.waiting.keys() - (world.waited.keys() - self._new) if not world.may_be_held(name)
        }
        served_domains = {contracts.of(name).domain for name in served}
        is_sharing = bool(world.job.leased())
        self._new = {name for name in came if is_sharing and contracts.of(name).domain not in served_domains}
        unknown = unknown_to_plan(world, before, contracts, demand, last)
        kept: dict[tuple[str, str, int], _Pair] = {}
        for one, other in combinations(sorted({*backlogged, *came}), 2):
            found = before.of(one), before.of(other), contracts.of(one), contracts.of(other)
            change = max(changed(found[0], found[2]), changed(found[1], found[3])) if before is not contracts else 0
            dimension = _compared(found[2], found[3])
            for d in (0, 1):
                pair = self._pairs.get((one, other, d))
                if pair is not None:
                    pair.changes += change
                    kept[one, other, d] = pair
            if dimension is None:
                continue
            weights = found[2].weight, found[3].weight
            is_together = shard_in(one, shards) == shard_in(other, shards)
            pair = kept.setdefault((one, other, dimension), _Pair(weights=weights))
            bounds = [self._bound(one, other, dimension, w, is_together=is_together) for w in (pair.weights, weights)]
            pair.reweigh(weights, (bounds[0], bounds[1]))
            difference = Fraction(served[one][dimension], weights[0]) - Fraction(served[other][dimension], weights[1])
            if one in came or other in came:
                pair.gap.slack += 0 if is_together else abs(difference)
                continue
            excused = Fraction(0)
            if not is_together:
                behind = one if difference < 0 else other
                # Who got all that was known to wait was held back by nothing but that.
                is_drained = served[behind][0] >= MICRO * len(world.waited[behind])
                excused = abs(difference) if is_drained else Fraction(
                    sum(cost[dimension] for name, cost in unknown.items() if name not in (one, other)), min(weights)
                )  # fmt: skip
            apart = pair.gap.add(difference, excused=excused)
            bound = bounds[1] * (1 + pair.changes)
            if apart > bound:
                where = "one shard" if is_together else f"{shards} shards"
                yield (
                    f"{one!r} and {other!r} (weights {weights}, {where}) were backlogged for {pair.gap.batches} "
                    f"batches and are {float(apart / MICRO):g} {DIMENSIONS[dimension]} apart; a message of each "
                    f"(a shard), and {float(pair.changes):g} for changes of their limits, are {float(bound / MICRO):g}"
                )
        self._pairs = kept

    def _bound(self, one: str, other: str, dimension: int, weights: tuple[int, int], *, is_together: bool) -> Fraction:
        message = Fraction(0)
        for name, weight in zip((one, other), weights, strict=True):
            message += Fraction(self._sizes.message(name, dimension, alone=is_together) or 1, weight)
        return message * (1 if is_together else self._sizes.shards)

    def forget(self) -> None:
        """Forget who was ahead."""
        self._pairs.clear()
        self._demand = Demand({}, {})
        self._contracts = None
        self._new.clear()


class Starvation(Law):
    """L4: of two that stay backlogged and are short of one scope alone, none starves while the other is served.

    They may be of different groups, of one and of none, or of two tenants: no namespace that may go waits for another
    for longer than a few messages of each (a shard), and what weights and rates of their scopes explain. How a scope
    is divided between groups is another question: one that gets a tenth of what is due to it does not starve.
    """

    name = "Starvation"
    is_by_shard = True
    _TURNS: Final = 3
    _LEAST_PART: Final = 10

    def __init__(self) -> None:
        self._behind: dict[tuple[str, str, Key], list[Fraction]] = {}
        self._contracts: Contracts | None = None
        self._sizes = Sizes(1)

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Count what everyone is served while another, who could go, is not."""
        contracts, shards = world.contracts(batch.revision), world.job.shards
        before, self._contracts = self._contracts or contracts, contracts
        self._sizes.shards = shards
        self._sizes.note(batch.arrived)
        served = served_in(batch)
        backlogged = sorted(name for name in world.waited.keys() & world.waiting.keys() if not world.may_be_held(name))
        message = {
            name: (shards * self._sizes.message(name, 0, alone=True), shards * self._sizes.message(name, 1, alone=True))
            for name in backlogged
        }
        # One whose other scopes have no more than a message left (a shard) was as good as stopped by them.
        has_tokens = {
            (name, scope.key): world.account.has_tokens(contracts, name, beside=scope.key, left=message[name])
            for name in backlogged
            for scope in contracts.of(name).enforced
            if scope.key[0] != "namespace"
        }
        kept: dict[tuple[str, str, Key], list[Fraction]] = {}
        for one, other in permutations(backlogged, 2):
            if served[one][0] >= MICRO * len(world.waited[one]):
                continue
            found = contracts.of(one), contracts.of(other)
            if before is not contracts and max(
                changed(before.of(name), now) for name, now in zip((one, other), found, strict=True)
            ) > Fraction(1, 2):  # fmt: skip
                continue
            for scope in found[0].enforced:
                at = one, other, scope.key
                if not (has_tokens.get((one, scope.key)) and has_tokens.get((other, scope.key))):
                    continue
                behind = kept[at] = self._behind.get(at, [Fraction(0), Fraction(0)])
                if self._is_starved(behind, scope, (one, other), found, served, shards):
                    more = ", ".join(f"{float(value / MICRO):g}" for value in behind)
                    yield (
                        f"{one!r} is short of {scope.key[0]} {scope.key[1]!r} alone and starves, while {other!r}, "
                        f"which is too, was served {more} messages and bytes "
                        f"more than {self._LEAST_PART} times as much"
                    )
        self._behind = kept

    def _is_starved(
        self,
        behind: list[Fraction],
        scope: Scope,
        names: tuple[str, str],
        found: tuple[Contract, Contract],
        served: dict[str, list[int]],
        shards: int,
    ) -> bool:
        """Add what one is behind another in a batch; return whether it is too much in all dimensions that count."""
        limited = {d for c in found for each in c.enforced for d in (0, 1) if each.limits[d] is not None}
        is_starved = True
        for d in limited:
            explained = _explained(scope, found[0], found[1], d)
            if explained is None:
                is_starved = False
                continue
            ahead = served[names[1]][d] - self._LEAST_PART * explained * served[names[0]][d]
            behind[d] = max(Fraction(0), behind[d] + ahead)
            message = sum(self._sizes.message(name, d, alone=False) for name in names)
            limit = scope.limits[d]
            # One whose sizes change catches up in the resource in which it lagged, as far as that is remembered.
            remembered = REMEMBERED_MS * limit.rate if limit and len(limited) == 2 else 0
            is_starved &= behind[d] > ((self._TURNS + shards) * message + remembered) * explained
        return is_starved

    def forget(self) -> None:
        """Forget who was behind."""
        self._behind.clear()
        self._contracts = None


def unknown_to_plan(
    world: World, before: Contracts, contracts: Contracts, demand: Demand, last: Demand
) -> dict[str, Costs]:
    """Return what was asked for by those of whom the plan of a batch could not know, or knew too much."""
    unknown: dict[str, Costs] = {}
    for name in demand.names | last.names:
        is_other = before is not contracts and before.of(name) != contracts.of(name)
        is_unsure = is_other or world.may_be_held(name)
        if name in demand.names and (name not in world.waited or is_unsure):
            unknown[name] = demand.of(name, 0), demand.of(name, 1)
        if name in last.names and (name not in world.waited or is_unsure):
            known = unknown.get(name, (0, 0))
            unknown[name] = max(known[0], last.of(name, 0)), max(known[1], last.of(name, 1))
        if name not in unknown:
            unknown[name] = last.change(demand, name, 0), last.change(demand, name, 1)
    return unknown


def served_in(batch: SimulatedBatch) -> dict[str, list[int]]:
    """Return what each namespace was served in a batch, in both dimensions."""
    served: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in batch.admitted:
        total = served[text_of(row.namespace)]
        total[0] += cost_of(row, 0)
        total[1] += cost_of(row, 1)
    return served


def by_name(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[text_of(row.namespace)].append(row)
    return dict(found)


def _cost(rows: Iterable[Row], dimension: int) -> int:
    return sum(cost_of(row, dimension) for row in rows)


def shard_in(name: str, shards: int) -> int:
    return shard_of(name.encode(errors="surrogateescape"), shards)


def _compared(one: Contract, other: Contract) -> int | None:
    """Return the dimension in which two namespaces compete as equals, or `None` if they do not."""
    if any(scope.key[0] == "namespace" for contract in (one, other) for scope in contract.enforced):
        return None
    if one.enforced != other.enforced or one.domain is None:
        return None
    limited = {d for scope in one.enforced for d, limit in enumerate(scope.limits) if limit is not None}
    return limited.pop() if len(limited) == 1 else None


def changed(before: Contract, after: Contract) -> Fraction:
    """Return by what part a policy changes what holds for a namespace: 1 is all of it."""
    if before.enforced == after.enforced:
        return _part(before.weight, after.weight)
    names = [[(scope.key, scope.on_excess) for scope in contract.enforced] for contract in (before, after)]
    if names[0] != names[1]:
        return Fraction(1)
    parts = [_part(before.weight, after.weight)]
    for old, new in zip(before.enforced, after.enforced, strict=True):
        parts.append(_part(old.weight, new.weight))
        parts += [_limit_part(*limits) for limits in zip(old.limits, new.limits, strict=True)]
    return max(parts)


def _limit_part(old: Limit | None, new: Limit | None) -> Fraction:
    if old is None or new is None:
        return Fraction(old != new)
    return max(_part(old.rate, new.rate), _part(old.burst, new.burst))


def _part(old: int, new: int) -> Fraction:
    return Fraction(0) if old == new else 1 - Fraction(min(old, new), max(old, new))


def _explained(scope: Scope, one: Contract, other: Contract, dimension: int) -> Fraction | None:
    """Return how many times as much one may be served as another, by their weights and rates; `None` if any."""
    ratio = Fraction(1)
    limits = []
    for contract in (one, other):
        beside = [each for each in contract.enforced if each.key != scope.key]
        limits.append(min((limit.rate for each in beside if (limit := each.limits[dimension])), default=None))
    short = scope.limits[dimension]
    if limits[0] is not None and limits[1] is not None:
        ratio *= max(Fraction(1), Fraction(limits[1], limits[0]))
    elif limits[0] is not None:
        if short is None:
            return None
        ratio *= max(Fraction(1), Fraction(short.rate, limits[0]))
    weights = [
        contract.weight * max((each.weight for each in contract.enforced if each.key != scope.key), default=1)
        for contract in (one, other)
    ]
    return ratio * max(Fraction(1), Fraction(weights[1], weights[0]))
