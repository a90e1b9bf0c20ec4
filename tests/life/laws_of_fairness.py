"""The laws that compare namespaces: how far two equals come apart, and whether one starves while another is served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations, permutations
from typing import Final, TypeAlias

from spark_throttle.testing.simulation.batch import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
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

    _largest: dict[str, int] = field(default_factory=dict)

    def note(self, rows: Iterable[Row]) -> None:
        """Note rows that arrive."""
        for row in rows:
            name = text_of(row.namespace)
            self._largest[name] = max(self._largest.get(name, 0), row.size_bytes or 0)

    def message(self, name: str, dimension: int) -> int:
        """Return the cost of the largest message of a namespace."""
        return MICRO if dimension == 0 else MICRO * self._largest.get(name, 0)


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
            gap.ahead, gap.most, gap.least = (factor * value for value in (gap.ahead, gap.most, gap.least))
            self.weights = weights


class Fairness(Law):
    """L3: weighted service of two that stay backlogged in one domain differs by a message of each.

    A change of a policy costs two whose limits and weights it changes a message of each at most, and of that
    only the part by which it changes them: a rate that is raised by a tenth costs a tenth. So many small changes cost
    no more than a few large ones, and one that does not concern them costs nothing.
    """

    name = "L3"
    is_put_back = True

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str, int], _Pair] = {}
        self._contracts: Contracts | None = None
        self._sizes = Sizes()

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare every two that can be compared."""
        contracts = world.contracts(batch.revision)
        before, self._contracts = self._contracts or contracts, contracts
        self._sizes.note(batch.arrived)
        served = served_in(batch)
        backlogged = [name for name in world.waited.keys() & world.waiting.keys() if not world.may_be_held(name)]
        came = {name for name in world.waiting.keys() - world.waited.keys() if not world.may_be_held(name)}
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
            pair = kept.setdefault((one, other, dimension), _Pair(weights=weights))
            bounds = [self._bound(one, other, dimension, w) for w in (pair.weights, weights)]
            pair.reweigh(weights, (bounds[0], bounds[1]))
            difference = Fraction(served[one][dimension], weights[0]) - Fraction(served[other][dimension], weights[1])
            if one in came or other in came:
                continue
            apart = pair.gap.add(difference)
            bound = bounds[1] * (1 + pair.changes)
            if apart > bound:
                yield (
                    f"{one!r} and {other!r} (weights {weights}) were backlogged for {pair.gap.batches} "
                    f"batches and are {float(apart / MICRO):g} {DIMENSIONS[dimension]} apart; a message of each, "
                    f"and {float(pair.changes):g} for changes of their limits, are {float(bound / MICRO):g}"
                )
        self._pairs = kept

    def _bound(self, one: str, other: str, dimension: int, weights: tuple[int, int]) -> Fraction:
        message = Fraction(0)
        for name, weight in zip((one, other), weights, strict=True):
            message += Fraction(self._sizes.message(name, dimension) or 1, weight)
        return message

    def forget(self) -> None:
        """Forget who was ahead."""
        self._pairs.clear()
        self._contracts = None


class Starvation(Law):
    """L4: of two that stay backlogged and are short of one scope alone, none starves while the other is served.

    They may be of different groups, of one and of none, or of two tenants: no namespace that may go waits for another
    for longer than a few messages of each, and what weights and rates of their scopes explain. How a scope
    is divided between groups is another question: one that gets a tenth of what is due to it does not starve.
    """

    name = "Starvation"
    _TURNS: Final = 3
    _LEAST_PART: Final = 10

    def __init__(self) -> None:
        self._behind: dict[tuple[str, str, Key], list[Fraction]] = {}
        self._contracts: Contracts | None = None
        self._sizes = Sizes()

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Count what everyone is served while another, who could go, is not."""
        contracts = world.contracts(batch.revision)
        before, self._contracts = self._contracts or contracts, contracts
        self._sizes.note(batch.arrived)
        served = served_in(batch)
        backlogged = sorted(name for name in world.waited.keys() & world.waiting.keys() if not world.may_be_held(name))
        message = {name: (self._sizes.message(name, 0), self._sizes.message(name, 1)) for name in backlogged}
        # One whose other scopes have no more than a message left was as good as stopped by them.
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
                if self._is_starved(behind, scope, (one, other), found, served):
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
            message = sum(self._sizes.message(name, d) for name in names)
            limit = scope.limits[d]
            # One whose sizes change catches up in the resource in which it lagged, as far as that is remembered.
            remembered = REMEMBERED_MS * limit.rate if limit and len(limited) == 2 else 0
            is_starved &= behind[d] > ((self._TURNS + 1) * message + remembered) * explained
        return is_starved

    def forget(self) -> None:
        """Forget who was behind."""
        self._behind.clear()
        self._contracts = None


def served_in(batch: SimulatedBatch) -> dict[str, list[int]]:
    """Return what each namespace was served in a batch, in both dimensions."""
    served: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in batch.admitted:
        total = served[text_of(row.namespace)]
        total[0] += cost_of(row, 0)
        total[1] += cost_of(row, 1)
    return served


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
