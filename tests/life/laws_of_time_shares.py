"""The laws of scopes that are short of processing time: it is divided by time, and none is kept from those that wait.

They are asked of scopes that limit nothing but time, of namespaces that no other quota can hold, and where each message
of a namespace takes the same time: then the prices by which the job divides are exact once it has seen a message of
each, and once the price of messages that have become cheaper has fallen. They begin anew where a policy, a price, the
run or the clock changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Final

from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.life.contract import Contract, Contracts, Key, Scope, text_of
from tests.life.gap import Gap
from tests.life.laws import Law, World
from tests.life.laws_of_fairness import Sizes

_REMEMBERED_MS: Final = 500_000
"""How long a price is surely remembered without a batch."""

_PLANNED_MS: Final = 3_000
"""How long before its batch an epoch may have been made."""

_DEAREST_NS: Final = 1 << 62
"""More than any message takes."""

_WEIGHTS: Final = 16
"""The most that the weights of all in a life's contest are together, where the least is 1."""

_PARTS: Final = 50
"""The part of what it was given by which a namespace may be off: prices are rounded."""


@dataclass(slots=True)
class _Prices:
    """The namespaces that only the time of one scope can hold, and the prices that the job has seen."""

    scopes: dict[str, Scope] = field(default_factory=dict)
    known_ns: dict[str, int] = field(default_factory=dict)
    settled: frozenset[str] = frozenset()
    """Those that were served at a known price: until then the job may owe them what a wrong estimate took."""

    asking: frozenset[str] = frozenset()
    elapsed_ms: int = 0
    most_ns: dict[str, int] = field(default_factory=dict)
    """By namespace, the highest price that its messages ever had: a checkpoint that is put back may bring it back."""

    _above_ns: dict[str, int] = field(default_factory=dict)
    """What the job may still take a message for, at most."""

    _seen_ms: dict[str, int] = field(default_factory=dict)
    _state: tuple[object, ...] = ()
    _at_ms: int = 0

    def begin(self, world: World, batch: SimulatedBatch) -> bool:
        """Take in who asks for something in a batch; return whether what was known of batches before still holds."""
        state = batch.revision, world.other_causes, world.job.is_sharing
        self.elapsed_ms = batch.steady_ms - self._at_ms if self._state else 0
        self._at_ms = batch.steady_ms
        holds, self._state = state == self._state and self.elapsed_ms <= _REMEMBERED_MS, state
        if not holds:
            self.known_ns.clear()
        self.asking = frozenset({*world.waited, *world.waiting, *(text_of(row.namespace) for row in batch.arrived)})
        self.scopes = _short_of_time(world.contracts(batch.revision), self.asking)
        if world.job.is_sharing or any(world.is_held_by_rule(name) or name in world.budgeted for name in self.asking):
            self.scopes = {}
        self.known_ns = {name: ns for name, ns in self.known_ns.items() if ns == self._price_ns(world, name)}
        self.settled &= self.known_ns.keys()
        return holds

    def unsettled(self, world: World) -> set[str]:
        """Return those that ask and whose messages take time, but for the settled."""
        return {
            name
            for name in self.asking - self.settled
            if self._price_ns(world, name) or self._above_ns.get(name, self.most_ns.get(name, 0))
        }

    def end(self, world: World, batch: SimulatedBatch) -> None:
        """Take in whose messages the job has seen."""
        served = frozenset(text_of(row.namespace) for row in batch.admitted)
        self.settled |= served & self.known_ns.keys()
        for name in served:
            price_ns = self._price_ns(world, name)
            before_ns = self._above_ns.get(name, self.most_ns.get(name, 0))
            fallen_ns = self._fallen_ns(name, before_ns, batch.steady_ms - self._seen_ms.get(name, batch.steady_ms))
            above_ns = max(price_ns, before_ns - fallen_ns)
            self._above_ns[name], self._seen_ms[name] = above_ns, batch.steady_ms
            self.most_ns[name] = max(self.most_ns.get(name, 0), price_ns)
            if name in self.scopes and 0 < price_ns == above_ns:
                self.known_ns[name] = price_ns

    def _fallen_ns(self, name: str, price_ns: int, passed_ms: int) -> int:
        """Return by how much a price has surely fallen: by half in its scope's window; here by a quarter."""
        time = self.scopes[name].time if name in self.scopes else None
        if time is None:
            return 0
        window_ms = max(1_000, time.burst // time.rate)
        return price_ns * min(passed_ms, window_ms) // (4 * window_ms)

    @staticmethod
    def _price_ns(world: World, name: str) -> int:
        return world.job.cost_ns([Row(0, name, 0)]).get(name, 0)


@dataclass(slots=True)
class _Pair:
    """Two that compete for time, since both are backlogged and the prices of both are known."""

    gap: Gap = field(default_factory=Gap)
    given_ns: tuple[Fraction, Fraction] = (Fraction(0), Fraction(0))
    """The time that each was given, for its weight."""


@dataclass(slots=True)
class TimeShares(Law):
    """Two that stay backlogged get as much time for their weight, to two messages of each and a fiftieth.

    Where somebody is guaranteed something, that goes first. Nor is anybody compared beside a third that asks and is
    not settled: a message that was taken for a thousand times its price leaves the third so far ahead that the others
    are owed more than all that they have waiting, and who is owed more than it asks for is owed no part by weight.
    Nor beside a third that has gone, if messages of its left before their price was known, until the others had as much
    time: it may owe them that.
    """

    _prices: _Prices = field(default_factory=_Prices)
    _pairs: dict[tuple[str, str], _Pair] = field(default_factory=dict)
    _sizes: Sizes = field(default_factory=Sizes)
    _misjudged_ns: dict[str, int] = field(default_factory=dict)
    """By namespace, the time of messages that left before their price was known, and that others did not have since."""

    name = "Time"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare every two that can be compared."""
        prices = self._prices
        if not prices.begin(world, batch):
            self._pairs.clear()
        contracts = world.contracts(batch.revision)
        self._sizes.note(batch.arrived)
        served = Counter(text_of(row.namespace) for row in batch.admitted)
        backlogged = world.waited.keys() & world.waiting.keys() & prices.settled & prices.scopes.keys()
        unsettled = {scope.key for name in prices.unsettled(world) for scope in contracts.of(name).timed}
        gone = [name for name, ns in self._misjudged_ns.items() if ns > 0 and name not in prices.asking]
        unsettled |= {scope.key for name in gone for scope in contracts.of(name).timed}
        kept = dict[tuple[str, str], _Pair]()
        for one, other in combinations(() if contracts.has_guarantees else sorted(backlogged), 2):
            key = prices.scopes[one].key
            weights = self._sizes.rivals(contracts, one, other)
            if key != prices.scopes[other].key or weights is None or key in unsettled:
                continue
            pair = kept[one, other] = self._pairs.get((one, other), _Pair())
            cost_ns = [prices.known_ns[name] for name in (one, other)]
            message_ns = [Fraction(each, weight) for each, weight in zip(cost_ns, weights, strict=True)]
            largest_ns = max(prices.known_ns.values())
            given_ns = served[one] * message_ns[0], served[other] * message_ns[1]
            pair.given_ns = pair.given_ns[0] + given_ns[0], pair.given_ns[1] + given_ns[1]
            apart_ns = pair.gap.add(given_ns[0] - given_ns[1])
            bound_ns = sum(message_ns) + max(pair.given_ns) / _PARTS
            bound_ns += sum(Fraction(largest_ns, weight) for weight in weights)
            if apart_ns > bound_ns:
                yield (
                    f"{one!r} and {other!r} ({', '.join(f'{float(each):g}' for each in message_ns)} ns a "
                    f"message and its weight) were short of the time of {key} for {pair.gap.batches} batches, and were "
                    f"given {float(apart_ns):g} ns more one than the other, not {float(bound_ns):g}"
                )
        self._pairs = kept
        took_ns = world.job.cost_ns(batch.admitted)
        others_ns = sum(ns for name, ns in took_ns.items() if name in prices.known_ns) // _WEIGHTS
        for name in gone:
            self._misjudged_ns[name] -= others_ns
        for name, ns in took_ns.items():
            self._misjudged_ns[name] = 0 if name in prices.known_ns else self._misjudged_ns.get(name, 0) + ns
        prices.end(world, batch)

    def forget(self) -> None:
        """Forget who was ahead, and which prices are known."""
        self._pairs.clear()
        self._misjudged_ns.clear()
        self._prices = _Prices(most_ns=self._prices.most_ns)


@dataclass(slots=True)
class Unspent(Law):
    """As many messages leave as waited, where the time that a scope surely has left pays for all of them.

    So no dear message holds up cheap ones for longer than its debt, which is all that was ever used at most.
    """

    _prices: _Prices = field(default_factory=_Prices)
    _least_ns: dict[Key, int] = field(default_factory=dict)
    """What each scope has left at least."""

    _used_ns: int = 0
    """What all messages took since the life began."""

    name = "Unspent"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Look for messages that wait for time that is there."""
        prices, contracts = self._prices, world.contracts(batch.revision)
        earned_ms = 0  # what was earned under another policy was cut to its burst
        if prices.begin(world, batch):
            earned_ms = prices.elapsed_ms
        else:
            self._least_ns.clear()
        took_ns, admitted = Counter[Key](), Counter[Key]()
        used_ns = world.job.cost_ns(batch.admitted)
        for name, each_ns in used_ns.items():
            took_ns.update({scope.key: each_ns for scope in contracts.of(name).timed})
        for row in batch.admitted:
            admitted.update(scope.key for scope in contracts.of(text_of(row.namespace)).timed)
        for scope in {scope.key: scope for scope in prices.scopes.values()}.values():
            assert scope.time is not None
            rate, burst_ns = scope.time.rate, scope.time.burst
            least_ns = min(self._least_ns.get(scope.key, -self._used_ns) + rate * earned_ms, burst_ns)
            waited = _waited(world, contracts, scope.key)
            cost_ns = sum(len(rows) * prices.known_ns.get(name, _DEAREST_NS) for name, rows in waited.items())
            count = sum(map(len, waited.values()))
            is_known = waited.keys() <= prices.scopes.keys()
            if is_known and cost_ns <= least_ns - rate * _PLANNED_MS and admitted[scope.key] < count - 1:
                yield (
                    f"{scope.key} had {least_ns} ns left at least, the {count} messages that waited take {cost_ns} ns, "
                    f"and {admitted[scope.key]} left"
                )
            self._least_ns[scope.key] = least_ns - took_ns[scope.key]
        self._used_ns += sum(used_ns.values())
        prices.end(world, batch)

    def forget(self) -> None:
        """Know nothing of what is left."""
        self._least_ns.clear()
        self._prices = _Prices(most_ns=self._prices.most_ns)


def _waited(world: World, contracts: Contracts, key: Key) -> Mapping[str, list[Row]]:
    """Return what waited before a batch of those that pass a scope."""
    return {
        name: rows
        for name, rows in world.waited.items()
        if any(scope.key == key for scope in contracts.of(name).scopes)
    }


def _short_of_time(contracts: Contracts, names: frozenset[str]) -> dict[str, Scope]:
    """Return, by namespace, the shared scope whose time is all that can hold it; nothing for those with any other."""
    found = {}
    for name in names:
        contract: Contract = contracts.of(name)
        if contract.has_rules or contract.enforced or contract.is_budgeted or len(contract.timed) != 1:
            continue
        (scope,) = contract.timed
        if scope.key[0] != "namespace" and scope.time is not None and scope.time.rate > 0:
            found[name] = scope
    return found
