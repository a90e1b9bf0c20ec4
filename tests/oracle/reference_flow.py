"""The parts of the scalar oracle: a row, a shared scope and a flow with its buckets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spark_throttle.core.limits.budgets import CalendarWindows
from spark_throttle.core.measured_time import REMEMBERED_MS
from spark_throttle.core.quota import MICRO, MIN_BALANCE_MICRO, CompiledPolicy, Dimension
from tests.oracle.reference_bucket import (
    TokenBucket,
    name_hash,
    throttle_time_ms,
)
from tests.oracle.reference_budget import Budget, told
from tests.oracle.reference_rules import (
    DIMENSIONS,
    MOST,
    UNIT_MICRO,
    NamespaceRules,
    ScopeLimits,
    Tokens,
    pair,
    rules_of,
    tokens,
)
from tests.oracle.reference_state import FlowMemory, ScopeMemory, those_of


@dataclass(slots=True)
class Row:
    """A row of a flow."""

    index: int
    """Position among the batch's rows: the queue's, then the arrivals."""

    namespace: str
    size_bytes: int
    units: int
    arrival_ms: int
    release_ms: int
    is_arrival: bool
    time_ns: int
    """The processing time that it is estimated to take."""

    @property
    def tokens(self) -> Tokens:
        """The row's cost in tokens."""
        return (1, self.size_bytes, self.units, self.time_ns)


def total_tokens(rows: list[Row]) -> Tokens:
    """Return the total cost of `rows` in tokens."""
    return tokens([sum(row.tokens[d] for row in rows) for d in DIMENSIONS])


def debt_floor(
    limits: ScopeLimits, dimension: Dimension, balance_micro: int, burst_micro: int, *, is_marked: bool
) -> int:
    """Return the balance below which a message adds no more debt, given the burst of the bucket.

    A message that an observing scope marks adds no debt beyond a burst. A message larger than the scope's bound adds at
    most the debt of the largest message within the bound, or of a burst if that is more.
    """
    floor_micro = MIN_BALANCE_MICRO
    if is_marked:
        floor_micro = max(floor_micro, min(balance_micro, -max(burst_micro, 1)))
    if dimension in MOST and limits.is_observed and limits.largest[dimension] < MOST[dimension]:
        largest_micro = max(burst_micro, limits.largest[dimension] * MICRO)
        floor_micro = max(floor_micro, min(balance_micro, -largest_micro))
    return floor_micro


@dataclass(slots=True)
class Scope:
    """A shared scope and its buckets."""

    limits: ScopeLimits
    is_unleased: bool
    """Whether the job waits for a share of a quota that is not 0."""

    buckets: dict[Dimension, TokenBucket]
    """The buckets of the limited dimensions."""

    budgets: list[Budget]
    windows: CalendarWindows | None
    ends_by: dict[Dimension, int] = field(default_factory=dict)
    """What ends first in each dimension."""

    @classmethod
    def grown(
        cls, limits: ScopeLimits, memory: ScopeMemory, windows: CalendarWindows | None, *, elapsed_ms: int
    ) -> Scope:
        """Return the scope, refilled."""
        buckets = {d: memory.bucket(limits, d) for d in limits.limited_dimensions}
        for bucket in buckets.values():
            bucket.refill(elapsed_ms)
        share = memory.share_micro_per_ms
        is_unleased = share is not None and any(share[d] == 0 < limits.rate_micro_per_ms[d] for d in DIMENSIONS)
        budgets = limits.with_tallies(memory.tallies)
        return cls(limits, is_unleased, buckets, budgets, windows, ends_in(buckets, budgets))

    @property
    def is_enforced(self) -> bool:
        """Whether the scope can hold a row back."""
        return self.limits.is_enforced

    def overdrawn(self) -> Dimension | None:
        """Return the dimension that refuses the next row, messages first; `None` if none does."""
        return next((d for d in DIMENSIONS if _refuses(d, self.buckets, self.budgets)), None)

    def take(self, tokens: Tokens) -> None:
        """Subtract tokens, without an end to the debt."""
        for d, bucket in self.buckets.items():
            bucket.balance_micro -= tokens[d] * UNIT_MICRO[d]
        for budget in self.budgets:
            budget.take(tokens)

    def debit(self, tokens: Tokens, *, is_marked: bool) -> None:
        """Subtract `tokens`, into debt if the balances are less."""
        for d, bucket in self.buckets.items():
            floor_micro = debt_floor(self.limits, d, bucket.balance_micro, bucket.burst_micro, is_marked=is_marked)
            bucket.debit(tokens[d], unit_micro=UNIT_MICRO[d], floor_micro=floor_micro)
        for budget in self.budgets:
            budget.take(tokens)

    def throttle_time_ms(self, dimension: Dimension, now_ms: int) -> int:
        """Return how long a bucket repays its debt: at the job's share, or at the quota while the share is 0.

        If a budget is spent, it is the time until it begins anew, if that is longer.
        """
        wait_ms = _until_edge_ms(dimension, self.budgets, self.windows, now_ms)
        if dimension not in self.buckets:
            return wait_ms
        bucket = self.buckets[dimension]
        rate = bucket.rate_micro_per_ms or self.limits.rate_micro_per_ms[dimension]
        return max(wait_ms, throttle_time_ms(bucket.balance_micro, rate))

    def memory(self, before: ScopeMemory) -> ScopeMemory:
        """Return what is stored of the scope."""
        left = tokens([self.buckets[d].balance_micro if d in self.buckets else 0 for d in DIMENSIONS])
        return replace(before, balance_micro=left, tallies=those_of(self.limits, [each.tally for each in self.budgets]))


def ends_in(buckets: dict[Dimension, TokenBucket], budgets: list[Budget]) -> dict[Dimension, int]:
    """Return what ends first in each dimension."""
    held = {d: bucket.balance_micro for d, bucket in buckets.items()}
    return {d: told(d, held.get(d), UNIT_MICRO[d], budgets) for d in DIMENSIONS}


def _refuses(dimension: Dimension, buckets: dict[Dimension, TokenBucket], budgets: list[Budget]) -> bool:
    is_in_debt = dimension in buckets and buckets[dimension].balance_micro < 0
    return is_in_debt or any(each.is_spent for each in budgets if each.dimension == dimension)


def _until_edge_ms(dimension: Dimension, budgets: list[Budget], windows: CalendarWindows | None, now_ms: int) -> int:
    return max((each.wait_ms(windows, now_ms) for each in budgets if each.dimension == dimension), default=0)


@dataclass(slots=True)
class Flow:
    """A namespace in a batch: its stored state, its rows, and how far they have been decided."""

    name: str
    rules: NamespaceRules
    buckets: dict[Dimension, TokenBucket]
    """The buckets of the limited dimensions."""

    lacks: dict[Dimension, TokenBucket]
    """For each of them, how much less than full is the largest bucket that it was since it was last full."""

    window_second: int
    window_units: list[int]

    rows: list[Row] = field(default_factory=list)
    """The queued rows that are not too old, then the arrivals that Pegasus' rules did not reject."""

    eligible: int = 0
    """Number of leading `rows` that neither a release time nor the namespace's own buckets hold back."""

    is_held: bool = False
    """Whether the first row that is not eligible waits for its release."""

    admitted: int = 0
    """Number of leading `rows` that are admitted."""

    price_ns: int = 0
    priced_ms: int = 0

    budgets: list[Budget] = field(default_factory=list)
    windows: CalendarWindows | None = None
    ends_by: dict[Dimension, int] = field(default_factory=dict)
    """What ends first in each dimension."""

    blocked_by: Scope | None = None
    """The narrowest shared scope that is overdrawn after the batch, if not all eligible rows are admitted."""

    @classmethod
    def remembered(
        cls,
        policy: CompiledPolicy,
        name: str,
        memory: FlowMemory | None,
        windows: CalendarWindows | None = None,
        *,
        elapsed_ms: int,
    ) -> Flow:
        """Return the flow of a namespace, refilled; without memory it starts with full buckets."""
        rules = rules_of(policy, name)
        flow = cls(name, rules, {}, {}, 0, [0, 0])
        for d in rules.limits.limited_dimensions:
            bucket = TokenBucket.full(rules.limits.rate_micro_per_ms[d], rules.limits.burst_micro[d])
            lacks = TokenBucket(bucket.rate_micro_per_ms, 0, 0)
            if memory is not None:
                lacks.balance_micro = memory.balance_micro[d] - bucket.full_micro - memory.cut_micro[d]
                bucket.balance_micro = memory.balance_micro[d]
                bucket.refill(elapsed_ms)
                lacks.earn(elapsed_ms)
            flow.buckets[d], flow.lacks[d] = bucket, lacks
        if memory is not None:
            flow.window_second = memory.window_second
            flow.window_units = list(memory.window_units)
            flow.price_ns, flow.priced_ms = memory.price_ns, memory.priced_ms
        flow.windows, flow.budgets = windows, rules.limits.with_tallies(() if memory is None else memory.tallies)
        flow.ends_by = ends_in(flow.buckets, flow.budgets)
        return flow

    @property
    def limits(self) -> ScopeLimits:
        """The namespace's own limits."""
        return self.rules.limits

    def overdrawn(self) -> Dimension | None:
        """Return the dimension in which the namespace refuses the next row, messages first; `None` if none does."""
        return next((d for d in DIMENSIONS if _refuses(d, self.buckets, self.budgets)), None)

    @property
    def is_enforced(self) -> bool:
        """Whether the namespace's own limits can hold a row back."""
        return self.limits.is_enforced

    def throttle_time_ms(self, dimension: Dimension, now_ms: int) -> int:
        """Return how long the namespace's own rate takes to repay the debt, or until a spent budget begins anew."""
        wait_ms = _until_edge_ms(dimension, self.budgets, self.windows, now_ms)
        return max(wait_ms, self.buckets[dimension].throttle_time_ms()) if dimension in self.buckets else wait_ms

    def debit(self, tokens: Tokens, *, is_marked: bool) -> None:
        """Subtract `tokens`, into debt if the balances are less."""
        for d, bucket in self.buckets.items():
            floor_micro = debt_floor(self.limits, d, bucket.balance_micro, bucket.burst_micro, is_marked=is_marked)
            before_micro = bucket.balance_micro
            bucket.debit(tokens[d], unit_micro=UNIT_MICRO[d], floor_micro=floor_micro)
            self.lacks[d].balance_micro -= before_micro - bucket.balance_micro
        for budget in self.budgets:
            budget.take(tokens)

    def tie(self, now_ms: int) -> tuple[int, int]:
        """Return the order at equal tags: the longest wait first, then a hash that prefers no spelling for long."""
        return self.rows[0].arrival_ms, name_hash(self.name, now_ms)

    def find_eligible(self, now_ms: int) -> None:
        """Count the rows before the first that must wait for its release or for the namespace's own buckets."""
        balance_micro = {d: bucket.balance_micro for d, bucket in self.buckets.items()}
        budgets = [replace(each) for each in self.budgets]
        for row in self.rows:
            if row.release_ms > now_ms:
                self.is_held = True
                return
            if self.limits.is_enforced and (
                any(balance < 0 for balance in balance_micro.values()) or any(each.is_spent for each in budgets)
            ):
                return
            for d in balance_micro:
                balance_micro[d] -= row.tokens[d] * UNIT_MICRO[d]
            for budget in budgets:
                budget.take(row.tokens)
            self.eligible += 1

    def has_memory(self, now_ms: int, *, has_time: bool) -> bool:
        """Return whether a later batch might be decided differently if a flow without waiting rows were forgotten."""
        counts_this_second = self.window_second == now_ms // 1000 and self.window_units != [0, 0]
        is_full = not any(each.balance_micro for each in self.lacks.values())
        is_priced = has_time and self.priced_ms > 0 and now_ms - self.priced_ms <= REMEMBERED_MS
        has_used = any(each.tally.used for each in self.budgets)
        return not is_full or counts_this_second or is_priced or has_used

    def memory(self, now_ms: int) -> FlowMemory:
        """Return what is stored of the flow."""
        balance_micro = [self.buckets[d].balance_micro if d in self.buckets else 0 for d in DIMENSIONS]
        cut_micro = [
            bucket.balance_micro - bucket.full_micro - self.lacks[d].balance_micro if bucket else 0
            for d, bucket in ((d, self.buckets.get(d)) for d in DIMENSIONS)
        ]
        memory = FlowMemory(
            tokens(balance_micro),
            tokens(cut_micro),
            self.window_second,
            pair(self.window_units),
            self.price_ns,
            self.priced_ms,
            tuple(each.tally for each in self.budgets),
        )
        return memory.meaningful(self.rules, second=now_ms // 1000)
