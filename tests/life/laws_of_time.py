"""The laws that speak of rates over time: the limit, work conservation, an end of batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from spark_throttle.testing.simulation.batch import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.life.account import DIMENSIONS
from tests.life.contract import MICRO, Contract, Contracts, text_of
from tests.life.laws import Law, World


class Limit(Law):
    """L2: in any window at most the integral of the rate in force, the largest burst, and a message (a shard)."""

    name = "L2"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Look for a shadow that is overdrawn by more than may be."""
        for (key, dimension), shadow in world.account.shadows.items():
            if not shadow.is_enforced or not shadow.was_used:
                continue
            level = key[0]
            overdrafts = shadow.overdraft.values()
            allowed = max(overdrafts, default=0) if level == "namespace" else sum(overdrafts)
            if shadow.most < -allowed:
                over, limit = (-shadow.most - allowed) / MICRO, shadow.limit
                yield (
                    f"{level} {key[1]!r} has admitted {over:g} {DIMENSIONS[dimension]} more than a rate of "
                    f"{limit.rate / 1000:g}/s, a burst of {limit.burst / MICRO:g} and a message (a shard) of "
                    f"{allowed / MICRO:g} allow"
                )


class WorkConservation(Law):
    """L4: a namespace whose scopes have tokens does not wait; batches end when nothing can leave, and not before.

    Where a scope limits both resources, and its flows live in several shards, it is estimated in which proportion each
    shard will take them. Some of one may stay with a shard that lacks the other: there, a namespace does not count as
    waiting while what it was served takes its time (`_Turns`). Nor does it wait while less than a message of its
    scope is left at the end of a batch: that scope is used in full.
    """

    name = "L4"
    _MOST_VAIN: Final = 3

    def __init__(self) -> None:
        self._passed_over: dict[str, int] = defaultdict(int)
        self._vain = 0
        self._revision = ""
        self._other_causes: object = 0
        self._turns = _Turns()

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Count how often a namespace was passed over, and batches that moved nothing."""
        self._turns.pass_time(world, batch.revision, at_ms=batch.steady_ms, admitted=batch.admitted)
        yield from self._waits(world, batch.revision)
        is_empty = not (batch.arrived or batch.admitted or batch.rejected)
        cause = batch.revision, (world.other_causes, *sorted(world.job.leased().items()))
        self._vain = self._vain + 1 if is_empty and cause == (self._revision, self._other_causes) else 0
        self._revision, self._other_causes = cause
        if self._vain > self._MOST_VAIN:
            yield f"{self._vain} batches in a row moved nothing, and {len(world.job.waiting)} rows wait"

    def after_idle(self, world: World) -> Iterator[str]:
        """Count the same, and ask when ``availableNow`` would end."""
        if not world.waiting or self._revision != world.job.revision:
            return
        self._turns.pass_time(world, self._revision, at_ms=world.job.steady_ms)
        yield from self._waits(world, self._revision)
        contracts, wait_ms = world.contracts(self._revision), world.job.wait_ms()
        may_leave = [name for name in world.waiting if _may_ever_leave(contracts, name)]
        has_age = contracts.document.queue.age_seconds is not None
        if wait_ms is None and (may_leave or has_age):
            yield f"availableNow would end, and rows of {may_leave} may leave"
        elif wait_ms is not None and not may_leave and not has_age:
            yield f"availableNow would wait {wait_ms} ms, and of {sorted(world.waiting)} nothing can ever leave"

    def _waits(self, world: World, revision: str) -> Iterator[str]:
        contracts = world.contracts(revision)
        passed_over = {
            name: self._passed_over[name] + 1
            for name in world.waiting
            if not world.may_be_held(name)
            and world.account.has_tokens(contracts, name)
            and (world.job.shards == 1 or world.account.leaves_message(contracts, name))
            and not (world.job.shards > 1 and self._turns.has(name))
        }
        self._passed_over = defaultdict(int, passed_over)
        for name, triggers in passed_over.items():
            if triggers > 3 + world.job.shards:
                yield f"{name!r} waits for {triggers} triggers, and all its scopes have tokens"

    def forget(self) -> None:
        """Forget the past."""
        self._passed_over.clear()
        self._vain = 0
        self._turns = _Turns()


class _Turns:
    """What namespaces were served by scopes that limit both resources, less what their parts have earned since then.

    A namespace's part is that of its weight among all namespaces that wait. A message that costs its scope five
    seconds is the turn of twenty for a namespace with three rivals.
    """

    def __init__(self) -> None:
        self._taken: dict[str, list[Fraction]] = {}
        self._at_ms = 0

    def has(self, name: str) -> bool:
        """Return whether what a namespace was served takes its time."""
        return any(self._taken.get(name, ()))

    def pass_time(self, world: World, revision: str, *, at_ms: int, admitted: Sequence[Row] = ()) -> None:
        """Count what was earned since the last call, and what is served at its end."""
        contracts, elapsed_ms, self._at_ms = world.contracts(revision), max(0, at_ms - self._at_ms), at_ms
        weights = sum(contracts.of(name).weight for name in world.waiting)
        for name, taken in self._taken.items():
            contract = contracts.of(name)
            part = Fraction(contract.weight, max(weights, contract.weight))
            rates = _least_rates(contract) or (0, 0)
            for d, rate in enumerate(rates):
                taken[d] = max(Fraction(0), taken[d] - rate * elapsed_ms * part)
        for row in admitted:
            taken = self._taken.setdefault(text_of(row.namespace), [Fraction(0), Fraction(0)])
            taken[0] += MICRO
            taken[1] += (row.size_bytes or 0) * MICRO
        self._taken = {name: taken for name, taken in self._taken.items() if _least_rates(contracts.of(name))}


def _least_rates(contract: Contract) -> tuple[int, int] | None:
    """Return the least rates, by messages and by bytes, of the scopes that limit both; `None` if there is none."""
    both = [
        (messages.rate, volume.rate)
        for messages, volume in (scope.limits for scope in contract.enforced)
        if messages is not None and volume is not None
    ]
    return (min(rate for rate, _ in both), min(rate for _, rate in both)) if both else None


def _may_ever_leave(contracts: Contracts, name: str) -> bool:
    return all(limit is None or limit.rate > 0 for scope in contracts.of(name).enforced for limit in scope.limits)
