"""The law of quotas on processing time: while a scope surely is in debt, none of its rows passes.

What a batch's rows took is known only afterwards, so that a batch may take more than was left. But it is charged before
the next one is planned, whoever died meanwhile. A shadow is at least what the scope has left: it begins full, is paid
the better of the rates in force, and owes a window at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.life.contract import Contracts, Key, Limit, Scope, text_of
from tests.life.laws import Law, World


@dataclass(slots=True)
class _Left:
    """At least what a scope has left, in ns."""

    limit: Limit
    is_enforced: bool
    most: int


@dataclass(slots=True)
class Charges(Law):
    """A scope whose time is surely overdrawn lets nothing pass, whatever happened since it was charged."""

    _left: dict[Key, _Left] = field(default_factory=dict)
    _paid_at_ms: int = 0
    name = "Charges"
    is_put_back = True

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Look for rows that passed, and charge what they took."""
        contracts = world.contracts(batch.revision)
        names = {text_of(row.namespace) for row in batch.admitted}
        scopes = {scope.key: scope for name in names for scope in contracts.of(name).scopes}
        scopes |= {scope.key: scope for scope in contracts.shared}
        self._pay(world, contracts, scopes, batch.steady_ms)
        for key, took_ns in self._took(contracts, world.job.cost_ns(batch.admitted)).items():
            left = self._left.get(key)
            if left is None or (world.job.is_sharing and key[0] in ("tenant", "group")):
                continue
            if left.is_enforced and left.most < 0:
                yield f"{key} let rows of {took_ns} ns pass, although it owed at least {-left.most} ns"
            left.most = max(left.most - took_ns, min(-left.limit.burst, -1))

    def _pay(self, world: World, contracts: Contracts, scopes: Mapping[Key, Scope], at_ms: int) -> None:
        elapsed_ms, self._paid_at_ms = at_ms - self._paid_at_ms + world.beyond_ms, at_ms
        for key, left in list(self._left.items()):
            scope = scopes.get(key) or (_own(contracts, key) if key[0] == "namespace" else None)
            if scope is None or scope.time is None:
                del self._left[key]  # what has no quota starts full when it gets one
                continue
            most = left.most + max(left.limit.rate, scope.time.rate) * elapsed_ms
            if scope.is_asked and not left.is_enforced:
                most = scope.time.burst  # what it was overdrawn by while it observed may be forgiven
            most = max(most, -scope.time.burst)
            self._left[key] = _Left(scope.time, scope.is_asked, min(most, scope.time.burst))
        for key, scope in scopes.items():
            if scope.time is not None and key not in self._left:
                self._left[key] = _Left(scope.time, scope.is_asked, scope.time.burst)

    @staticmethod
    def _took(contracts: Contracts, cost_ns: Mapping[str, int]) -> dict[Key, int]:
        took: dict[Key, int] = defaultdict(int)
        for name, each_ns in cost_ns.items():
            for scope in contracts.of(name).scopes:
                took[scope.key] += each_ns
        return took

    def forget(self) -> None:
        """Know no more than that no scope has more than its burst."""
        self._left.clear()


def _own(contracts: Contracts, key: Key) -> Scope | None:
    return next((scope for scope in contracts.of(key[1]).scopes if scope.key == key), None)
