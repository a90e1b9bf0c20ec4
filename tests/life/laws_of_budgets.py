"""The law of budgets: in no window of the calendar more than the budget and less than a message, and all of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from spark_throttle.core.usage import unpack_usage
from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.life.contract import Contract, Contracts, Key, Scope, text_of
from tests.life.laws import Law, World

_PERIODS: Final = ("hour", "day", "month")
_MOST_PASSED_OVER: Final = 1

_Place = tuple[Key, str]
"""A scope and one of its budgets."""


def windows_of(batch: SimulatedBatch) -> tuple[int, ...]:
    """Return the numbers of the windows that a batch counted in; none where its policy has no budget."""
    budgets = unpack_usage(batch.usage, "a usage report").budgets if batch.usage else None
    return () if budgets is None else tuple(budgets.windows.number.tolist())


def tokens_of(key: str, size_bytes: int | None) -> int:
    """Return what a row takes of a budget."""
    return 1 if key.startswith("messages") else size_bytes or 0


class Budget(Law):
    """What was admitted since a window began is less than the budget before the last row, and nobody waits before that.

    Which window it is, the job says; how often windows begin is asked of the calendar (`tests.control`).
    """

    name = "Budget"
    is_put_back = True

    def __init__(self) -> None:
        self._windows: tuple[int, ...] = ()
        self._used: dict[_Place, int] = {}
        self._largest = 0
        self._knows_all = True
        self._passed_over: dict[str, int] = defaultdict(int)
        self.counted = 0
        """How many rows were counted in budgets that hold rows back."""

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Count what was admitted, and look for who waits."""
        contracts = world.contracts(batch.revision)
        self._begin(contracts, windows_of(batch))
        taken: dict[_Place, list[int]] = defaultdict(list)
        for row in batch.admitted:
            self._largest = max(self._largest, row.size_bytes or 0)
            for scope in contracts.of(text_of(row.namespace)).scopes:
                for key, _ in scope.budgets:
                    taken[scope.key, key].append(tokens_of(key, row.size_bytes))
        most = {(scope.key, key): tokens for scope in _scopes(contracts, taken) for key, tokens in scope.budgets}
        asked = {scope.key for scope in _scopes(contracts, taken) if scope.is_asked}
        for (where, key), rows in taken.items():
            before = self._used.get((where, key), 0)
            self._used[where, key] = before + sum(rows)
            if where not in asked or not sum(rows):
                continue
            self.counted += len(rows)
            budget = most[where, key]
            if before >= budget or before + sum(rows) - max(rows) >= budget:
                yield f"{where} admitted {sum(rows)} in a batch, after {before} in this window, and {key} is {budget}"
        yield from self._waits(world, contracts)

    def after_idle(self, world: World) -> Iterator[str]:
        """Look for who waits."""
        yield from self._waits(world, world.contracts(world.job.revision))

    def _begin(self, contracts: Contracts, windows: tuple[int, ...]) -> None:
        """Forget what was used of budgets that are gone, or that began anew."""
        shared = {scope.key: scope for scope in contracts.shared}
        begun = [
            period
            for at, period in enumerate(_PERIODS)
            if windows and (not self._windows or windows[at] != self._windows[at])
        ]
        for where, key in list(self._used):
            own = (scope for scope in contracts.of(where[1]).scopes if scope.key == where)
            scope = next(own, None) if where[0] == "namespace" else shared.get(where)
            if scope is None or key not in dict(scope.budgets) or key.rpartition("_")[2] in begun:
                del self._used[where, key]
        self._windows = windows or self._windows

    def _waits(self, world: World, contracts: Contracts) -> Iterator[str]:
        passed_over = {}
        for name in world.waiting.keys() & world.waited.keys() if self._knows_all else ():
            way = contracts.of(name)
            if not way.is_budgeted or world.is_held_by_rule(name) or way.timed or self._may_be_spent(way):
                continue
            if world.account.has_tokens(contracts, name):
                passed_over[name] = self._passed_over[name] + 1
        self._passed_over = defaultdict(int, passed_over)
        for name, triggers in passed_over.items():
            if triggers > _MOST_PASSED_OVER:
                yield f"{name!r} waits for {triggers} triggers, and all its scopes have tokens and budgets left"

    def _may_be_spent(self, way: Contract) -> bool:
        """Return whether a budget on a way may be spent, with what may have been taken off it."""
        return any(
            self._used.get((scope.key, key), 0) + (0 if key.startswith("messages") else self._largest) >= most
            for scope in way.scopes
            if scope.is_asked
            for key, most in scope.budgets
        )

    def forget(self) -> None:
        """Forget what was used: from here on it is at least what is counted."""
        self._used.clear()
        self._passed_over.clear()
        self._knows_all = False


def _scopes(contracts: Contracts, places: Iterable[_Place]) -> list[Scope]:
    names = {where[1] for where, _ in places if where[0] == "namespace"}
    return [*contracts.shared, *(contracts.of(name).scopes[0] for name in names if contracts.of(name).scopes)]
