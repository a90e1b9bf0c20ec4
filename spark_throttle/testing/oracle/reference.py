"""The oracle of admission: one micro-batch, decided row by row.

It takes the arguments of `plan_admission` and computes the required result, by following the sequential meaning of a
batch literally, with loops over rows and Python integers. It is slow on purpose: every step can be compared with the
text of the design, and none can overflow.

1. Balances are refilled to the batch time.
2. Queued rows that are too old are rejected.
3. Malformed arrivals and those over a bound on their size are rejected; Pegasus' rules pass, hold or reject each of
   the others.
4. In each flow, the eligible prefix ends at a row that is held until later or meets an overdrawn namespace.
5. Eligible rows of all flows take turns in virtual time, until a shared scope of theirs is overdrawn.
6. The remaining rows wait or are rejected, as the scope that stopped their flow prescribes.
7. Waiting rows that exceed the queue's bounds are rejected, from the ends of the longest queues.
8. Virtual times move on; flows with nothing to remember are forgotten.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.batch.reasons import TIME
from spark_throttle.core.quota import (
    NEVER_MS,
    UNLIMITED,
    CompiledPolicy,
    Dimension,
    Level,
    OnExcess,
    Overflow,
    Verdict,
)
from spark_throttle.core.state import DeciderState
from spark_throttle.errors import QueueOverflowError
from spark_throttle.testing.oracle.reference_bucket import TokenBucket
from spark_throttle.testing.oracle.reference_flow import Flow, Row, Scope, total_tokens
from spark_throttle.testing.oracle.reference_queue import queue_bounds, rows_beyond
from spark_throttle.testing.oracle.reference_rules import DIMENSIONS, Pair, ScopeLimits, malformed_reason
from spark_throttle.testing.oracle.reference_state import (
    QueuedRow,
    ReferenceState,
    TimeMemory,
    in_force,
)
from spark_throttle.testing.oracle.reference_usage import Decision, FlowUsage, usage_of


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """The decision on every row (the queue's, then the arrivals), and the new state."""

    decisions: list[Decision]
    state: ReferenceState
    usage: dict[str, FlowUsage]
    invalid_messages: int
    rejected_by_reason: dict[str, int]
    """The number of rejected rows by the word for the reason."""

    oldest_waiting_ms: int | None


def reference_admission(
    state: DeciderState, arrivals: Arrivals, policy: CompiledPolicy, *, now_ms: int
) -> ReferencePlan:
    """Return what `plan_admission` must return for the same arguments.

    Raises
    ------
    QueueOverflowError
        If an arrival has to wait, the waiting rows then exceed the bounds, and the policy says `fail`.
    """
    return _Batch(state, arrivals, policy, now_ms).plan()


class _Batch:
    """One call of `reference_admission`: the steps of the module's header, in order."""

    def __init__(self, state: DeciderState, arrivals: Arrivals, policy: CompiledPolicy, now_ms: int) -> None:
        self.old = ReferenceState.from_arrays(state, policy)
        self.arrivals = list(zip(arrivals.namespaces.to_pylist(), arrivals.size_bytes.to_pylist(), strict=True))
        self.is_writable = [True] * len(arrivals) if arrivals.is_writable is None else arrivals.is_writable.tolist()
        self.quotas, self.policy = policy, in_force(policy, state.shared.time)
        self.now_ms = now_ms
        self.flows: dict[str, Flow] = {}
        self.scopes: dict[int, Scope] = {}
        # The rows of flows, that is all rows except the malformed, in order.
        self.rows: list[Row] = []
        self.decisions: dict[int, Decision] = {}
        # The quota's owner and the dimension, by each row that a quota refused or marked.
        self.refused_by: dict[int, tuple[Flow | Scope, Dimension]] = {}

    def plan(self) -> ReferencePlan:
        self.grow_balances()
        self.reject_too_old()
        self.take_arrivals()
        for flow in self.flows.values():
            flow.find_eligible(self.now_ms)
        short = [scope for scope in self.scopes.values() if self.runs_short(scope)]
        for flow in self.flows.values():
            flow.loose = [scope.limits for scope in self.scopes.values() if self.is_loose(scope, short)]
            flow.tag(short)
        self.take_turns()
        for flow in self.flows.values():
            self.decide_rest(flow)
        self.bound_queue()
        self.mark_sizes()
        self.tell_throttle_times()
        self.move_virtual_time()
        decisions = [self.decisions[i] for i in range(len(self.old.queue) + len(self.arrivals))]
        invalid_messages = len(decisions) - len(self.rows)
        by_reason = Counter(each.reason for each in decisions if each.verdict is Verdict.REJECT)
        waiting = [row for row in self.rows if self.decisions[row.index].verdict is Verdict.DELAY]
        waits_ms = [self.now_ms - row.arrival_ms for row in waiting]
        oldest_ms = max(0, *waits_ms) if waits_ms else None
        return ReferencePlan(decisions, self.new_state(), self.usage(), invalid_messages, dict(by_reason), oldest_ms)

    # Step 1

    def grow_balances(self) -> None:
        for name in self.old.flows:
            self.flow(name)
        elapsed_ms = self.now_ms - self.old.shared_as_of_ms
        for index, memory in enumerate(self.old.shared):
            is_tenant = index <= len(self.policy.tenant_names)
            level = Level.JOB if index == 0 else Level.TENANT if is_tenant else Level.RESOURCE_GROUP
            quota, limits = (
                ScopeLimits.from_limits(policy.shared, index, level, index) for policy in (self.quotas, self.policy)
            )
            self.scopes[index] = Scope.grown(quota, limits, memory, elapsed_ms=elapsed_ms)

    def flow(self, name: str) -> Flow:
        if name not in self.flows:
            elapsed_ms = self.now_ms - self.old.advanced_to_ms
            flow = self.flows[name] = Flow.remembered(
                self.policy, name, self.old.flows.get(name), elapsed_ms=elapsed_ms, time=self.time_of(name)
            )
            memory = (self.old.time or {}).get(name)
            flow.price_ns = 0 if memory is None else memory.price_ns
            flow.shared_price_ns = {index: each.price_ns for index, each in enumerate(self.old.shared)}
        return self.flows[name]

    def time_of(self, name: str) -> TokenBucket | None:
        """Return what the time of a namespace lets through at the batch time."""
        memory = (self.old.time or {}).get(name)
        if memory is None or memory.rate_micro_per_ms == UNLIMITED:
            return None
        bucket = TokenBucket(memory.rate_micro_per_ms, memory.burst_micro, memory.balance_micro)
        bucket.refill(self.now_ms - self.old.shared_as_of_ms)
        return bucket

    # Step 2

    def reject_too_old(self) -> None:
        age_ms = self.policy.queue.age_ms
        for index, queued in enumerate(self.old.queue):
            arrival_ms, release_ms = queued.arrival_ms, queued.release_ms
            row = Row(index, queued.namespace, queued.size_bytes, arrival_ms, release_ms, is_arrival=False)
            self.rows.append(row)
            if age_ms is not None and self.now_ms - arrival_ms > age_ms:
                self.decisions[index] = Decision(Verdict.REJECT, "queue_age")
            else:
                self.flow(row.namespace).rows.append(row)

    # Step 3

    def take_arrivals(self) -> None:
        queued = len(self.old.queue)
        for index, (namespace, size_bytes) in enumerate(self.arrivals, start=queued):
            malformed = malformed_reason(namespace, size_bytes, is_writable=self.is_writable[index - queued])
            if malformed:
                self.decisions[index] = Decision(Verdict.REJECT, malformed, throttle_time_ms=NEVER_MS)
                continue
            row = Row(index, namespace, size_bytes, self.now_ms, 0, is_arrival=True)
            self.rows.append(row)
            flow = self.flow(namespace)
            if too_small := flow.rules.too_small_for(size_bytes, observed=False):
                self.decisions[index] = self.by_size(Verdict.REJECT, too_small)
            elif self.passes_windows(flow, row):
                flow.rows.append(row)

    def by_size(self, verdict: Verdict, limits: ScopeLimits) -> Decision:
        return Decision(verdict, "size_too_large", limits.level, Dimension.BYTES, limits.index, NEVER_MS)

    def passes_windows(self, flow: Flow, row: Row) -> bool:
        """Apply Pegasus' rules, by count and then by size; a row that either rejects counts in neither."""
        if not flow.rules.has_windows:
            return True
        second = self.now_ms // 1000
        if flow.window_second != second:
            flow.window_second, flow.window_units = second, [0, 0]
        units = [flow.window_units[d] + row.tokens[d] for d in DIMENSIONS]
        for d, rule in zip(DIMENSIONS, flow.rules.windows, strict=True):
            if rule.reject_units > 0 and units[d] > rule.reject_units:
                self.decisions[row.index] = Decision(
                    Verdict.REJECT, "throttling", Level.NAMESPACE, d, throttle_time_ms=rule.reject_ms
                )
                return False
            if rule.delay_units > 0 and units[d] > rule.delay_units:
                row.release_ms = max(row.release_ms, self.now_ms + rule.delay_ms)
        flow.window_units = units
        return True

    # Step 5

    def take_turns(self) -> None:
        turns = []
        for flow in self.flows.values():
            for k, tag in enumerate(flow.start_tags):
                turns.append((tag // flow.rules.domain_weight, flow.tie, k, flow.name))
        for _, _, k, name in sorted(turns):
            flow = self.flows[name]
            if flow.blocked_by is None:
                flow.blocked_by = next((each for each in self.enforced(flow) if each.overdrawn() is not None), None)
            if flow.blocked_by is None:
                self.admit(flow, flow.rows[k])

    def runs_short(self, scope: Scope) -> bool:
        """Return whether a scope lacks tokens for all eligible rows of its flows."""
        return scope.lacks(
            self.wanted_of([flow for flow in self.flows.values() if scope.limits in flow.rules.enforced])
        )

    def wanted_of(self, flows: list[Flow]) -> Pair:
        return total_tokens([row for flow in flows for row in flow.rows[: flow.eligible]])

    def is_loose(self, scope: Scope, short: list[Scope]) -> bool:
        """Return whether no flows compete for a scope, since it has what their groups and tenants let pass of them."""
        if scope not in short or scope.limits.level != Level.JOB:
            return scope not in short
        passing = [0, 0]
        for domain in self.scopes.values():
            wanted = self.wanted_of([flow for flow in self.flows.values() if flow.rules.domain == domain.limits])
            for d in DIMENSIONS:
                is_bound = domain is not scope and domain.limits.limits(d)
                passing[d] += min(wanted[d], max(domain.room(d), 0)) if is_bound else wanted[d]
        return all(passing[d] <= scope.room(d) for d in scope.limits.limited_dimensions)

    def enforced(self, flow: Flow) -> list[Scope]:
        return [self.scopes[limits.index] for limits in flow.rules.enforced]

    def admit(self, flow: Flow, row: Row) -> None:
        """Admit the row, marked by the narrowest observing scope that is overdrawn, and debit all levels."""
        self.decisions[row.index] = Decision(Verdict.ADMIT)
        levels: list[Flow | Scope] = [flow, *(self.scopes[limits.index] for limits in flow.rules.shared)]
        flagged_by = [
            (level, dimension)
            for level in levels
            if level.limits.is_observed and (dimension := level.overdrawn()) is not None
        ]
        if flagged_by:
            self.refuse(Verdict.ADMIT, row, *flagged_by[0])
        flow.admitted += 1
        for level in levels:
            level.debit(row.tokens, is_marked=any(level is flagging for flagging, _ in flagged_by))

    def refuse(self, verdict: Verdict, row: Row, by: Flow | Scope, dimension: Dimension) -> None:
        told = TIME if dimension == Dimension.MESSAGES and by.is_by_time else dimension
        self.decisions[row.index] = Decision(verdict, "quota", by.limits.level, told, by.limits.index)
        self.refused_by[row.index] = (by, dimension)

    # Step 6

    def decide_rest(self, flow: Flow) -> None:
        """Decide the rows behind the admitted ones by the cause that stopped the flow."""
        cause = flow.blocked_by or flow
        is_behind_held = flow.is_held and flow.blocked_by is None
        for row in flow.rows[flow.admitted :]:
            if row.release_ms > self.now_ms or is_behind_held:
                wait_ms = max(0, row.release_ms - self.now_ms)
                self.decisions[row.index] = Decision(
                    Verdict.DELAY, "throttling", Level.NAMESPACE, throttle_time_ms=wait_ms
                )
                continue
            dimension = cause.overdrawn()
            assert dimension is not None
            # Rows wait for a quota of which the job has no share yet: what it offers is not beyond the quota.
            is_unleased = isinstance(cause, Scope) and cause.is_unleased
            rejects = cause.limits.on_excess == OnExcess.REJECT and row.is_arrival and not is_unleased
            self.refuse(Verdict.REJECT if rejects else Verdict.DELAY, row, cause, dimension)

    # Step 7

    def waiting(self, flow: Flow) -> list[Row]:
        return [row for row in flow.rows if self.decisions[row.index].verdict == Verdict.DELAY]

    def bound_queue(self) -> None:
        queues = [(flow, self.waiting(flow)) for flow in self.flows.values()]
        waiting, room = [row for _, rows in queues for row in rows], queue_bounds(self.policy.queue)
        beyond = rows_beyond(room, queues)
        if beyond and self.policy.queue.on_overflow == Overflow.FAIL:
            if any(row.is_arrival for row in waiting):
                raise QueueOverflowError(len(waiting), *room)
            return
        for row in beyond:
            self.refused_by.pop(row.index, None)
            self.decisions[row.index] = Decision(Verdict.REJECT, "queue_full")

    def mark_sizes(self) -> None:
        """Mark the admitted rows that an observing scope would have rejected for their size, over any other mark."""
        for row in self.rows:
            too_small = self.flows[row.namespace].rules.too_small_for(row.size_bytes, observed=True)
            if too_small and self.decisions[row.index].verdict == Verdict.ADMIT:
                self.refused_by.pop(row.index, None)
                self.decisions[row.index] = self.by_size(Verdict.ADMIT, too_small)

    def tell_throttle_times(self) -> None:
        """Set the throttle time of each refused or marked row, by the debts after the batch.

        A marked row is told how long the debt of the marking scope lasts, a refused one how long any debt lasts that
        holds its flow back.
        """
        names = {row.index: row.namespace for row in self.rows}
        for index, (by, dimension) in self.refused_by.items():
            wait_ms = by.throttle_time_ms(dimension)
            if self.decisions[index].verdict != Verdict.ADMIT:
                flow = self.flows[names[index]]
                levels: list[Flow | Scope] = [flow, *self.enforced(flow)]
                owing = [level for level in levels if level.is_enforced]
                times_ms = [level.throttle_time_ms(d) for level in owing for d in level.limited_dimensions]
                # A scope may have given a row of another flow its last token at this very moment.
                wait_ms = max(int(isinstance(by, Scope)), *times_ms)
            self.decisions[index] = replace(self.decisions[index], throttle_time_ms=wait_ms)

    # Step 8

    def move_virtual_time(self) -> None:
        """Move every flow by the least virtual time of its scopes, among those that hold any flow back."""
        virtual_now: dict[int, int] = {}
        for scope in self.scopes.values():
            members = [flow for flow in self.flows.values() if scope.limits in flow.rules.enforced]
            keys = [tag // flow.rules.domain_weight for flow in members for tag in flow.start_tags[: flow.admitted]]
            if scope.owes_bytes or any(flow.blocked_by is scope for flow in members):
                virtual_now[scope.limits.index] = max(keys, default=0)
        for flow in self.flows.values():
            kept = [limits for limits in flow.rules.enforced if limits.index in virtual_now]
            if kept:
                stopping = [limits for limits in kept if limits in flow.rules.binding(flow.loose)] or kept
                advance = min(virtual_now[limits.index] for limits in stopping) * flow.rules.domain_weight
                flow.move(advance, kept, still_waits=bool(self.waiting(flow)))
            else:
                flow.lead_vt = [0, 0]

    def new_state(self) -> ReferenceState:
        flows = {
            flow.name: flow.memory(self.now_ms)
            for flow in self.flows.values()
            if self.waiting(flow) or flow.has_memory(self.now_ms)
        }
        queue = [
            QueuedRow(row.namespace, row.size_bytes, row.arrival_ms, row.release_ms)
            for row in self.rows
            if self.decisions[row.index].verdict == Verdict.DELAY
        ]
        shared = [scope.memory(self.old.shared[index]) for index, scope in self.scopes.items()]
        return ReferenceState(self.now_ms, flows, queue, self.old.epoch, self.now_ms, shared, self.time_after())

    def time_after(self) -> dict[str, TimeMemory] | None:
        """Return what the time of namespaces lets through after the batch."""
        if self.old.time is None:
            return None
        left = dict(self.old.time)
        for name, memory in self.old.time.items():
            bucket = self.time_of(name)
            if bucket is not None:
                bucket.debit(self.flows[name].admitted if name in self.flows else 0)
                left[name] = replace(memory, balance_micro=bucket.balance_micro)
        return left

    def usage(self) -> dict[str, FlowUsage]:
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(row.namespace, []).append(row)
        since_last_ms = max(0, self.now_ms - self.old.advanced_to_ms) if self.old.advanced_to_ms else 0
        return {
            name: usage_of(self.flows[name], rows[name], self.decisions, self.now_ms, since_last_ms) for name in rows
        }
