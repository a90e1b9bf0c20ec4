"""The laws that compare namespaces: how far two equals come apart, and whether one starves while another is served."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import permutations
from typing import Final, TypeAlias

from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.core.fair.fluid import Fluid, Path
from tests.life.account import DIMENSIONS, cost_of
from tests.life.contract import MICRO, Contract, Contracts, Key, Limit, Scope, text_of
from tests.life.laws import Law, World

NAMESPACE_BOUND: Final = 6
TENANT_BOUND: Final = 4
"""How far a namespace or a tenant may be behind its ideal, in the largest messages: two for each level above it."""

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


def way_of(name: str, contract: Contract) -> Path:
    """Return the way from the job to a namespace: its group, or its tenant where it has none, its tenant, itself."""
    tenant = name.partition("/")[0]
    group = next((f"group {scope.key[1]}" for scope in contract.scopes if scope.key[0] == "group"), f"tenant {tenant}")
    return group, tenant, name


def weights_on(way: Path, contract: Contract) -> dict[Path, int]:
    """Return the weights of the nodes on the way to a namespace."""
    weight = {scope.key[0]: scope.weight for scope in contract.scopes}
    of_tenant = weight.get("tenant", 1)
    return {way[:1]: weight.get("group", of_tenant), way[:2]: of_tenant, way: contract.weight}


def counted_by(name: str, contract: Contract) -> object:
    """Return all of a contract that says whose service is compared, and in what: not its rates."""
    limits = [(scope.key, [limit is None for limit in scope.limits]) for scope in contract.enforced]
    return limits, weights_on(way_of(name, contract), contract)


class Fairness(Law):
    """L3: what stays backlogged is behind its fluid ideal by a constant number of messages, a tenant as a namespace.

    It is asked where scopes limit one dimension and no time, and nobody is guaranteed anything. A scope with a limit
    passes what it did pass, so groups that have limits are compared by `Starvation` alone. What was behind when a
    policy changes may be behind once more.
    """

    name = "L3"
    is_put_back = True

    def __init__(self) -> None:
        self._fluid = Fluid({})
        self._served: dict[Path, float] = {}
        self._came: dict[Path, float] = {}
        self._contracts: Contracts | None = None
        self._sizes = Sizes()
        self._times = 1

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Give the fluid what was served, and compare."""
        contracts = world.contracts(batch.revision)
        before, self._contracts = self._contracts or contracts, contracts
        self._sizes.note(batch.arrived)
        refused = Counter(text_of(each.row.namespace) for each in batch.rejected if each.reason == "quota")
        names = {*world.waiting, *world.waited, *refused, *(text_of(row.namespace) for row in batch.admitted)}
        names |= {way[2] for way in self._came}
        found = {name: contracts.of(name) for name in names if contracts.of(name).scopes}
        limited = (
            set()
            if contracts.has_guarantees
            else {
                d for each in found.values() for scope in each.enforced for d in (0, 1) if scope.limits[d] is not None
            }
        )
        is_changed = any(counted_by(name, before.of(name)) != counted_by(name, each) for name, each in found.items())
        if is_changed or any(way[2] not in found for way in self._came):
            self._start(times=2)
        open_names = {name for name in found if not self._is_held(world, name, found[name])}
        backlogged = open_names & {*world.waiting, *refused}
        if len(limited) != 1 or not backlogged or any(each.timed for each in found.values()):
            self._start(times=self._times if limited and not backlogged else 1)
            return
        dimension = limited.pop()
        served, ways = served_in(batch), {name: way_of(name, each) for name, each in found.items()}
        for name, way in ways.items():
            self._served[way] = self._served.get(way, 0) + served[name][dimension]
            waits = sum(cost_of(row, dimension) for row in world.waiting.get(name, ()))
            waits += refused[name] * self._sizes.message(name, dimension)
            self._came[way] = self._served[way] + (waits if name in open_names else 0)
        self._fluid.weights = {
            node: weight for name, way in ways.items() for node, weight in weights_on(way, found[name]).items()
        }
        self._fluid.serve(self._came, self._served, dict.fromkeys(self._bounded(ways, found), 0.0))
        message = self._sizes.largest(dimension)
        for depth, most in ((2, TENANT_BOUND), (3, NAMESPACE_BOUND)):
            behind: dict[Path, float] = defaultdict(float)
            for way in self._came:
                behind[way[:depth]] += self._fluid.ideal[way] - self._served[way]
            for node in {ways[name][:depth] for name in backlogged}:
                if behind[node] > most * self._times * message + self._times:
                    yield (
                        f"{node[-1]!r} of {node[0]!r} is behind its ideal by {behind[node] / message:g} of the largest "
                        f"messages, counted in {DIMENSIONS[dimension]}; {most * self._times} are allowed"
                    )

    @staticmethod
    def _is_held(world: World, name: str, contract: Contract) -> bool:
        return world.may_be_held(name) or any(scope.key[0] == "namespace" for scope in contract.enforced)

    @staticmethod
    def _bounded(ways: Mapping[str, Path], found: Mapping[str, Contract]) -> set[Path]:
        """Return the nodes whose scope has a limit."""
        bounded: set[Path] = set()
        for name, way in ways.items():
            levels = {scope.key[0] for scope in found[name].enforced}
            bounded |= {way[:1]} if "group" in levels else set()
            bounded |= {way[:2]} if "tenant" in levels else set()
        return bounded

    def _start(self, *, times: int) -> None:
        """Begin anew."""
        self._fluid, self._served, self._came, self._times = Fluid({}), {}, {}, times

    def forget(self) -> None:
        """Forget who was ahead."""
        self._start(times=2)
        self._contracts = None


class Starvation(Law):
    """L4: of two that stay backlogged and are short of one scope alone, none starves while the other is served.

    They may be of different groups, of one and of none, or of two tenants: no namespace that may go waits for another
    for longer than a few messages of each, one of the largest a level, which goes early and delays the others, and
    what weights and rates of their scopes explain. How a scope is divided between groups is another question: one that
    gets a tenth of what is due to it does not starve.
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
            message = sum(_counted_in(d, scope, [self._sizes.message(name, e) for e in (0, 1)]) for name in names)
            largest = _counted_in(d, scope, [self._sizes.largest(e) for e in (0, 1)])
            allowed = (self._TURNS + 1) * message + self._LEVELS * largest
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
