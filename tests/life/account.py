"""Shadow buckets: between what two balances each bucket of the job must stand, by the laws and by true time.

`most` starts full, is paid the better of the rates in force, and is cut to the burst in force: what is admitted may
never overdraw it by more than a message. `least` is paid the worse of them, and
owes what the laws let a scope owe: while it is not negative, the scope has tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tests.life.contract import MICRO, Contracts, Key, Limit, Scope, text_of

if TYPE_CHECKING:
    from spark_throttle.testing.simulation.query import SimulatedBatch
    from spark_throttle.testing.simulation.rows import Row
    from tests.audit.books import Batch
    from tests.audit.books import Row as AuditedRow

DIMENSIONS: Final = ("messages", "bytes")
_UNKNOWN: Final = -(10**30)


def cost_of(row: Row | AuditedRow, dimension: int) -> int:
    """Return what a row takes of a bucket, in micro-tokens."""
    return MICRO * (1 if dimension == 0 else row.size_bytes or 0)


def costs_of(contracts: Contracts, rows: Iterable[Row | AuditedRow]) -> dict[tuple[Key, int], int]:
    """Return what rows take of each scope, in the dimensions that it limits."""
    costs: dict[tuple[Key, int], int] = defaultdict(int)
    for row in rows:
        for scope in contracts.of(text_of(row.namespace)).scopes:
            for dimension, limit in enumerate(scope.limits):
                if limit is not None:
                    costs[scope.key, dimension] += cost_of(row, dimension)
    return costs


@dataclass(slots=True)
class Shadow:
    """The shadow of one bucket."""

    limit: Limit
    is_enforced: bool
    most: int
    least: int
    paid_at_ms: int
    """True time to which both are paid: that of the last batch."""

    lacks: int = 0
    """What the largest bucket that it was since it was surely full lacks at least."""

    idle: int = 0
    """What `least` has earned since then."""

    overdraft: int = 0
    """Largest cost of a message of the last batch that admitted something here."""

    was_used: bool = False
    """Whether the last batch admitted something here; one that did not may still be in debt for an earlier one."""

    @classmethod
    def full(cls, limit: Limit, *, is_enforced: bool, at_ms: int) -> Shadow:
        """Return the shadow of a new bucket."""
        return cls(limit, is_enforced, limit.burst, limit.burst, at_ms)

    def wait(self, *, at_ms: int, unpaid_ms: int) -> None:
        """Let time pass in which no batch runs: the next one may have it, unless a clock takes it away before.

        Parameters
        ----------
        unpaid_ms
            Time that the job could not see pass, for its wall clock was set back meanwhile.
        """
        earned = self.limit.rate * max(0, at_ms - self.paid_at_ms - unpaid_ms)
        self.idle = min(earned, self.limit.burst - self.least)

    @property
    def left(self) -> int:
        """What it surely has now."""
        return self.least + self.idle

    def advance(
        self,
        limit: Limit,
        *,
        is_enforced: bool,
        at_ms: int,
        unpaid_ms: int,
        spent: int = 0,
        overpaid_ms: int = 0,
        may_be_forgotten: bool = False,
    ) -> None:
        """Bring it to a batch, and to the limit in force there.

        Parameters
        ----------
        may_be_forgotten
            Whether it is not remembered once the largest bucket since it was full is full too: under another limit it
            is full again.
        spent
            What other jobs took meanwhile.
        overpaid_ms
            Time that never was, and may be paid.
        """
        before = self.limit
        better, worse = max(before.rate, limit.rate), min(before.rate, limit.rate)
        earned = better * (at_ms - self.paid_at_ms + overpaid_ms) - spent
        self.lacks = max(0, self.lacks - earned)
        is_forgotten = may_be_forgotten and not self.lacks
        self.most = limit.burst if is_forgotten else min(self.most + earned, limit.burst)
        least = self.least + worse * max(0, at_ms - self.paid_at_ms - unpaid_ms)
        self.least = min(least, before.burst, limit.burst)
        if is_enforced and not self.is_enforced:
            # What an observing scope was overdrawn by is no debt: it owes one burst at most.
            self.most, self.least, self.lacks = limit.burst, -limit.burst, 0
        self.limit, self.is_enforced, self.paid_at_ms, self.idle = limit, is_enforced, at_ms, 0


class Account:
    """The shadows of all scopes of a job."""

    def __init__(self) -> None:
        self.shadows: dict[tuple[Key, int], Shadow] = {}
        self._is_known = True
        self._names: set[str] = set()
        self._spent: dict[tuple[Key, int], int] = {}

    def forget(self) -> None:
        """Know no more than that no bucket holds more than its burst: what is unknown counts as used."""
        self._is_known = False
        for shadow in self.shadows.values():
            shadow.most, shadow.least, shadow.lacks, shadow.idle = shadow.limit.burst, _UNKNOWN, 0, 0

    def wait(self, *, at_ms: int, unpaid_ms: int) -> None:
        """Let time pass in which no batch runs."""
        for shadow in self.shadows.values():
            shadow.wait(at_ms=at_ms, unpaid_ms=unpaid_ms)

    def advance(
        self,
        contracts: Contracts,
        names: Iterable[str],
        *,
        at_ms: int,
        unpaid_ms: int = 0,
        overpaid_ms: int = 0,
        spent: Mapping[tuple[Key, int], int] | None = None,
    ) -> None:
        """Bring all shadows to a time and a policy.

        Parameters
        ----------
        names
            Namespaces that are seen there.
        unpaid_ms
            Time that the job could not see pass.
        overpaid_ms
            Time that it could not tell from time that passed.
        spent
            What other jobs have spent of the scopes that are shared with them, since they began.
        """
        self._names.update(names)
        before, self._spent = self._spent, dict(spent or {})
        taken = {at: total - before.get(at, total) for at, total in self._spent.items()}
        scopes = {scope.key: scope for scope in contracts.shared}
        scopes |= {scope.key: scope for name in self._names for scope in contracts.of(name).scopes}
        for key, dimension in list(self.shadows):
            scope = scopes.get(key)
            if scope is None or scope.limits[dimension] is None:
                del self.shadows[key, dimension]  # what has no limit starts full when it gets one
        for scope in scopes.values():
            for dimension, limit in enumerate(scope.limits):
                if limit is not None:
                    spent_here = taken.get((scope.key, dimension), 0)
                    self._one(scope, dimension, limit, at_ms, unpaid_ms, overpaid_ms, spent_here)

    def share(self, *, is_settled: bool) -> None:
        """Know no more of what is shared than that others may have all of it, and that a new quota is on its way.

        Parameters
        ----------
        is_settled
            Whether all have had the time to take up the quotas in force.
        """
        for (key, _), shadow in self.shadows.items():
            if key[0] in ("tenant", "group"):
                shadow.least = _UNKNOWN
                if not is_settled:
                    shadow.most = shadow.limit.burst

    def _one(
        self, scope: Scope, dimension: int, limit: Limit, at_ms: int, unpaid_ms: int, overpaid_ms: int, spent: int
    ) -> None:
        shadow = self.shadows.get((scope.key, dimension))
        is_enforced = scope.on_excess != "observe"
        if shadow is None:
            shadow = self.shadows[scope.key, dimension] = Shadow.full(limit, is_enforced=is_enforced, at_ms=at_ms)
            shadow.least = limit.burst if self._is_known else _UNKNOWN
        else:
            shadow.advance(
                limit,
                is_enforced=is_enforced,
                at_ms=at_ms,
                unpaid_ms=unpaid_ms,
                spent=spent,
                overpaid_ms=overpaid_ms,
                may_be_forgotten=scope.key[0] == "namespace",
            )

    def correct(self, contracts: Contracts, owed: Iterable[tuple[str, int, Collection[Key]]]) -> None:
        """Charge what rows that left before cost more than the estimate, and give back what they cost less."""
        for name, units, lost in owed:
            for scope in contracts.of(name).scopes:
                shadow = self.shadows.get((scope.key, 1))
                if shadow is not None and scope.key not in lost:
                    shadow.most -= MICRO * units
                    shadow.lacks = max(0, shadow.lacks + MICRO * units)
                    shadow.least -= MICRO * units

    def debit(self, contracts: Contracts, batch: SimulatedBatch | Batch) -> None:
        """Take what a batch admitted."""
        for shadow in self.shadows.values():
            shadow.was_used = False
        largest: dict[tuple[Key, int], int] = defaultdict(int)
        for row in batch.admitted:
            for scope in contracts.of(text_of(row.namespace)).scopes:
                for dimension in (0, 1):
                    if scope.limits[dimension] is not None:
                        at = scope.key, dimension
                        largest[at] = max(largest[at], cost_of(row, dimension))
        for (key, dimension), cost in costs_of(contracts, batch.admitted).items():
            shadow = self.shadows[key, dimension]
            shadow.was_used = True
            shadow.most -= cost
            shadow.lacks += cost
            shadow.least -= cost
            shadow.overdraft = largest[key, dimension]

    def has_tokens(
        self, contracts: Contracts, name: str, *, beside: Key | None = None, left: tuple[int, int] = (0, 0)
    ) -> bool:
        """Return whether every scope that can stop a namespace, but one, surely lets one more message pass.

        Parameters
        ----------
        left
            What each of them has at least when that message comes, in micro-tokens by dimension.
        """
        return all(self._has_tokens(scope, left) for scope in contracts.of(name).enforced if scope.key != beside)

    def has_own_tokens(self, contracts: Contracts, name: str) -> bool:
        """Return whether the limits of a namespace's own surely let one more message pass."""
        return all(self._has_tokens(scope) for scope in contracts.of(name).enforced if scope.key[0] == "namespace")

    def _has_tokens(self, scope: Scope, left: tuple[int, int] = (0, 0)) -> bool:
        return all(
            limit is None or (limit.rate > 0 and self.shadows[scope.key, dimension].left >= left[dimension])
            for dimension, limit in enumerate(scope.limits)
        )
