"""The laws that speak of rates over time: the limit, fairness, work conservation, no starvation, an end of batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain, combinations
from typing import Final

from spark_throttle.testing.simulated_batch import SimulatedBatch
from spark_throttle.testing.simulated_rows import Row, shard_of
from tests.life.account import DIMENSIONS, cost_of
from tests.life.contract import MICRO, Contracts, text_of
from tests.life.gap import Gap
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


@dataclass(slots=True)
class Fairness(Law):
    """L3: weighted service of two that stay backlogged in one domain differs by a message of each (a shard).

    One waits until its shard has repaid the last message of whoever shares the shard, and catches up after; so between
    shards, a message is the largest of the shard. Between shards the shares are right one batch after a change in
    demand (L4), so that a batch in which others came or went is not held against two that live in different ones, nor
    is what makes up for it later; nor is the batch in which they came themselves.
    """

    _pairs: dict[tuple[str, str], Gap] = field(default_factory=dict)
    _active: set[str] = field(default_factory=set)
    """Who offered or waited in the last batch."""

    _revision: str = ""
    _largest: dict[str, int] = field(default_factory=dict)
    name = "L3"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare every two that can be compared."""
        contracts = world.contracts(batch.revision)
        if batch.revision != self._revision:
            self._revision = batch.revision
            self._pairs.clear()
        served: dict[str, list[int]] = defaultdict(lambda: [0, 0])
        for row in batch.admitted:
            total = served[text_of(row.namespace)]
            total[0] += cost_of(row, 0)
            total[1] += cost_of(row, 1)
        backlogged = [name for name in world.waited.keys() & world.waiting.keys() if not world.may_be_held(name)]
        self._note_sizes(batch.admitted, *world.waited.values(), *world.waiting.values())
        arrived = {text_of(row.namespace) for row in batch.arrived}
        is_known = self._active == world.waited.keys() and arrived <= world.waited.keys()
        self._active = arrived | world.waited.keys()
        kept: dict[tuple[str, str], Gap] = {}
        shards = world.job.shards
        came = [name for name in world.waiting.keys() - world.waited.keys() if not world.may_be_held(name)]
        for one, other in combinations(sorted([*backlogged, *came]), 2):
            if (dimension := _compared(contracts, one, other)) is None:
                continue
            weights = [contracts.of(name).weight for name in (one, other)]
            service = [Fraction(served[name][dimension], w) for name, w in zip((one, other), weights, strict=True)]
            pair = kept[one, other] = self._pairs.get((one, other), Gap())
            is_together = shard_of(_raw(one), shards) == shard_of(_raw(other), shards)
            if one in came or other in came:
                pair.slack += 0 if is_together else abs(service[0] - service[1])
                continue
            # Who got all that was known to wait was held back by nothing but that.
            is_drained = any(served[name][0] >= MICRO * len(world.waited[name]) for name in (one, other))
            apart = pair.add(service[0] - service[1], is_slack=not is_together and (is_drained or not is_known))
            message = sum(
                Fraction(MICRO * (self._largest_beside(name, shards, alone=is_together) if dimension else 1), w)
                for name, w in zip((one, other), weights, strict=True)
            )
            bound = message * (1 if is_together else shards)
            if apart > bound:
                where = "one shard" if is_together else f"{shards} shards"
                yield (
                    f"{one!r} and {other!r} (weights {weights}, {where}) were backlogged for {pair.batches} batches "
                    f"under one policy and are {float(apart / MICRO):g} {DIMENSIONS[dimension]} apart; a message "
                    f"of each (a shard) is {float(bound / MICRO):g}"
                )
        self._pairs = kept

    def _note_sizes(self, *groups: Iterable[Row]) -> None:
        for row in chain(*groups):
            name = text_of(row.namespace)
            self._largest[name] = max(self._largest.get(name, 0), row.size_bytes or 0)

    def _largest_beside(self, name: str, shards: int, *, alone: bool) -> int:
        """Return the largest size of a namespace, or, unless `alone`, of all that share its shard."""
        shard = shard_of(_raw(name), shards)
        beside = [name] if alone else [mate for mate in self._largest if shard_of(_raw(mate), shards) == shard]
        return max(self._largest[mate] for mate in beside)

    def forget(self) -> None:
        """Forget who was ahead."""
        self._pairs.clear()


def _raw(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _compared(contracts: Contracts, one: str, other: str) -> int | None:
    """Return the dimension in which two namespaces compete as equals, or `None` if they do not."""
    found = contracts.of(one), contracts.of(other)
    if any(scope.key[0] == "namespace" for contract in found for scope in contract.enforced):
        return None
    if found[0].enforced != found[1].enforced or found[0].domain is None:
        return None
    limited = {d for scope in found[0].enforced for d, limit in enumerate(scope.limits) if limit is not None}
    return limited.pop() if len(limited) == 1 else None


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
        cause = batch.revision, (world.other_causes, *sorted(world.job.leased().items()))
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
        if wait_ms is None and (may_leave or has_age):
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
            if triggers > 3 + world.job.shards:
                yield f"{name!r} waits for {triggers} triggers, and all its scopes have tokens"

    def forget(self) -> None:
        """Forget the past."""
        self._passed_over.clear()
        self._vain = 0


def _may_ever_leave(contracts: Contracts, name: str) -> bool:
    return all(limit is None or limit.rate > 0 for scope in contracts.of(name).enforced for limit in scope.limits)
