"""What a policy promises beside rates, counted in the tables: budgets and guarantees.

A budget holds in each window of the calendar while it is in force: what was admitted since the window began, with what
was exceeded in the window before, is less than the budget before the last row. Which windows these are, the job says.

A guarantee holds while rows of its scope wait that nothing but the scopes above it can hold: in any such time the scope
has its rate in one dimension at least, less two of the largest messages, and one for each other guarantee.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.audit.books import DIMENSIONS, Batch, Queue, costs_of
from tests.life.account import Account
from tests.life.contract import MICRO, Contract, Key, Scope, above_of, holds_ms, is_inside

_PERIODS: Final = ("hour", "day", "month")
_MOST_OWED: Final = 2
"""What scopes above may owe, in the largest messages: while they repay more, nothing is guaranteed."""


@dataclass(slots=True)
class Promised:
    """What an audit looked at of budgets and guarantees."""

    ended: set[tuple[int, str]] = field(default_factory=set)
    """The windows that ended while a budget was in force: the batch that began the next one, and the period."""

    rows: int = 0
    """Rows that were counted in budgets that hold rows back, once for each."""

    spent: Counter[tuple[Key, str, int]] = field(default_factory=Counter)
    """The batches in which nothing was left of a budget, by its scope, its key, and the window."""

    compared: int = 0
    """Scopes that were compared with what they are guaranteed, in each batch."""


@dataclass(slots=True)
class _Use:
    """What a scope used of a budget in a window."""

    window: int
    most: int
    used: int = 0
    over: int = 0
    """What is taken off the next window."""

    def begin(self, window: int) -> None:
        """Begin a window: what was exceeded is taken off it, by a whole budget in each that passed."""
        self.used = max(0, self.over - self.most * (window - self.window - 1))
        self.window, self.over = window, max(0, self.used - self.most)

    def change(self, most: int) -> None:
        """Let another budget come into force: what was used counts."""
        self.most, self.over = most, min(self.over, max(0, self.used - most))

    def charge(self, tokens: int, *, is_asked: bool) -> None:
        """Count what rows took; what only observes takes nothing off the next window."""
        self.used += tokens
        self.over = max(0, self.used - self.most) if is_asked else 0


def budgets(batches: Sequence[Batch], done: Promised) -> Iterator[str]:
    """Yield the scopes that admitted more in a window than their budget, and less than a message."""
    uses: dict[tuple[Key, str], _Use] = {}
    names = sorted({row.namespace for batch in batches for row in batch.admitted})
    for batch in batches:
        if batch.begins_anew or batch.windows is None:
            uses.clear()  # what has no budget has used nothing of the next
        if batch.windows is None:
            continue
        scopes = {scope.key: scope for name in names for scope in batch.contracts.of(name).scopes}
        in_force = {(scope.key, key): most for scope in scopes.values() for key, most in scope.budgets}
        uses = {at: use for at, use in uses.items() if at in in_force}
        taken = _taken(batch)
        for at, most in in_force.items():
            period = at[1].rpartition("_")[2]
            window = batch.windows[_PERIODS.index(period)]
            use = uses.setdefault(at, _Use(window, most))
            if window != use.window:
                done.ended.add((batch.number, period))
                use.begin(window)
            use.change(most)
            yield from _charge(batch, scopes[at[0]], at[1], use, taken.get(at, []), done)


def _taken(batch: Batch) -> dict[tuple[Key, str], list[int]]:
    """Return what each admitted row took of the budgets of its scopes."""
    taken: dict[tuple[Key, str], list[int]] = defaultdict(list)
    for row in batch.admitted:
        for scope in batch.contracts.of(row.namespace).scopes:
            for key, _ in scope.budgets:
                taken[scope.key, key].append(1 if key.startswith("messages") else row.size_bytes)
    return taken


def _charge(batch: Batch, scope: Scope, key: str, use: _Use, rows: list[int], done: Promised) -> Iterator[str]:
    """Charge a batch, and yield what it admitted too much."""
    tokens, before = sum(rows), use.used
    if scope.is_asked and tokens:
        done.rows += len(rows)
        if before + tokens - max(rows) >= use.most:
            yield (
                f"{scope.key[0]} {scope.key[1]!r} admitted {tokens} in batch {batch.number}, after {before} in this "
                f"window, and {key} is {use.most}"
            )
    if tokens:
        use.charge(tokens, is_asked=scope.is_asked)
    if scope.is_asked and use.used >= use.most:
        done.spent[scope.key, key, use.window] += 1


def guarantees(batches: Sequence[Batch], done: Promised) -> Iterator[str]:
    """Yield the scopes that have less than they are guaranteed, once each time that one policy is in force."""
    account, queue, told = Account(), Queue(), set[Key]()
    largest, lacks = [MICRO, MICRO], dict[Key, list[list[int]]]()
    for batch, before in zip(batches, (None, *batches), strict=False):
        contracts, waited = batch.contracts, {*queue.rows}
        queue.count(batch)
        largest[1] = max(largest[1], *(MICRO * row.size_bytes for row in batch.arrived), 0)
        if batch.begins_anew:
            account.forget()
        account.advance(contracts, {*queue.rows, *(row.namespace for row in batch.admitted)}, at_ms=batch.time_ms)
        account.debit(contracts, batch)
        is_first = before is None or batch.begins_anew or contracts is not before.contracts
        if before is None or is_first or batch.shares is not None:
            lacks.clear()
            told.clear()
            continue
        served = costs_of(batch.admitted)
        ways = {name: contracts.of(name) for name in {*queue.rows, *served}}
        waits = queue.rows.keys() & waited - batch.held
        for scope in contracts.guaranteed:
            inside = [name for name, way in ways.items() if is_inside(scope, way, contracts)]
            behind = [name for name in inside if name in waits and _may_go(scope, ways[name])]
            above = above_of(scope, ways[behind[0]]) if behind else []
            # Of what none of them limits nothing is guaranteed.
            rates = [rate if any(each.limits[d] for each in above) else None for d, rate in enumerate(scope.guaranteed)]
            if not behind or all(rate is None for rate in rates) or _owes(account, above, largest):
                lacks.pop(scope.key, None)
                continue
            done.compared += 1
            passed_ms = min(max(0, batch.time_ms - before.time_ms), *(holds_ms(each) for each in (scope, *above)))
            times = [*lacks.get(scope.key, []), [0, 0]]
            lacks[scope.key] = times
            for d, rate in enumerate(rates):
                for lack in times:
                    lack[d] += (rate or 0) * passed_ms - sum(served.get(name, (0, 0))[d] for name in inside)
            messages = 1 + len(contracts.guaranteed)
            limited = [d for d, rate in enumerate(rates) if rate is not None]
            worst = max(min((lack[d] - messages * largest[d], d) for d in limited) for lack in times)
            if worst[0] > 0 and scope.key not in told:
                told.add(scope.key)
                yield (
                    f"{scope.key[0]} {scope.key[1]!r} is behind what it is guaranteed by {worst[0] / MICRO:g} "
                    f"{DIMENSIONS[worst[1]]} more than {messages} of the largest messages in batch {batch.number}"
                )


def _may_go(scope: Scope, way: Contract) -> bool:
    """Return whether nothing but the scopes above one may hold the rows of a namespace."""
    above = above_of(scope, way)
    return bool(above) and not way.timed and not way.has_rules and all(each in above for each in way.enforced)


def _owes(account: Account, above: Sequence[Scope], largest: Sequence[int]) -> bool:
    return any(
        account.shadows[scope.key, d].least < -_MOST_OWED * largest[d]
        for scope in above
        for d, limit in enumerate(scope.limits)
        if limit is not None
    )
