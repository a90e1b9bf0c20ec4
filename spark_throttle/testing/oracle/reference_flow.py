"""The parts of the scalar oracle: a row, a shared scope and a flow with its buckets."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spark_throttle.core.quota import MAX_SIZE_BYTES, MICRO, MIN_BALANCE_MICRO, CompiledPolicy, Dimension
from spark_throttle.testing.oracle.reference_bucket import (
    TokenBucket,
    name_hash,
    throttle_time_ms,
)
from spark_throttle.testing.oracle.reference_rules import (
    DIMENSIONS,
    NamespaceRules,
    Pair,
    ScopeLimits,
    pair,
    rules_of,
)
from spark_throttle.testing.oracle.reference_state import FlowMemory, ScopeMemory, TimeBucket


@dataclass(slots=True)
class Row:
    """A row of a flow."""

    index: int
    """Position among the batch's rows: the queue's, then the arrivals."""

    namespace: str
    size_bytes: int
    arrival_ms: int
    release_ms: int
    is_arrival: bool

    @property
    def tokens(self) -> Pair:
        """The row's cost in tokens."""
        return (1, self.size_bytes)


def total_tokens(rows: list[Row]) -> Pair:
    """Return the total cost of `rows` in tokens."""
    return len(rows), sum(row.size_bytes for row in rows)


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
    if dimension == Dimension.BYTES and limits.is_observed and limits.max_message_bytes < MAX_SIZE_BYTES:
        largest_micro = max(burst_micro, limits.max_message_bytes * MICRO)
        floor_micro = max(floor_micro, min(balance_micro, -largest_micro))
    return floor_micro


@dataclass(slots=True)
class Scope:
    """A shared scope and its buckets: what it has in each dimension, and the bucket of messages that its time fills."""

    quota: ScopeLimits
    limits: ScopeLimits
    """The quota, with the lower of the rates of messages and of time in the place of messages."""

    share_micro_per_ms: Pair | None
    is_unleased: bool
    """Whether the job waits for a share of a quota that is not 0."""

    own: dict[Dimension, TokenBucket]
    time: TokenBucket | None
    balance_micro: list[int]
    """What the scope lets through: the stricter of messages and time, and bytes."""

    is_by_time: bool = False
    """Whether time lets less through than the scope's own limit on messages when the batch begins."""

    @classmethod
    def grown(cls, quota: ScopeLimits, limits: ScopeLimits, memory: ScopeMemory, *, elapsed_ms: int) -> Scope:
        """Return the scope, refilled."""
        own = {d: memory.bucket(quota, d) for d in quota.limited_dimensions}
        time = None if memory.time is None else TokenBucket(*memory.time)
        for bucket in own.values():
            bucket.refill(elapsed_ms)
        if time is not None and not memory.is_time_unleased:  # without a share, time earns nothing
            time.refill(elapsed_ms)
        is_shut = [
            memory.share_micro_per_ms is not None and memory.share_micro_per_ms[d] == 0 < quota.rate_micro_per_ms[d]
            for d in DIMENSIONS
        ]
        is_unleased = any(is_shut) or (memory.share_micro_per_ms is not None and memory.is_time_unleased)
        scope = cls(quota, limits, memory.share_micro_per_ms, is_unleased, own, time, [0, 0])
        for d, bucket in own.items():
            scope.balance_micro[d] = bucket.balance_micro
        if time is not None:
            scope.balance_micro[0], scope.is_by_time = stricter_micro(time, own.get(Dimension.MESSAGES))
        return scope

    @property
    def is_enforced(self) -> bool:
        """Whether the scope can hold a row back."""
        return self.limits.is_enforced

    @property
    def limited_dimensions(self) -> list[Dimension]:
        """The dimensions in which the scope has a limit."""
        return self.limits.limited_dimensions

    def overdrawn(self) -> Dimension | None:
        """Return the dimension that refuses the next row, messages first; `None` if neither does."""
        return next((d for d in self.limits.limited_dimensions if self.balance_micro[d] < 0), None)

    def room(self, dimension: Dimension) -> int:
        """Return the tokens that rows may take; the last message may overdraw the scope. -1 while it owes any."""
        if self.balance_micro[dimension] < 0:
            return 0 if dimension == Dimension.MESSAGES else -1
        return self.balance_micro[dimension] // MICRO + (dimension == Dimension.MESSAGES)

    def lacks(self, wanted: Pair) -> bool:
        """Return whether the scope cannot serve all of `wanted`."""
        if not wanted[0] or not self.limits.is_enforced:
            return False
        return any(wanted[d] > self.room(d) for d in self.limits.limited_dimensions)

    def debit(self, tokens: Pair, *, is_marked: bool) -> None:
        """Subtract `tokens`, into debt if the balances are less."""
        for d in self.limits.limited_dimensions:
            burst_micro = self.own[d].burst_micro if d in self.own else self.limits.burst_micro[d]
            floor_micro = debt_floor(self.limits, d, self.balance_micro[d], burst_micro, is_marked=is_marked)
            self.balance_micro[d] = max(self.balance_micro[d] - tokens[d] * MICRO, floor_micro)
        for d, bucket in self.own.items():
            floor_micro = debt_floor(self.quota, d, bucket.balance_micro, bucket.burst_micro, is_marked=is_marked)
            bucket.debit(tokens[d], floor_micro=floor_micro)
        if self.time is not None:
            self.time.debit(tokens[0])

    def throttle_time_ms(self, dimension: Dimension) -> int:
        """Return how long the buckets repay their debts: at the job's shares, or at the quota while a share is 0."""
        found = [0]
        if dimension in self.own:
            rate = self.own[dimension].rate_micro_per_ms or self.quota.rate_micro_per_ms[dimension]
            found.append(throttle_time_ms(self.own[dimension].balance_micro, rate))
        if dimension == Dimension.MESSAGES and self.time is not None:
            found.append(self.time.throttle_time_ms())
        return max(found)

    def memory(self, before: ScopeMemory) -> ScopeMemory:
        """Return what is stored of the scope."""
        left = pair([self.own[d].balance_micro if d in self.own else 0 for d in DIMENSIONS])
        time: TimeBucket | None = None
        if self.time is not None:
            time = (self.time.rate_micro_per_ms, self.time.burst_micro, self.time.balance_micro)
        return replace(before, balance_micro=left, time=time)


def stricter_micro(time: TokenBucket, own: TokenBucket | None) -> tuple[int, bool]:
    """Return the balance of messages that two buckets let through together, and whether it is by time.

    The one that waits longer counts, or the one that holds less; its debt is told at the lower of the two rates.
    """
    if own is None:
        return time.balance_micro, True
    time_ms, own_ms = time.throttle_time_ms(), own.throttle_time_ms()
    is_by_time = time_ms > own_ms or (time_ms == own_ms and time.balance_micro < own.balance_micro)
    chosen = time if is_by_time else own
    rate = min(time.rate_micro_per_ms, own.rate_micro_per_ms)
    if rate == 0:
        return min(chosen.balance_micro, -1), is_by_time
    if chosen.balance_micro < 0 and chosen.rate_micro_per_ms != rate:
        return -chosen.throttle_time_ms() * rate, is_by_time
    return min(chosen.balance_micro, time.burst_micro, own.burst_micro), is_by_time


@dataclass(slots=True)
class Flow:
    """A namespace in a batch: its stored state, its rows, and how far they have been decided."""

    name: str
    rules: NamespaceRules
    buckets: dict[Dimension, TokenBucket]
    """The buckets of the limited dimensions."""

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

    time: TokenBucket | None = None
    """What the namespace's processing time lets through, in messages; `None` if it lets everything through."""

    is_by_time: bool = False
    """Whether the time lets less through than the namespace's own limit on messages when the batch begins."""

    blocked_by: Scope | None = None
    """The narrowest shared scope that is overdrawn after the batch, if not all eligible rows are admitted."""

    @classmethod
    def remembered(
        cls,
        policy: CompiledPolicy,
        name: str,
        memory: FlowMemory | None,
        *,
        elapsed_ms: int,
        time: TokenBucket | None = None,
    ) -> Flow:
        """Return the flow of a namespace, refilled; without memory it starts with full buckets."""
        rules = rules_of(policy, name)
        flow = cls(name, rules, {}, 0, [0, 0])
        for d in rules.limits.limited_dimensions:
            bucket = TokenBucket.full(rules.limits.rate_micro_per_ms[d], rules.limits.burst_micro[d])
            if memory is not None:
                bucket.balance_micro = memory.balance_micro[d]
                bucket.refill(elapsed_ms)
            flow.buckets[d] = bucket
        if memory is not None:
            flow.window_second = memory.window_second
            flow.window_units = list(memory.window_units)
        flow.time = TokenBucket.full(0, 0) if flow.limits.is_shut_by_time else time
        own = flow.buckets.get(Dimension.MESSAGES)
        if flow.time is not None:
            order = [(-each.throttle_time_ms(), each.balance_micro) for each in (flow.time, own) if each is not None]
            flow.is_by_time = own is None or order[0] < order[1]
        return flow

    @property
    def limits(self) -> ScopeLimits:
        """The namespace's own limits."""
        return self.rules.limits

    def overdrawn(self) -> Dimension | None:
        """Return the dimension in which the namespace refuses the next row, messages and time first; or `None`."""
        if self.time is not None and not self.time.admits():
            return Dimension.MESSAGES
        return next((d for d in DIMENSIONS if d in self.buckets and not self.buckets[d].admits()), None)

    @property
    def is_enforced(self) -> bool:
        """Whether the namespace's own limits can hold a row back."""
        return self.limits.is_enforced or self.time is not None

    @property
    def limited_dimensions(self) -> list[Dimension]:
        """The dimensions in which the namespace itself has a limit."""
        return [d for d in DIMENSIONS if d in self.buckets or (d == Dimension.MESSAGES and self.time is not None)]

    def throttle_time_ms(self, dimension: Dimension) -> int:
        """Return how long the namespace's own rates take to repay the debts."""
        is_messages = dimension == Dimension.MESSAGES
        owing = [self.buckets.get(dimension), self.time if is_messages else None]
        return max(bucket.throttle_time_ms() for bucket in owing if bucket is not None)

    def debit(self, tokens: Pair, *, is_marked: bool) -> None:
        """Subtract `tokens`, into debt if the balances are less."""
        if self.time is not None:
            self.time.debit(tokens[Dimension.MESSAGES])
        for d, bucket in self.buckets.items():
            bucket.debit(
                tokens[d],
                floor_micro=debt_floor(self.limits, d, bucket.balance_micro, bucket.burst_micro, is_marked=is_marked),
            )

    @property
    def tie(self) -> tuple[int, int]:
        """The order at equal tags: the longest wait first, then a hash that prefers no spelling."""
        return self.rows[0].arrival_ms, name_hash(self.name)

    def find_eligible(self, now_ms: int) -> None:
        """Count the rows before the first that must wait for its release or for the namespace's own buckets."""
        balance_micro = {d: bucket.balance_micro for d, bucket in self.buckets.items()}
        for row in self.rows:
            if row.release_ms > now_ms:
                self.is_held = True
                return
            if self.limits.is_enforced and any(balance < 0 for balance in balance_micro.values()):
                return
            if self.time is not None and self.time.balance_micro < self.eligible * MICRO:
                return
            for d in balance_micro:
                balance_micro[d] -= row.tokens[d] * MICRO
            self.eligible += 1

    def has_memory(self, now_ms: int) -> bool:
        """Return whether a later batch might be decided differently if a flow without waiting rows were forgotten."""
        counts_this_second = self.window_second == now_ms // 1000 and self.window_units != [0, 0]
        is_full = all(bucket.is_full for bucket in self.buckets.values())
        return not is_full or counts_this_second

    def memory(self, now_ms: int) -> FlowMemory:
        """Return what is stored of the flow."""
        balance_micro = [self.buckets[d].balance_micro if d in self.buckets else 0 for d in DIMENSIONS]
        memory = FlowMemory(pair(balance_micro), self.window_second, pair(self.window_units))
        return memory.meaningful(self.rules, second=now_ms // 1000)
