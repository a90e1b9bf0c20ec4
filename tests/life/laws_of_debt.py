"""The law that one message may not keep the others of its scope waiting for longer than the policy says.

A message passes while no balance is negative, and is then charged whole. So what a message costs is what the next ones
wait for, and where no bound is set nothing bounds that but the largest size that there is. Where `max_message_bytes` is
set it does: a scope from which nothing was taken for as long as its rate takes to repay a message of that size owes
nothing, whatever anybody sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.life.account import cost_of
from tests.life.contract import MICRO, Contracts, Key, Scope, text_of
from tests.life.laws import Law, World

_TRIGGERS: Final = 4
"""In which a namespace whose scopes owe nothing is served."""


@dataclass(slots=True)
class Debt(Law):
    """While a scope is silent its debt is repaid: in the time that a message of the largest size takes."""

    _taken_ms: dict[Key, int] = field(default_factory=dict)
    """When something was last taken from a scope."""

    _owed: dict[tuple[Key, int], int] = field(default_factory=dict)
    """What a scope may have owed when its policy came, and what rows that waited then may cost it."""

    _since_ms: int = 0
    """When the policy came, the clock was set, or the job was started."""

    _cause: tuple[str, int] = ("", -1)
    _overdue: dict[str, int] = field(default_factory=dict)
    name = "Debt"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Note what was taken, and look for who waits."""
        contracts = world.contracts(batch.revision)
        if batch.revision != self._cause[0] or batch.costs:
            self._begin(world, contracts, batch)
        if (batch.revision, world.other_causes) != self._cause or batch.costs:
            self._cause = batch.revision, world.other_causes
            self._since_ms = batch.steady_ms
        for row in batch.admitted:
            for scope in contracts.of(text_of(row.namespace)).scopes:
                self._taken_ms[scope.key] = batch.steady_ms
        yield from self._late(world, world.waiting.keys() & world.waited.keys(), contracts, batch.steady_ms)

    def after_idle(self, world: World) -> Iterator[str]:
        """Look for who waits."""
        if self._cause[0] == world.job.revision:
            if self._cause[1] != world.other_causes:
                self._cause, self._since_ms = (self._cause[0], world.other_causes), world.job.steady_ms
            yield from self._late(world, world.waiting, world.contracts(self._cause[0]), world.job.steady_ms)

    def _begin(self, world: World, contracts: Contracts, batch: SimulatedBatch) -> None:
        """Take in another policy: what was owed before its first batch, and who waits that no bound of it concerns."""
        self._owed = {at: -shadow.least for at, shadow in world.account.shadows.items()}
        for row in batch.admitted:
            for scope in contracts.of(text_of(row.namespace)).scopes:
                for dimension, limit in enumerate(scope.limits):
                    if limit is not None:
                        self._owed[scope.key, dimension] -= cost_of(row, dimension)
        largest: dict[Key, int] = defaultdict(int)
        for name, rows in world.waited.items():
            most = max(row.size_bytes or 0 for row in rows)
            for scope in contracts.of(name).scopes:
                largest[scope.key] = max(largest[scope.key], most)
        for key, size_bytes in largest.items():
            self._owed[key, 1] = max(self._owed.get((key, 1), 0), size_bytes * MICRO)

    def _late(self, world: World, names: Collection[str], contracts: Contracts, now_ms: int) -> Iterator[str]:
        overdue = {}
        for name in names:
            scopes = contracts.of(name).enforced
            if world.may_be_held(name) or not all(self._is_known(world, scope) for scope in scopes):
                continue
            silent_ms = now_ms - max([self._since_ms, *(self._taken_ms.get(scope.key, 0) for scope in scopes)])
            longest_ms = max((self._repaid_ms(world, scope) for scope in scopes), default=0)
            if silent_ms <= longest_ms:
                continue
            overdue[name] = self._overdue.get(name, 0) + 1
            if overdue[name] > _TRIGGERS:
                yield (
                    f"{name!r} waits, nothing was taken from its scopes for {silent_ms} ms, and messages of the "
                    f"largest size are repaid in {longest_ms} ms"
                )
        self._overdue = overdue

    @staticmethod
    def _is_known(world: World, scope: Scope) -> bool:
        """Return whether a scope has a rate that the job may use alone."""
        if world.job.is_sharing and scope.key[0] in ("tenant", "group"):
            return False
        return all(limit is None or limit.rate > 0 for limit in scope.limits)

    def _repaid_ms(self, world: World, scope: Scope) -> int:
        """Return in what time a scope repays all that it may owe."""
        longest_ms = 0
        for dimension, limit in enumerate(scope.limits):
            if limit is not None:
                message = MICRO * (scope.max_message_bytes if dimension else 1)
                owed = max(message, self._owed.get((scope.key, dimension), 0))
                longest_ms = max(longest_ms, -(-owed // limit.rate))
        return longest_ms

    def forget(self) -> None:
        """Forget the past."""
        self._cause = "", -1
        self._overdue.clear()
