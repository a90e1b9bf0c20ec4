"""The laws that compare namespaces: how far two equals come apart, and whether one starves while another is served."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations
from typing import Final, TypeAlias

from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.audit.ideal import Ideal, way_of, weights_on
from tests.life.account import cost_of
from tests.life.contract import MICRO, Contract, Contracts, Key, Limit, Scope, text_of
from tests.life.laws import Law, World

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

    def largest(self, dimension: int) -> int:
        """Return the cost of the largest message of all."""
        return MICRO if dimension == 0 else MICRO * max(1, *self._largest.values(), 1)

    def rivals(self, contracts: Contracts, one: str, other: str) -> tuple[int, int] | None:
        """Return the `rival_weights` of two, among all who ever came."""
        return rival_weights(contracts, list(self._largest), one, other)


def rival_weights(contracts: Contracts, names: Sequence[str], one: str, other: str) -> tuple[int, int] | None:
    """Return the weights by which two namespaces compete, or `None` if others count in their places.

    They are namespaces of one tenant, or each is the only one that its tenant has in their group.
    """
    ways = [way_of(name, contracts.of(name)) for name in (one, other)]
    if ways[0][:2] == ways[1][:2]:
        return contracts.of(one).weight, contracts.of(other).weight
    if ways[0][0] != ways[1][0]:
        return None
    places = [way_of(name, contracts.of(name))[:2] for name in names]
    if any(places.count(way[:2]) > 1 for way in ways):
        return None
    first, second = (weights_on(way, contracts.of(way[2]))[way[:2]] for way in ways)
    return first, second


class Fairness(Law):
    """L3: what stays backlogged is behind its fluid ideal by a constant number of messages: the auditor's own law.

    Groups that have limits are compared by `Starvation` alone.
    """

    name = "L3"
    is_put_back = True

    def __init__(self) -> None:
        self._ideal = Ideal()
        self._sizes = Sizes()

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Pour what was served into the fluid, and compare."""
        self._sizes.note(batch.arrived)
        wanted: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for name, rows in world.waiting.items():
            wanted[name] = [sum(cost_of(row, d) for row in rows) for d in (0, 1)]
        for letter in batch.rejected:
            if letter.reason == "quota":
                name = text_of(letter.row.namespace)
                wanted[name] = [wanted[name][d] + self._sizes.message(name, d) for d in (0, 1)]
        held = {name for name in {*wanted, *world.waited} if world.may_be_held(name)}
        served = served_in(batch)
        for name, more in world.recounts.of_batch.items():
            served[name][1] += more
        # When costs are told, who cost more than estimated is ahead by all of that at once; who cost less is behind.
        largest = self._sizes.largest(0), max(self._sizes.largest(1), world.recounts.at_once)
        contracts = world.contracts(batch.revision)
        for behind in self._ideal.behind(contracts, served, wanted, held, largest):
            if behind.is_too_far:
                yield str(behind)

    def forget(self) -> None:
        """Forget who was ahead."""
        self._ideal.forget()


class Starvation(Law):
    """L4: of two that stay backlogged and are short of one scope alone, none starves while the other is served.

    They may be of different groups, of one and of none, or of two tenants: no namespace that may go waits for another
    for longer than a few messages of each, one of the largest a level, which goes early and delays the others, and
    what weights and rates of their scopes explain. How a scope is divided between groups is another question: one that
    gets a tenth of what is due to it does not starve. That rows cost more than estimated explains that their namespace
    waits, and that they cost less that it is served.
    """

    name = "Starvation"
    _TURNS: Final = 3
    _LEVELS: Final = 3
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
        served, recounted = served_in(batch), world.recounts.of_batch
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
        for one, other in permutations(() if contracts.has_guarantees else backlogged, 2):
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
                told = max(recounted.get(one, 0), 0), min(recounted.get(other, 0), 0)
                counted = {name: [served[name][0], served[name][1] + more]
                           for name, more in zip((one, other), told, strict=True)}  # fmt: skip
                if self._is_starved(behind, scope, (one, other), found, counted, world.recounts.at_once):
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
        recounted: int,
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
            message = sum(_counted_in(d, scope, [self._sizes.message(name, e) for e in (0, 1)]) for name in names)
            largest = _counted_in(d, scope, [self._sizes.largest(e) for e in (0, 1)])
            allowed = (self._TURNS + 1) * message + self._LEVELS * largest + (recounted if d else 0)
            is_starved &= behind[d] > allowed * explained
        return is_starved

    def forget(self) -> None:
        """Forget who was behind."""
        self._behind.clear()
        self._contracts = None


def _counted_in(d: int, scope: Scope, takes: Sequence[int]) -> Fraction:
    """Return what a message takes of a dimension: as much as the scope earns in the time that it takes of any."""
    limits = {e: limit.rate for e, limit in enumerate(scope.limits[:2]) if limit is not None and limit.rate}
    if d not in limits:
        return Fraction(takes[d])
    return max(takes[e] * Fraction(limits[d], rate) for e, rate in limits.items())


def served_in(batch: SimulatedBatch) -> dict[str, list[int]]:
    """Return what each namespace was served in a batch, in both dimensions."""
    served: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for row in batch.admitted:
        total = served[text_of(row.namespace)]
        total[0] += cost_of(row, 0)
        total[1] += cost_of(row, 1)
    return served


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
