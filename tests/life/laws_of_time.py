"""The laws that speak of rates over time: the limit, work conservation, an end of batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.life.account import DIMENSIONS
from tests.life.contract import MICRO, Contracts
from tests.life.laws import Law, World
from tests.life.laws_of_budgets import windows_of


class Limit(Law):
    """L2: in any window at most the integral of the rate in force, the largest burst, and a message."""

    name = "L2"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Look for a shadow that is overdrawn by more than may be."""
        for (key, dimension), shadow in world.account.shadows.items():
            if not shadow.is_enforced or not shadow.was_used:
                continue
            level = key[0]
            allowed = shadow.overdraft
            if shadow.most < -allowed:
                over, limit = (-shadow.most - allowed) / MICRO, shadow.limit
                yield (
                    f"{level} {key[1]!r} has admitted {over:g} {DIMENSIONS[dimension]} more than a rate of "
                    f"{limit.rate / 1000:g}/s, a burst of {limit.burst / MICRO:g} and a message of "
                    f"{allowed / MICRO:g} allow"
                )


_MOST_PASSED_OVER: Final = 1
"""In one trigger a balance may be negative by what the law cannot see, such as rounding to a millisecond."""


class WorkConservation(Law):
    """L4: a namespace whose scopes have tokens does not wait; batches end when nothing can leave, and not before."""

    name = "L4"
    _MOST_VAIN: Final = 3

    def __init__(self) -> None:
        self._passed_over: dict[str, int] = defaultdict(int)
        self._vain = 0
        self._revision = ""
        self._other_causes: object = 0

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Count how often a namespace was passed over, and batches that moved nothing."""
        yield from self._waits(world, batch.revision)
        is_empty = not (batch.arrived or batch.admitted or batch.rejected)
        causes = world.other_causes, windows_of(batch), *sorted(world.job.leased().items())
        cause = batch.revision, causes
        self._vain = self._vain + 1 if is_empty and cause == (self._revision, self._other_causes) else 0
        self._revision, self._other_causes = cause
        if self._vain > self._MOST_VAIN:
            yield f"{self._vain} batches in a row moved nothing, and {len(world.job.waiting)} rows wait"

    def after_idle(self, world: World) -> Iterator[str]:
        """Count the same, and ask when ``availableNow`` would end."""
        if not world.waiting or self._revision != world.job.revision:
            return
        yield from self._waits(world, self._revision)
        contracts, wait_ms = world.contracts(self._revision), world.job.wait_ms()
        may_leave = [name for name in world.waiting if _may_ever_leave(contracts, name)]
        has_age = contracts.document.queue.age_seconds is not None
        if wait_ms is None and (set(may_leave) - world.budgeted or has_age):
            yield f"availableNow would end, and rows of {may_leave} may leave"
        elif wait_ms is not None and not may_leave and not has_age:
            yield f"availableNow would wait {wait_ms} ms, and of {sorted(world.waiting)} nothing can ever leave"

    def _waits(self, world: World, revision: str) -> Iterator[str]:
        contracts = world.contracts(revision)
        passed_over = {
            name: self._passed_over[name] + 1
            for name in world.waiting
            if not world.may_be_held(name) and world.account.has_tokens(contracts, name)
        }
        self._passed_over = defaultdict(int, passed_over)
        for name, triggers in passed_over.items():
            if triggers > _MOST_PASSED_OVER:
                yield f"{name!r} waits for {triggers} triggers, and all its scopes have tokens"

    def forget(self) -> None:
        """Forget the past."""
        self._passed_over.clear()
        self._vain = 0


def _may_ever_leave(contracts: Contracts, name: str) -> bool:
    return all(limit is None or limit.rate > 0 for scope in contracts.of(name).enforced for limit in scope.limits)
