"""The law of what is guaranteed: while rows of a scope are left behind, it has its rate, whatever the others do.

A scope's guarantee is compared where nothing but the scopes above it may hold its rows, and these owe no more than a
few messages: what they earn is enough for all who are guaranteed something (`policy.guarantees`), but not while they
repay a large message. In every window in which rows were left behind after each batch it has the guaranteed rate, in
one dimension at least, less two of the largest messages, and one for each other scope that is guaranteed something:
each of these may be ahead by one, at its cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.life.account import DIMENSIONS
from tests.life.contract import MICRO, Contract, Key, Scope, above_of, holds_ms, is_inside, text_of
from tests.life.laws import Law, World
from tests.life.laws_of_fairness import Sizes, served_in

_MOST_OWED: Final = 2
"""What scopes above may owe, in the largest messages."""

_MOST_WINDOWS: Final = 50


@dataclass(slots=True)
class Guarantee(Law):
    """L9: a scope has what it is guaranteed."""

    _lacks: dict[Key, list[list[int]]] = field(default_factory=dict)
    """For each window of each scope, by what it is behind its guarantee, by dimension."""

    _revision: str = ""
    _sizes: Sizes = field(default_factory=Sizes)
    name = "L9"
    is_put_back = True

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Add what was earned and what was served to each window."""
        self._sizes.note(batch.arrived)
        contracts = world.contracts(batch.revision)
        if batch.revision != self._revision:
            self._lacks.clear()
        is_first, self._revision = batch.revision != self._revision, batch.revision
        if is_first or world.is_sharing or not (guaranteed := contracts.guaranteed):
            self._lacks.clear()
            return
        served, names = served_in(batch), {*world.waiting, *(text_of(row.namespace) for row in batch.admitted)}
        ways = {name: contracts.of(name) for name in names}
        for scope in guaranteed:
            inside = [name for name, way in ways.items() if is_inside(scope, way, contracts)]
            behind = [name for name in inside if self._may_go(world, name, scope, ways[name])]
            if not behind:
                self._lacks.pop(scope.key, None)
                continue
            above = above_of(scope, ways[behind[0]])
            # Of what none of them limits nothing is guaranteed.
            rates = [rate if any(each.limits[d] for each in above) else None for d, rate in enumerate(scope.guaranteed)]
            if all(rate is None for rate in rates):
                continue
            passed_ms = min(world.passed_ms, *(holds_ms(each) for each in (scope, *above)))
            windows = [*self._lacks.get(scope.key, [])[-_MOST_WINDOWS:], [0, 0]]
            for d, rate in enumerate(rates):
                for lacks in windows:
                    lacks[d] += (rate or 0) * passed_ms - sum(served[name][d] for name in inside)
            self._lacks[scope.key] = windows
            if any(self._owes(world, each) for each in above):
                self._lacks.pop(scope.key)
                continue
            messages = 1 + len(guaranteed)
            for lacks in windows:
                said = [
                    (lack - messages * self._sizes.largest(d), d)
                    for d, lack in enumerate(lacks)
                    if rates[d] is not None
                ]
                if min(said)[0] > 0:
                    d = min(said)[1]
                    yield (
                        f"{scope.key} is behind what it is guaranteed by {lacks[d] / MICRO:g} {DIMENSIONS[d]}; "
                        f"{messages} of the largest are allowed"
                    )
                    break

    @staticmethod
    def _may_go(world: World, name: str, scope: Scope, way: Contract) -> bool:
        """Return whether rows of a namespace wait that nothing up to the scope itself may hold."""
        if name not in world.waiting or name not in world.waited or world.may_be_held(name) or way.timed:
            return False
        above = above_of(scope, way)
        return bool(above) and all(each in above for each in way.enforced)

    def _owes(self, world: World, scope: Scope) -> bool:
        """Return whether a scope may owe more than a few messages."""
        return any(
            world.account.shadows[scope.key, d].least < -_MOST_OWED * self._sizes.largest(d)
            for d, limit in enumerate(scope.limits)
            if limit is not None
        )

    def forget(self) -> None:
        """Forget who was behind."""
        self._lacks.clear()
        self._revision = ""
