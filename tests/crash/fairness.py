"""Fairness and starvation, counted anew in each time that one revision of the policies was in force.

Both are told from tables, offsets and epochs alone, by rules that are slow and obvious, and lenient where a bound is
not known: what they name is a fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from typing import Final

from tests.crash.history import Batch, Flows, reigns
from tests.crash.workload import LARGEST_BYTES
from tests.life.contract import MICRO, Contracts, Key, Limit, Scope
from tests.life.gap import Gap
from tests.life.laws_of_fairness import rival_weights, way_of, weights_on

LARGEST: Final = (1, LARGEST_BYTES)
"""What the largest message costs in each dimension."""

_TIME: Final = len(LARGEST)
"""The dimension of processing time, where that counts."""

_ROWS_AHEAD: Final = 2
"""How many of the largest messages a rival may be ahead or behind: one of its own, and one of another."""

_ROWS_BEHIND: Final = 6
"""How many of the largest messages a namespace may be behind its ideal (`laws_of_fairness`)."""

_DEAREST_NS: Final = 10_000_000
"""The time of a row with what its batch takes beside, generously: the work on a row takes a hundredth of it."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Two namespaces that were compared."""

    names: tuple[str, str]
    batch: int
    """The batch in which they were furthest apart."""

    messages: Fraction
    """How far, in messages of the largest size, of a weight of 1."""

    bound: Fraction
    """How far they may be."""

    @property
    def is_unfair(self) -> bool:
        return self.messages > self.bound


def compare(batches: Sequence[Batch], flows: Flows, contracts: Mapping[str, Contracts]) -> list[Apart]:
    """Return how far any two that waited side by side in one group came apart, by weighted service.

    They are compared while both wait, under one revision, if the same scopes hold them, by messages, bytes or time, and
    these limit one dimension beside time.
    """
    found: list[Apart] = []
    for reign in reigns(batches):
        policy = contracts[batches[reign[0]].revision]
        for group, dimension in _equals(policy, flows.names):
            for pair in combinations(group, 2):
                found += _compared(batches, flows, policy, reign, pair, dimension)
    return found


def _equals(policy: Contracts, names: Sequence[str]) -> Iterator[tuple[list[int], int]]:
    """Yield positions of namespaces that the same scopes hold, and none of their own, with the dimension."""
    alike: dict[tuple[tuple[Scope, ...], tuple[Scope, ...]], list[int]] = defaultdict(list)
    for position, name in enumerate(names):
        alike[policy.of(name).enforced, policy.of(name).timed].append(position)
    for (scopes, _), group in alike.items():
        limited = {d for scope in scopes for d, limit in enumerate(scope.limits) if limit is not None}
        is_shared = scopes and all(scope.key[0] != "namespace" for scope in scopes)
        if is_shared and len(limited) == 1:
            yield group, limited.pop()


def _compared(
    batches: Sequence[Batch], flows: Flows, policy: Contracts, reign: list[int], pair: tuple[int, int], dimension: int
) -> Iterator[Apart]:
    names = flows.names[pair[0]], flows.names[pair[1]]
    weights = rival_weights(policy, flows.names, *names)
    if weights is None:
        return
    bound = sum((Fraction(_ROWS_AHEAD, weight) for weight in weights), Fraction(0))
    worst: Apart | None = None
    between: Gap | None = None
    for at in reign:
        waited = [at > 0 and flows.waiting[at - 1, n] > 0 for n in pair]
        if not all(waited) or not all(flows.waiting[at, n] > 0 for n in pair):
            between = None
            continue
        between = between or Gap()
        service = [
            Fraction(int(flows.admitted[at, n, dimension]), weight) for n, weight in zip(pair, weights, strict=True)
        ]
        apart = between.add(service[0] - service[1]) / LARGEST[dimension]
        if worst is None or apart > worst.messages:
            worst = Apart(names, batches[at].number, apart, bound)
    if worst is not None:
        yield worst


@dataclass(frozen=True, slots=True)
class Starvation:
    """A namespace that got nothing for longer than its contract justifies."""

    name: str
    first_batch: int
    last_batch: int


@dataclass(slots=True)
class _Hunger:
    first: int
    earned: dict[tuple[Key, int], int] = field(default_factory=lambda: defaultdict(int))


def starvation(batches: Sequence[Batch], flows: Flows, contracts: Mapping[str, Contracts]) -> list[Starvation]:
    """Return who waited, got nothing, and should have had their turn.

    That is: since the change of policy, or their last turn, each scope that holds them has earned what it can owe, and
    after that enough for a turn of everyone else in it, and for theirs.
    """
    debts = _debts(contracts)
    found: list[Starvation] = []
    for reign in reigns(batches):
        policy = contracts[batches[reign[0]].revision]
        for n, name in enumerate(flows.names):
            if not policy.of(name).enforced and not policy.of(name).timed:
                # What nothing holds goes at once, whatever held it before.
                needed: dict[tuple[Key, int], int] | None = {}
            else:
                needed = _needed(policy, flows.names, name, debts)
            if needed is not None:
                found += _starved_in(batches, flows, policy, reign, n, needed)
    return found


def _starved_in(
    batches: Sequence[Batch],
    flows: Flows,
    policy: Contracts,
    reign: list[int],
    n: int,
    needed: dict[tuple[Key, int], int],
) -> Iterator[Starvation]:
    name = flows.names[n]
    hunger: _Hunger | None = None
    for at in reign:
        is_waiting = at > 0 and flows.waiting[at - 1, n] > 0 and flows.waiting[at, n] > 0
        if not is_waiting or flows.admitted[at, n, 0] > 0:
            hunger = None
            continue
        if hunger is None:
            hunger = _Hunger(batches[at].number)
        else:
            elapsed_ms = max(0, batches[at].paid_ms - batches[at - 1].paid_ms)
            for scope in policy.of(name).enforced:
                for dimension, limit in enumerate(scope.limits):
                    if limit is not None:
                        rate = _rate(batches[at - 1 : at + 1], scope.key, dimension, limit)
                        full_ms = limit.burst // limit.rate if limit.rate else 0
                        hunger.earned[scope.key, dimension] += rate * min(elapsed_ms, full_ms)
            for scope in policy.of(name).timed if batches[at].shares is None else ():
                assert scope.time is not None
                hunger.earned[scope.key, _TIME] += min(scope.time.rate * elapsed_ms, scope.time.burst)
        if all(hunger.earned[scope] > least for scope, least in needed.items()):
            yield Starvation(name, hunger.first, batches[at].number)
            return


def _rate(two: Sequence[Batch], key: Key, dimension: int, limit: Limit) -> int:
    """Return what a scope surely earns between two batches, in micro-tokens a millisecond."""
    rates = [limit.rate]
    for batch in two:
        share = None if batch.shares is None else batch.shares.get(key, (0, 0))[dimension]
        if batch.shares is not None and key[0] != "namespace" and share is not None:
            rates.append(share)
    return min(rates)


def _needed(
    policy: Contracts, names: Sequence[str], name: str, debts: Mapping[tuple[Key, int], int]
) -> dict[tuple[Key, int], int] | None:
    """Return what each scope must earn before a namespace has had its turn, in micro-tokens; `None`: not known."""
    own = policy.of(name)
    needed: dict[tuple[Key, int], int] = {}
    for scope in own.enforced:
        others = [other for other in names if other != name and scope in policy.of(other).enforced]
        if any(policy.of(other).enforced != own.enforced for other in others):
            return None  # other scopes may hold them too, and leave more or less to this one
        turns = _turns(policy, others, name)
        for dimension, limit in enumerate(scope.limits):
            if limit is None:
                continue
            owed = debts.get((scope.key, dimension), 0) + LARGEST[dimension] * MICRO
            needed[scope.key, dimension] = owed + int((turns + 1) * LARGEST[dimension] * MICRO)
    for scope in own.timed:
        assert scope.time is not None
        turns = _turns(policy, [other for other in names if other != name and scope in policy.of(other).timed], name)
        # A debt is a window at most.
        needed[scope.key, _TIME] = scope.time.burst + int((turns + 2) * _DEAREST_NS)
    return needed


def _turns(policy: Contracts, others: Sequence[str], name: str) -> Fraction:
    """Return how many messages are due to others by the time that a namespace, behind as it may be, gets its next."""
    found = {each: way_of(each, policy.of(each)) for each in (*others, name)}
    weights = {node: weight for each, way in found.items() for node, weight in weights_on(way, policy.of(each)).items()}
    part = Fraction(1)
    for depth in range(1, len(found[name]) + 1):
        node = found[name][:depth]
        siblings = {way[:depth] for way in found.values() if way[: depth - 1] == node[:-1]}
        part *= Fraction(weights[node], sum(weights[each] for each in siblings))
    return (_ROWS_BEHIND + 1) / part


def _debts(contracts: Mapping[str, Contracts]) -> dict[tuple[Key, int], int]:
    """Return what a scope can owe beside a message, in micro-tokens: a burst, if it ever only observed."""
    bursts: dict[tuple[Key, int], int] = defaultdict(int)
    observed: set[Key] = set()
    for policy in contracts.values():
        scopes = [*policy.shared, *(policy.of(name).scopes[0] for name in policy.document.namespaces)]
        for scope in scopes:
            if scope.on_excess == "observe":
                observed.add(scope.key)
            for dimension, limit in enumerate(scope.limits):
                if limit is not None:
                    bursts[scope.key, dimension] = max(bursts[scope.key, dimension], limit.burst)
    return {at: burst for at, burst in bursts.items() if at[0] in observed}
