"""The laws of rejection: a message is rejected for a quota that many share only where that quota lacks tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import RejectedRow, Row
from tests.audit.ideal import way_of, weights_on
from tests.life.account import DIMENSIONS, cost_of, costs_of
from tests.life.contract import BUDGETS, MICRO, Contracts, Key, Scope, text_of
from tests.life.laws import Law, World
from tests.life.laws_of_sharing import place_of

REJECTION: Final = "Rejection"

_Costs: TypeAlias = dict[tuple[Key, int], int]
_LEVELS: Final = {"tenant": "tenant", "resource_group": "group", "job": "job"}


class Rejection(Law):
    """A scope that surely has the tokens rejects neither what is wanted of it nor anybody's first message.

    It rejects nothing where all that competes for it in a batch is less than it has. Where more competes, it rejects
    the first message of no namespace if it has tokens for the first messages of all, but for one that is ahead: while
    the scope was short, it was served more than somebody who is served now.

    A scope that surely owes before a batch, and for longer than until the next one, lets no new message wait for it. A
    job that has no share of its quota yet rejects nothing, whatever it owes. One that leaves the exchange before it has
    a share begins without time.
    """

    name = REJECTION
    is_put_back = True

    def __init__(self) -> None:
        self._batch_ms = 0
        self._interval_ms = 0
        self._was_sharing = False
        self._contests = Contests()

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Look at the messages that were rejected for a quota of many namespaces."""
        contracts = world.contracts(batch.revision)
        competing = list(_competing(world, batch))
        wanted = costs_of(contracts, competing)
        between_ms, self._batch_ms = batch.steady_ms - self._batch_ms, batch.steady_ms
        longest_ms, self._interval_ms = max(between_ms, self._interval_ms), between_ms
        was_sharing, self._was_sharing = self._was_sharing, world.job.is_sharing
        yield from _waiting_for_debts(world, batch, 2 * longest_ms)
        left = costs_of(contracts, batch.admitted)
        first = _first_rows(competing)
        of_all = _costs_of_one_each(contracts, competing)
        for letter in batch.rejected:
            scope = _rejecting_scope(contracts, letter)
            is_timed = was_sharing or text_of(letter.row.namespace) in world.timed
            if letter.dimension == "time" and not is_timed:
                yield f"{letter} was rejected for processing time, of which nothing was ever charged"
            if scope is None or letter.dimension in BUDGETS:
                continue
            most = [wanted.get((scope.key, d), 0) for d in range(2)]
            if _has(world, scope, most, left):
                yield f"{letter} was rejected by {scope.key}, of which {_text(most)} were wanted, fewer than it had"
            of_first = [of_all.get((scope.key, d), 0) for d in range(2)]
            name = text_of(letter.row.namespace)
            if (
                first[name] == letter.row.id
                and _has(world, scope, of_first, left)
                and not self._contests.is_ahead(contracts, scope, name, batch.admitted)
            ):
                yield (
                    f"{letter}, the first of its namespace, was rejected by {scope.key}, which had more than the "
                    f"{_text(of_first)} that the largest messages of all namespaces take"
                )
        scopes = {scope.key: scope for row in competing for scope in contracts.of(text_of(row.namespace)).enforced}
        self._contests.serve(contracts, batch.admitted, short={
            key for key, scope in scopes.items()
            if not _has(world, scope, [wanted.get((key, d), 0) for d in range(2)], left)
        })  # fmt: skip

    def forget(self) -> None:
        """Forget who is ahead."""
        self._contests = Contests()


class Contests:
    """Who was served how much of each scope since it became short: in one batch with enough for all, all is forgotten.

    Two namespaces are compared where their ways part: by what was served to all of each side, and by its weight.
    """

    def __init__(self) -> None:
        self._served: dict[Key, dict[str, list[int]]] = {}

    def is_ahead(self, contracts: Contracts, scope: Scope, name: str, admitted: Iterable[Row]) -> bool:
        """Return whether a namespace was served more, by weight, than another that a scope now serves."""
        served = self._served.get(scope.key, {})
        others = {text_of(row.namespace) for row in admitted} - {name}
        return any(
            self._is_ahead_of(contracts, served, name, other, dimension)
            for other in others
            if scope.key in {each.key for each in contracts.of(other).enforced}
            for dimension, limit in enumerate(scope.limits)
            if limit is not None
        )

    @staticmethod
    def _is_ahead_of(
        contracts: Contracts, served: Mapping[str, list[int]], name: str, other: str, dimension: int
    ) -> bool:
        ways = {each: way_of(each, contracts.of(each)) for each in {*served, name, other}}
        one, two = ways[name], ways[other]
        depth = next(d for d in (1, 2, 3) if one[:d] != two[:d])
        per_weight = [
            Fraction(
                sum(costs[dimension] for each, costs in served.items() if ways[each][:depth] == way[:depth]),
                weights_on(way, contracts.of(way[2]))[way[:depth]],
            )
            for way in (one, two)
        ]
        return per_weight[0] > per_weight[1]

    def serve(self, contracts: Contracts, admitted: Iterable[Row], *, short: Collection[Key]) -> None:
        """Count what a batch served, and forget the scopes that were not short in it."""
        self._served = {key: self._served.get(key, {}) for key in short}
        for row in admitted:
            for scope in contracts.of(text_of(row.namespace)).enforced:
                if scope.key in self._served:
                    total = self._served[scope.key].setdefault(text_of(row.namespace), [0, 0])
                    for dimension in range(2):
                        total[dimension] += cost_of(row, dimension)


def _waiting_for_debts(world: World, batch: SimulatedBatch, in_ms: int) -> Iterator[str]:
    """Tell the new messages that wait for a scope alone, which rejects and surely still owes after a time."""
    contracts, arrived = world.contracts(batch.revision), {row.id for row in batch.arrived}
    left = costs_of(contracts, batch.admitted)
    without_share = {place_of(name, d) for name, share in world.job.leased().items() for d in range(2) if share[d] == 0}
    for name, rows in world.waiting.items():
        contract = contracts.of(name)
        if contract.has_rules or name in world.timed or len(contract.enforced) != 1:
            continue
        (scope,) = contract.enforced
        if scope.on_excess != "reject" or scope.key[0] == "namespace":
            continue
        new = [row for row in rows if row.id in arrived]
        for dimension, limit in enumerate(scope.limits):
            if not new or limit is None or (scope.key, dimension) in without_share:
                continue
            before = world.account.shadows[scope.key, dimension].most + left.get((scope.key, dimension), 0)
            if before + limit.rate * in_ms < 0:
                yield f"{new[0]} waits for {scope.key}, which still owes {DIMENSIONS[dimension]} in {in_ms} ms"


def _competing(world: World, batch: SimulatedBatch) -> Iterator[Row]:
    """Yield the messages that competed for shared quotas, those that waited first."""
    elsewhere = {
        letter.row.id
        for letter in batch.rejected
        if letter.reason not in ("quota", "queue_full") or letter.level == "namespace"
    }
    for row in (*(row for rows in world.waited.values() for row in rows), *batch.arrived):
        if row.id not in elsewhere:
            yield row


def _first_rows(rows: Iterable[Row]) -> dict[str, int]:
    """Return the number of the first message of every namespace."""
    first: dict[str, int] = {}
    for row in rows:
        first.setdefault(text_of(row.namespace), row.id)
    return first


def _costs_of_one_each(contracts: Contracts, rows: Iterable[Row]) -> _Costs:
    """Return what the largest message of every namespace takes of each scope."""
    largest: dict[str, Row] = {}
    for row in rows:
        name = text_of(row.namespace)
        if name not in largest or cost_of(row, 1) > cost_of(largest[name], 1):
            largest[name] = row
    return costs_of(contracts, largest.values())


def _rejecting_scope(contracts: Contracts, letter: RejectedRow) -> Scope | None:
    """Return the shared scope that had no tokens for a message, or `None`."""
    level = _LEVELS.get(str(letter.level))
    if letter.reason != "quota" or level is None or letter.dimension == "time":
        return None
    (scope,) = [each for each in contracts.of(text_of(letter.row.namespace)).enforced if each.key[0] == level]
    return scope


def _has(world: World, scope: Scope, most: list[int], left: _Costs) -> bool:
    """Return whether a scope surely had more tokens than `most` before the batch."""
    return all(
        limit is None or world.account.shadows[scope.key, d].least + left.get((scope.key, d), 0) >= most[d] + MICRO
        for d, limit in enumerate(scope.limits)
    )


def _text(micro: list[int]) -> str:
    return " and ".join(f"{micro[d] / MICRO:g} {DIMENSIONS[d]}" for d in range(2))
