"""The parts of the scalar oracle: a row, a shared scope with its grant, and a flow with its buckets."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_throttle.core.quota import MAX_SIZE_BYTES, MICRO, MIN_BALANCE_MICRO, NEVER_MS, CompiledPolicy, Dimension
from spark_throttle.core.state import NO_BOUND, NO_CONTEST
from spark_throttle.testing.oracle.reference_bucket import (
    TokenBucket,
    milli_tokens_in,
    name_hash,
    throttle_time_ms,
    virtual_time,
    virtual_time_up,
)
from spark_throttle.testing.oracle.reference_rules import (
    DIMENSIONS,
    NamespaceRules,
    Pair,
    ScopeLimits,
    common_rates,
    pair,
    proportional,
    rules_of,
)
from spark_throttle.testing.oracle.reference_state import FlowMemory, GrantMemory


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
    is_open: bool
    """Whether no verdict has been given on the row: it arrives now, or has waited for its verdict."""

    is_deferred: bool = False
    """Whether the row waits for its verdict after this batch."""

    is_too_old: bool = False
    """Whether the row has waited longer than a row may."""

    @property
    def tokens(self) -> Pair:
        """The row's cost in tokens."""
        return (1, self.size_bytes)


def total_tokens(rows: list[Row]) -> Pair:
    """Return the total cost of `rows` in tokens."""
    return len(rows), sum(row.size_bytes for row in rows)


def debt_floor(limits: ScopeLimits, dimension: Dimension, balance_micro: int, *, is_marked: bool) -> int:
    """Return the balance below which a message adds no more debt.

    A message that an observing scope marks adds no debt beyond a burst. A message larger than the scope's bound adds at
    most the debt of the largest message within the bound, or of a burst if that is more.
    """
    floor_micro = MIN_BALANCE_MICRO
    burst_micro = limits.burst_micro[dimension]
    if is_marked:
        floor_micro = max(floor_micro, min(balance_micro, -max(burst_micro, 1)))
    if dimension == Dimension.BYTES and limits.is_observed and limits.max_message_bytes < MAX_SIZE_BYTES:
        largest_micro = max(burst_micro, limits.max_message_bytes * MICRO)
        floor_micro = max(floor_micro, min(balance_micro, -largest_micro))
    return floor_micro


@dataclass(slots=True)
class Scope:
    """A shared scope and the shard's grant of it."""

    limits: ScopeLimits
    shards: int
    balance_micro: list[int]
    headroom_micro: list[int]
    ahead_bound_milli: Pair
    room_micro: list[int] | None
    flow_micro: list[int]
    share_micro_per_ms: Pair | None
    is_by_time: bool = False
    """Whether a quota on time lets less through than the scope's own limit on messages."""

    divided_debt_micro: list[int] = field(default_factory=lambda: [0, 0])
    """The shard's part of the debt with which the batch begins."""

    @classmethod
    def grown(cls, limits: ScopeLimits, memory: GrantMemory, *, elapsed_ms: int, shards: int) -> Scope:
        """Return the scope, refilled by the shard's part of its rate as far as the headroom allows."""
        scope = cls(
            limits, shards, list(memory.balance_micro), list(memory.headroom_micro), memory.ahead_bound_milli,
            None if memory.room_micro is None else list(memory.room_micro), list(memory.flow_micro),
            memory.share_micro_per_ms, memory.time is not None and memory.time[2],
        )  # fmt: skip
        for d in limits.limited_dimensions:
            earned = scope.rate_micro_per_ms[d] * max(0, elapsed_ms) // shards
            gained = min(earned, scope.headroom_micro[d])
            scope.balance_micro[d] += gained
            scope.headroom_micro[d] -= gained
            if scope.room_micro is not None:
                is_shut = scope.rate_micro_per_ms[d] == 0
                scope.room_micro[d] = 0 if is_shut else scope.room_micro[d] + gained * (shards - 1)
                if scope.flow_micro[d] < NO_BOUND:
                    scope.flow_micro[d] = 0 if is_shut else min(scope.flow_micro[d] + gained * shards, NO_BOUND)
            if scope.rate_micro_per_ms[d] == 0:
                scope.balance_micro[d] = min(scope.balance_micro[d], -1)
            scope.divided_debt_micro[d] = max(0, -scope.balance_micro[d])
        return scope

    @property
    def is_enforced(self) -> bool:
        """Whether the scope can hold a row back."""
        return self.limits.is_enforced

    @property
    def limited_dimensions(self) -> list[Dimension]:
        """The dimensions in which the scope has a limit."""
        return self.limits.limited_dimensions

    @property
    def rate_micro_per_ms(self) -> Pair:
        """The rates at which the scope earns: the job's shares if jobs share the quota, and never more than it."""
        quota = self.limits.rate_micro_per_ms
        return (
            quota
            if self.share_micro_per_ms is None
            else pair([min(each) for each in zip(quota, self.share_micro_per_ms, strict=True)])
        )

    @property
    def is_unleased(self) -> bool:
        """Whether the job waits for a share of a quota that is not 0."""
        return any(self.rate_micro_per_ms[d] == 0 and self.limits.rate_micro_per_ms[d] > 0 for d in DIMENSIONS)

    @property
    def is_loose(self) -> bool:
        """Whether no flows compete for the scope, because other scopes stop them first."""
        return NO_CONTEST in self.ahead_bound_milli

    def bars(self, flow: Flow) -> Dimension | None:
        """Return the dimension in which a flow's lead is too large to use the grant, messages first; or `None`."""
        if not self.limits.is_enforced:
            return None
        ahead_milli = flow.ahead_milli()
        price_ns, shared_ns = flow.prices_in(self.limits)
        if price_ns:
            ahead_milli[0] = proportional(ahead_milli[0], price_ns, shared_ns, 50)
        weight = flow.limits.weight * (1 if self.limits == flow.rules.domain else flow.rules.domain_weight)
        return next((d for d in DIMENSIONS if ahead_milli[d] // weight >= self.ahead_bound_milli[d]), None)

    def overdrawn(self) -> Dimension | None:
        """Return the dimension that refuses the next row, messages first; `None` if neither does."""
        for d in self.limits.limited_dimensions:
            if self.rate_micro_per_ms[d] == 0 or self.balance_micro[d] < 0:
                return d
        return None

    def deferral_room(self) -> list[int]:
        """Return the tokens that rows may still take while they wait for their verdict."""
        left = [max(0, self.balance_micro[d] // MICRO + (d == Dimension.MESSAGES)) for d in DIMENSIONS]
        left = [0 if self.balance_micro[d] < 0 else left[d] for d in DIMENSIONS]
        return left if self.room_micro is None else [left[d] - -self.room_micro[d] // MICRO for d in DIMENSIONS]

    def flow_room(self, weight: int) -> list[int]:
        """Return the tokens that a flow of a weight may take and wait for."""
        return [1 << 62 if micro == NO_BOUND else max(micro // MICRO, micro > 0) * weight for micro in self.flow_micro]

    def lacks(self, wanted: Pair) -> bool:
        """Return whether the scope cannot serve all of `wanted`; the last message may overdraw it."""
        if not wanted[0] or not self.limits.is_enforced:
            return False
        for d in self.limits.limited_dimensions:
            is_shut = self.rate_micro_per_ms[d] == 0 or self.balance_micro[d] < 0
            room = -1 if is_shut else self.balance_micro[d] // MICRO + (d == Dimension.MESSAGES)
            if wanted[d] > room:
                return True
        return False

    @property
    def owes_bytes(self) -> bool:
        """Whether the scope is in debt in bytes, and holds rows back because of it."""
        d = Dimension.BYTES
        is_shut = self.rate_micro_per_ms[d] == 0 or self.balance_micro[d] < 0
        return self.limits.is_enforced and self.limits.limits(d) and is_shut

    def debit(self, tokens: Pair, *, is_marked: bool) -> None:
        """Subtract `tokens`, into debt if the grant is less."""
        for d in self.limits.limited_dimensions:
            floor_micro = debt_floor(self.limits, d, self.balance_micro[d], is_marked=is_marked)
            self.balance_micro[d] = max(self.balance_micro[d] - tokens[d] * MICRO, floor_micro)

    def throttle_time_ms(self, dimension: Dimension) -> int:
        """Return how long the shards' parts of the rate repay the debt before the batch, and the rate the rest."""
        rate = self.rate_micro_per_ms[dimension] or self.limits.rate_micro_per_ms[dimension]
        before_micro = self.divided_debt_micro[dimension]
        divided_ms = throttle_time_ms(-before_micro * self.shards, rate)
        overdrawn_ms = throttle_time_ms(self.balance_micro[dimension] + before_micro, rate)
        return min(divided_ms + overdrawn_ms, NEVER_MS)


@dataclass(slots=True)
class Flow:
    """A namespace in a batch: its stored state, its rows, and how far they have been decided."""

    name: str
    rules: NamespaceRules
    buckets: dict[Dimension, TokenBucket]
    """The buckets of the limited dimensions."""

    lead_vt: list[int]
    window_second: int
    window_units: list[int]

    rows: list[Row] = field(default_factory=list)
    """The queued rows that are not too old, then the arrivals that Pegasus' rules did not reject."""

    eligible: int = 0
    """Number of leading `rows` that neither a release time nor the namespace's own buckets hold back."""

    is_held: bool = False
    """Whether the first row that is not eligible waits for its release."""

    loose: list[ScopeLimits] = field(default_factory=list)
    """The shared scopes for which no flows compete."""

    base: dict[Dimension, int] = field(default_factory=dict)
    """The flow's position relative to its domain's virtual time, by each dimension that counts."""

    start_tags: list[int] = field(default_factory=list)
    """Start tags of the eligible rows."""

    admitted: int = 0
    """Number of leading `rows` that are admitted."""

    time: TokenBucket | None = None
    """What the namespace's processing time lets through, in messages; `None` if it lets everything through."""

    is_by_time: bool = False
    """Whether the time lets less through than the namespace's own limit on messages when the batch begins."""

    price_ns: int = 0
    """What a message costs in processing time; 0 if nobody knows."""

    shared_price_ns: dict[int, int] = field(default_factory=dict)
    """The same on average for the shared scopes that are divided by time, by index."""

    barred_by: Scope | None = None
    """The narrowest shared scope that the flow's lead bars it from."""

    blocked_by: Scope | None = None
    """The shared scope that refused the flow's first refused row."""

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
        flow = cls(name, rules, {}, [0, 0], 0, [0, 0])
        for d in rules.limits.limited_dimensions:
            bucket = TokenBucket.full(rules.limits.rate_micro_per_ms[d], rules.limits.burst_micro[d])
            if memory is not None:
                bucket.balance_micro = memory.balance_micro[d]
                bucket.refill(elapsed_ms)
            flow.buckets[d] = bucket
        if memory is not None:
            flow.lead_vt = list(memory.lead_vt)
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
            bucket.debit(tokens[d], floor_micro=debt_floor(self.limits, d, bucket.balance_micro, is_marked=is_marked))

    @property
    def tie(self) -> tuple[int, int]:
        """The order at equal tags: the longest wait first, then a hash that prefers no spelling."""
        return self.rows[0].arrival_ms, name_hash(self.name)

    def ahead_milli(self) -> list[int]:
        """Return the flow's lead over its competitors, in thousandths of a token by dimension."""
        domain = self.rules.domain
        if domain is None:
            return [0, 0]
        most = (1000, MAX_SIZE_BYTES * 1000)
        rates = self.rules.turn_rates
        return [
            min(milli_tokens_in(self.lead_vt[d] - 2, rates[d], self.limits.weight), most[d])
            if d in self.rules.clocked_dimensions
            else 0
            for d in DIMENSIONS
        ]

    def prices_in(self, scope: ScopeLimits) -> tuple[int, int]:
        """Return what a message of the flow costs, and one of the scope; zeros where that is not divided by time."""
        shared_ns = self.shared_price_ns.get(scope.index, 0)
        return (self.price_ns, shared_ns) if self.price_ns and shared_ns else (0, 0)

    def _rate_in(self, scope: ScopeLimits, dimension: Dimension) -> int:
        """Return a rate of a scope, in common time; that of messages is as many as take the time of the scope's own."""
        rate = common_rates(scope)[dimension]
        price_ns, shared_ns = self.prices_in(scope)
        if dimension == Dimension.BYTES or rate <= 0 or not price_ns:
            return rate
        return max(proportional(rate, shared_ns, price_ns, 50), 1)

    @property
    def counted_rates(self) -> Pair:
        """The rates in which service is counted."""
        return pair([self._rate_in(self.rules.counted_scope(d, self.loose), d) for d in DIMENSIONS])

    @property
    def counted_lead(self) -> list[int]:
        """The lead, in the virtual time in which service is counted."""
        rates = zip(self.lead_vt, self.rules.turn_rates, self.counted_rates, strict=True)
        return [told_in(lead_vt, kept, counted) for lead_vt, kept, counted in rates]

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

    def tag(self, short: list[Scope]) -> None:
        """Set the start tags of the eligible rows: the dominant virtual time of the rows before each.

        The dimensions that count are those limited by the scopes that run short, or else by the domain.
        """
        domain = self.rules.domain
        if domain is None:
            self.start_tags = [0] * self.eligible
            return
        enforced = [scope.limits for scope in short if scope.limits in self.rules.enforced]
        binding = self.rules.binding(self.loose)
        limited = [limits for limits in enforced if limits in binding] or enforced or [domain]
        counted = [d for d in DIMENSIONS if any(limits.limits(d) for limits in limited)]
        lead_vt, memory = self.counted_lead, self.rules.memory(self.loose)
        base = {d: max(lead_vt[d], -memory) for d in counted}
        behind = max(0, -max(base.values()))
        self.base = {d: base[d] + behind for d in base}
        before, rates = [0, 0], self.counted_rates
        for row in self.rows[: self.eligible]:
            tags = [self.base[d] + virtual_time(before[d], rates[d], self.limits.weight) for d in base]
            self.start_tags.append(max(tags))
            before = [before[d] + row.tokens[d] for d in DIMENSIONS]

    def move(self, advance: int, kept: list[ScopeLimits], *, still_waits: bool) -> None:
        """Add the service to the lead, and move the origin by `advance`.

        In a dimension that does not count, the lead stays; in one that no scope of `kept` limits, it is dropped.
        """
        served = total_tokens(self.rows[: self.admitted])
        memory = self.rules.memory(self.loose)
        counted, kept_rates = self.counted_rates, self.rules.turn_rates
        lead_vt = {}
        for d in DIMENSIONS:
            if not any(limits.limits(d) for limits in kept):
                continue
            lead_vt[d] = self.lead_vt[d]
            if d in self.base:
                finish = self.counted_lead[d]
                if self.eligible:
                    finish = self.base[d] + virtual_time_up(served[d], counted[d], self.limits.weight)
                after = max(finish - advance, -memory)
                if after != self.counted_lead[d]:
                    rate = kept_rates[d]
                    service = virtual_time_up(served[d], rate, self.limits.weight) if rate > 0 else 0
                    lead_vt[d] = min(told_in(after, counted[d], rate), max(0, self.lead_vt[d]) + service)
        if not still_waits and max(lead_vt.values(), default=0) <= 0:
            lead_vt = {}
        self.lead_vt = [lead_vt.get(d, 0) for d in DIMENSIONS]

    def has_memory(self, now_ms: int) -> bool:
        """Return whether a later batch might be decided differently if a flow without waiting rows were forgotten."""
        counts_this_second = self.window_second == now_ms // 1000 and self.window_units != [0, 0]
        is_full = all(bucket.is_full for bucket in self.buckets.values())
        return not is_full or self.lead_vt != [0, 0] or counts_this_second

    def memory(self, now_ms: int) -> FlowMemory:
        """Return what is stored of the flow."""
        balance_micro = [self.buckets[d].balance_micro if d in self.buckets else 0 for d in DIMENSIONS]
        memory = FlowMemory(pair(balance_micro), pair(self.lead_vt), self.window_second, pair(self.window_units))
        return memory.meaningful(self.rules, second=now_ms // 1000)


def told_in(lead_vt: int, of: int, rate: int) -> int:
    """Return a lead at the rate `of`, converted to the rate `rate`."""
    if of == rate:
        return lead_vt
    told = proportional(abs(lead_vt), of, rate, 60)
    return told if lead_vt > 0 else -told
