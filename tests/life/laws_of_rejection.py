"""The law of rejection: a message is rejected for a quota that many share only where that quota lacks tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeAlias

from spark_throttle.testing.simulation.batch import SimulatedBatch
from tests.life.account import DIMENSIONS, costs_of
from tests.life.contract import MICRO, Key, Scope, text_of
from tests.life.laws import Law, World

REJECTION: Final = "Rejection"

_Costs: TypeAlias = dict[tuple[Key, int], int]
_LEVELS: Final = {"tenant": "tenant", "resource_group": "group", "job": "job"}


class Rejection(Law):
    """What arrives and waits in a batch, and in the one before it, is less than the scope has: it rejects nothing.

    The batch before counts too, because tokens are lent by what it wanted. A batch without an epoch of its own is
    decided by what was lent for an earlier one.
    """

    name = REJECTION

    def __init__(self) -> None:
        self._wanted: _Costs | None = {}
        self._epoch = -1

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Look at the messages that were rejected for a quota of many namespaces."""
        contracts = world.contracts(batch.revision)
        waited = [row for rows in world.waited.values() for row in rows]
        wanted = costs_of(contracts, [*waited, *batch.arrived])
        before, self._wanted = self._wanted, wanted
        is_standing, self._epoch = batch.epoch == self._epoch, batch.epoch
        if before is None or is_standing:
            return
        left = costs_of(contracts, batch.admitted)
        for letter in batch.rejected:
            level = _LEVELS.get(str(letter.level))
            if letter.reason != "quota" or level is None:
                continue
            (scope,) = [each for each in contracts.of(text_of(letter.row.namespace)).enforced if each.key[0] == level]
            most = [max(before.get((scope.key, d), 0), wanted.get((scope.key, d), 0)) for d in range(2)]
            if self._has(world, scope, most, left):
                amounts = " and ".join(f"{most[d] / MICRO:g} {DIMENSIONS[d]}" for d in range(2))
                yield f"{letter} was rejected by {scope.key}, of which {amounts} were wanted, fewer than it had"

    @staticmethod
    def _has(world: World, scope: Scope, most: list[int], left: _Costs) -> bool:
        """Return whether a scope surely had more tokens than `most` before the batch."""
        return all(
            limit is None or world.account.shadows[scope.key, d].least + left.get((scope.key, d), 0) >= most[d] + MICRO
            for d, limit in enumerate(scope.limits)
        )

    def forget(self) -> None:
        """Know nothing of the batch before."""
        self._wanted = None
