"""An auditor that only counts: it knows the laws and the tables, and nothing of the code that made them.

It is shown every batch (`books.Batch`), and yields what breaks a law. The laws are those of docs/guarantees.md, each
counted in the plainest way that there is:

* **L1** by counting: a row that came left once, or waits; what left is as it came.
* **L2** by windows: in each, a scope admitted at most what its rates earn, its largest burst, and a message.
* **L3** against the fluid ideal (`ideal`).
* **L4** by tokens left: while a row waits for two batches, one of its scopes has none.
* **L5** by order: a namespace's rows leave in theirs.
* **age**: nobody waits and gets nothing for longer than all takes that may go before.
* **budget**: in no window of the calendar more than the budget and less than a message (`promises`).
* **L9**: a scope has what it is guaranteed (`promises`).
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.audit.books import DIMENSIONS, Batch, Queue, Row, cost_of, costs_of
from tests.audit.ideal import NAMESPACE_BOUND, Behind, Ideal, way_of, weights_on
from tests.audit.promises import Promised, budgets, guarantees
from tests.life.account import Account
from tests.life.contract import MICRO, Contract, Key, Limit, Scope

DEAREST_NS: Final = 10_000_000
"""The time of a row with what its batch takes beside, generously: the work on a row takes a hundredth of it."""

_TIME: Final = 2
"""The dimension of processing time, where that counts."""

_FEWEST_BATCHES: Final = 2
"""A namespace that gets nothing in so few batches waits for no turn."""

_MOST_PASSED_OVER: Final = 1
"""So many batches may pass over a row whose scopes have tokens: they may be a rounding to a millisecond short."""


class Finding(NamedTuple):
    """What breaks a law."""

    law: str
    what: str


@dataclass(slots=True)
class Audit:
    """What an audit has found, and what it looked at."""

    findings: list[Finding] = field(default_factory=list)
    compared: int = 0
    """Namespaces and tenants that were compared with their ideal, counted in each batch."""

    furthest: float = 0.0
    """How far one was behind it at most, in the largest messages."""

    promised: Promised = field(default_factory=Promised)

    def count(self, law: str) -> int:
        """Return how much was found against a law."""
        return sum(finding.law == law for finding in self.findings)


def audit(batches: Sequence[Batch], waiting: Collection[int] = ()) -> Audit:
    """Audit a job from its first batch on; `waiting` are the numbers of the rows that wait after the last."""
    done = Audit()
    for law, found in (
        ("L1", conservation(batches, waiting)), ("L2", windows(batches)), ("L3", fairness(batches, done)),
        ("L4", tokens_left(batches)), ("L5", order(batches)), ("age", starvation(batches)),
        ("budget", budgets(batches, done.promised)), ("L9", guarantees(batches, done.promised)),
    ):  # fmt: skip
        done.findings += [Finding(law, what) for what in found]
    return done


# ---------------------------------------------------------------------------------------------------- L1 and L5


def conservation(batches: Sequence[Batch], waiting: Collection[int]) -> Iterator[str]:
    """Yield rows that are lost, doubled, or not as they came."""
    came = {row.id: row for batch in batches for row in batch.arrived}
    left = Counter(row.id for batch in batches for row in (*batch.admitted, *batch.rejected))
    for number, row in came.items():
        times = left[number] + (number in waiting)
        if times != 1:
            yield f"{row} is {'lost' if times == 0 else f'there {times} times'}"
    for batch in batches:
        for row in (*batch.admitted, *batch.rejected):
            if came.get(row.id) != row:
                yield f"batch {batch.number} has {row}, which came as {came.get(row.id)}"


def order(batches: Sequence[Batch]) -> Iterator[str]:
    """Yield rows that left behind one that should have left after them."""
    last: dict[str, int] = {}
    for batch in batches:
        for row in batch.admitted:
            if row.id < last.get(row.namespace, -1):
                yield f"{row} left in batch {batch.number} after row {last[row.namespace]}"
            last[row.namespace] = max(row.id, last.get(row.namespace, -1))


# ----------------------------------------------------------------------------------------------------------- L2


class _Use(NamedTuple):
    """What a scope admitted in a batch, under which limit, in micro-tokens of a dimension."""

    batch: Batch
    limit: Limit
    rate: int
    amount: int
    largest: int


def windows(batches: Sequence[Batch]) -> Iterator[str]:
    """Yield the scopes that admitted more than any window may have, one a scope and time that its limit was there."""
    names = sorted({row.namespace for batch in batches for row in batch.admitted})
    uses: dict[tuple[Key, int], list[_Use]] = defaultdict(list)
    for batch in batches:
        passed: dict[tuple[Key, int], list[Row]] = defaultdict(list)
        limits: dict[tuple[Key, int], Limit] = {}
        of_name: dict[str, list[Row]] = defaultdict(list)
        for row in batch.admitted:
            of_name[row.namespace].append(row)
        for name in names:
            for scope in batch.contracts.of(name).enforced:
                for d, limit in enumerate(scope.limits):
                    if limit is not None:
                        limits[scope.key, d] = limit
                        passed[scope.key, d] += of_name[name]
        for at in [*uses]:
            if at not in limits or batch.begins_anew:
                yield from _excess(at, uses.pop(at))
        for at, limit in limits.items():
            costs = [cost_of(row, at[1]) for row in passed[at]]
            rate = batch.rate(*at, limit.rate)
            uses[at].append(_Use(batch, limit, rate, sum(costs), max(costs, default=0)))
    for at, some in uses.items():
        yield from _excess(at, some)


def _excess(at: tuple[Key, int], uses: Sequence[_Use]) -> Iterator[str]:
    """Yield the window in which a scope admitted most beyond what it may, if it did."""
    worst, said = 0, ""
    for first in range(len(uses)):
        earned, burst, amount = 0, 0, 0
        for end in range(first, len(uses)):
            use = uses[end]
            if end > first:
                before = uses[end - 1]
                # The change came at some moment between the two.
                earned += max(before.rate, use.rate) * max(0, use.batch.time_ms - before.batch.time_ms)
            burst, amount = max(burst, use.limit.burst), amount + use.amount
            over = amount - earned - burst - use.largest
            if use.amount and over > worst:
                worst = over
                said = (
                    f"{at[0][0]} {at[0][1]!r} admitted {over / MICRO:g} {DIMENSIONS[at[1]]} too many in batches "
                    f"{uses[first].batch.number} to {use.batch.number}"
                )
    if worst:
        yield said


# ----------------------------------------------------------------------------------------------------------- L3


def fairness(batches: Sequence[Batch], done: Audit) -> Iterator[str]:
    """Yield who is too far behind the ideal, once each time that one policy is in force."""
    ideal, queue, largest, told = Ideal(), Queue(), 1, set[object]()
    for batch, before in zip(batches, (None, *batches), strict=False):
        if batch.begins_anew:
            ideal.forget()
        queue.count(batch)
        largest = max(largest, *(row.size_bytes for row in batch.arrived), 1)
        wanted = queue.costs()
        for name, costs in costs_of(row for row in batch.rejected if row.id in batch.over_quota).items():
            wanted[name] = [a + b for a, b in zip(costs, wanted.get(name, (0, 0)), strict=True)]
        behind = ideal.behind(batch.contracts, costs_of(batch.admitted), wanted, batch.held, (MICRO, MICRO * largest))
        if before is None or before.contracts is not batch.contracts:
            told.clear()
        for each in behind:
            _note(each, done)
            if each.is_too_far and each.node not in told:
                told.add(each.node)
                yield f"in batch {batch.number} {each}"


def _note(behind: Behind, done: Audit) -> None:
    done.compared += 1
    done.furthest = max(done.furthest, behind.messages)


# ----------------------------------------------------------------------------------------------------------- L4


def tokens_left(batches: Sequence[Batch]) -> Iterator[str]:
    """Yield who waits though all that holds them has tokens, once each time that one policy is in force."""
    account, queue, passed_over, told = Account(), Queue(), Counter[str](), set[str]()
    for batch, before in zip(batches, (None, *batches), strict=False):
        queue.count(batch)
        if batch.begins_anew:
            account.forget()
        if before is None or before.contracts is not batch.contracts:
            told.clear()
        account.advance(batch.contracts, {*queue.rows, *(row.namespace for row in batch.admitted)}, at_ms=batch.time_ms)
        account.debit(batch.contracts, batch)
        waits = set()
        for name in queue.rows:
            contract = batch.contracts.of(name)
            is_known = batch.shares is None or all(scope.key[0] == "namespace" for scope in contract.enforced)
            if name not in batch.held and not _is_held(contract) and is_known:
                waits |= {name} if account.has_tokens(batch.contracts, name) else set()
        passed_over = Counter({name: passed_over[name] + 1 for name in waits})
        for name, times in passed_over.items():
            if times > _MOST_PASSED_OVER and name not in told:
                told.add(name)
                yield f"{name!r} waits after batch {batch.number}, and all its scopes have tokens"


def _is_held(contract: Contract) -> bool:
    """Return whether something else than a quota on messages or bytes may hold a namespace."""
    return bool(contract.timed) or contract.has_rules


# ---------------------------------------------------------------------------------------------------------- age


def starvation(batches: Sequence[Batch]) -> Iterator[str]:
    """Yield who waits and gets nothing for longer than all takes that may go before, once each time of one policy.

    At any time one of a namespace's scopes holds it. What that scope earns then goes to its members by turns. So it
    waits at most for the sum over its scopes of the time in which each earns: what it may owe; a message, with as much
    as the namespace may be behind; and what its rivals may take meanwhile, by weight, and no more than they have.
    """
    names = sorted({row.namespace for batch in batches for row in batch.arrived})
    bursts = _observed_bursts(batches, names)
    queue, waits = Queue(), list[dict[str, list[int]]]()
    for batch in batches:
        queue.count(batch)
        waits.append(queue.costs())
    for reign in reigns(batches):
        contracts = batches[reign[0]].contracts
        if contracts.has_guarantees:
            continue  # what the others may take first is not theirs by weight
        before = batches[: reign[-1] + 1]  # a debt outlives the policy under which it was made
        largest = (MICRO, MICRO * max((row.size_bytes for batch in before for row in batch.admitted), default=1))
        for name in names:
            contract = contracts.of(name)
            dimensions = {d for scope in contract.enforced for d, limit in enumerate(scope.limits) if limit is not None}
            gap = longest_gap(batches, waits, reign, name)
            # Where two dimensions are limited, a turn may be any amount of one of them.
            if len(gap) <= _FEWEST_BATCHES or contract.has_rules or len(dimensions) > 1:
                continue
            if _Wait([batches[at] for at in gap], names, name, waits[gap[-1]], largest).is_over(bursts):
                first, end = (batches[at].number for at in (gap[0], gap[-1]))
                yield f"{name!r} waits and gets nothing from batch {first} to {end}"


def reigns(batches: Sequence[Batch]) -> Iterator[range]:
    """Yield positions of batches, one after another, in which one policy is in force."""
    first = 0
    for at in range(1, len(batches) + 1):
        is_end = at == len(batches) or batches[at].begins_anew or batches[at].contracts is not batches[first].contracts
        if is_end:
            yield range(first, at)
            first = at


def longest_gap(
    batches: Sequence[Batch], waits: Sequence[Mapping[str, list[int]]], reign: range, name: str
) -> Sequence[int]:
    """Return the longest time in which a namespace waits and gets nothing, as positions of batches."""
    longest, gap = list[int](), list[int]()
    for at in reign:
        is_passed_over = name in waits[at] and not any(row.namespace == name for row in batches[at].admitted)
        gap = [*gap, at] if is_passed_over and name not in batches[at].held else []
        longest = gap if len(gap) > len(longest) else longest
    return longest


def _observed_bursts(batches: Sequence[Batch], names: Sequence[str]) -> dict[tuple[Key, int], int]:
    """Return what a scope may owe beside a message: a burst, if it ever only observed."""
    bursts: dict[tuple[Key, int], int] = defaultdict(int)
    observed = set[Key]()
    for contracts in {id(batch.contracts): batch.contracts for batch in batches}.values():
        for scope in {scope.key: scope for name in names for scope in contracts.of(name).scopes}.values():
            observed |= set() if scope.is_asked else {scope.key}
            for d, limit in enumerate(scope.limits):
                if limit is not None:
                    bursts[scope.key, d] = max(bursts[scope.key, d], limit.burst)
    return {at: burst for at, burst in bursts.items() if at[0] in observed}


@dataclass(frozen=True, slots=True)
class _Wait:
    """A time in which a namespace gets nothing."""

    batches: Sequence[Batch]
    names: Sequence[str]
    name: str
    left: Mapping[str, list[int]]
    """What waits after it."""

    largest: tuple[int, int]

    def is_over(self, bursts: Mapping[tuple[Key, int], int]) -> bool:
        """Return whether it should have ended by now."""
        own = self.batches[0].contracts.of(self.name)
        due_ms, earned_ms = 0.0, float("inf")
        for scope in own.enforced:
            for d, limit in enumerate(scope.limits):
                if limit is not None:
                    rate = min(batch.rate(scope.key, d, limit.rate) for batch in self.batches)
                    if not rate:
                        return False
                    due_ms += (self._needed(scope, d) + bursts.get((scope.key, d), 0)) / rate
                    earned_ms = min(earned_ms, self._earned_ms(limit))
        for scope in own.timed:
            assert scope.time is not None
            due_ms += (self._needed(scope, _TIME) + scope.time.burst) / max(1, scope.time.rate)
            earned_ms = min(earned_ms, self._earned_ms(scope.time))
        return earned_ms > due_ms

    def _earned_ms(self, limit: Limit) -> float:
        """Return for how long a scope earned: what has no room is lost."""
        full_ms = limit.burst // limit.rate if limit.rate else 0
        times = [batch.time_ms for batch in self.batches]
        return sum(min(max(0, after - before), full_ms) for before, after in itertools.pairwise(times))

    def _needed(self, scope: Scope, dimension: int) -> float:
        """Return what a scope gives until a turn is over: to the namespace, and to all that compete with it there."""
        contracts = self.batches[0].contracts
        within = [each for each in self.names if scope.key in {one.key for one in contracts.of(each).scopes}]
        ways = {each: way_of(each, contracts.of(each)) for each in within}
        weights = {node: w for each, way in ways.items() for node, w in weights_on(way, contracts.of(each)).items()}
        passed = costs_of(row for batch in self.batches for row in (*batch.admitted, *batch.rejected))

        def has(name: str) -> int:
            """Return what a rival had in that time."""
            some = [passed.get(name, (0, 0)), self.left.get(name, (0, 0))]
            if dimension == _TIME:
                return sum(each[0] for each in some) // MICRO * DEAREST_NS
            return sum(each[dimension] for each in some)

        largest = DEAREST_NS if dimension == _TIME else self.largest[dimension]
        needed = float((NAMESPACE_BOUND + 1) * largest)
        for depth in range(len(ways[self.name]), 0, -1):
            node = ways[self.name][:depth]
            rivals: dict[tuple[str, ...], int] = defaultdict(int)
            for each, way in ways.items():
                if way[: depth - 1] == node[:-1] and way[:depth] != node:
                    rivals[way[:depth]] += has(each)
            needed += sum(
                min(all_of_it, needed * weights[rival] / weights[node] + largest) for rival, all_of_it in rivals.items()
            )
        return needed + largest
