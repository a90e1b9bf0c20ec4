"""The oracle of admission: one micro-batch, decided row by row.

It takes the arguments of `plan_admission` and computes the required result, by following the sequential meaning of a
batch literally, with loops over rows and Python integers. It is slow on purpose: every step can be compared with the
text of the design, and none can overflow.

1. Balances are refilled to the batch time.
2. Queued rows that are too old are rejected.
3. Malformed arrivals and those over a bound on their size are rejected; Pegasus' rules pass, hold or reject each of
   the others.
4. In each flow, the eligible prefix ends at a row that is held until later or meets an overdrawn namespace.
5. Eligible rows of all flows take turns, until a shared scope of theirs is overdrawn.
6. The remaining rows wait or are rejected, as the scope that stopped their flow prescribes: the narrowest that is
   overdrawn.
7. Waiting rows that exceed the queue's bounds are rejected, from the ends of the longest queues.
8. Flows with nothing to remember are forgotten.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.batch.flow_plan import MOST_GIVEN_OUT
from spark_throttle.core.quota import (
    MOST_NS,
    NEVER_MS,
    CompiledPolicy,
    Dimension,
    Level,
    OnExcess,
    Overflow,
    Verdict,
)
from spark_throttle.core.state import DeciderState
from spark_throttle.errors import QueueOverflowError
from tests.oracle.reference_bucket import throttle_time_ms
from tests.oracle.reference_flow import Flow, Row, Scope, total_tokens
from tests.oracle.reference_queue import queue_bounds, rows_beyond
from tests.oracle.reference_rules import COUNTED, DIMENSIONS, UNIT_MICRO, ScopeLimits, malformed_reason
from tests.oracle.reference_state import QueuedRow, ReferenceState
from tests.oracle.reference_usage import Decision, FlowUsage, usage_of


@dataclass(frozen=True, slots=True)
class ReferencePlan:
    """The decision on every row (the queue's, then the arrivals), and the new state."""

    decisions: list[Decision]
    state: ReferenceState
    usage: dict[str, FlowUsage]
    invalid_messages: int
    rejected_by_reason: dict[str, int]
    """The number of rejected rows by the word for the reason."""


@dataclass(slots=True)
class Served:
    """How far one flow got."""

    count: int
    """The number of its first rows that are admitted."""

    marked_from: dict[Level, int] = field(default_factory=dict)
    """The rank of the first row that an observing shared scope of a level would have stopped."""

    short_from: dict[tuple[Level, Dimension], int] = field(default_factory=dict)
    """The rank of the first of these that found the balance of a dimension, or of one before it, negative."""


def reference_admission(
    state: DeciderState,
    arrivals: Arrivals,
    policy: CompiledPolicy,
    *,
    now_ms: int,
    served: Mapping[str, Served] | None = None,
) -> ReferencePlan:
    """Return what `plan_admission` must return for the same arguments.

    Parameters
    ----------
    served
        Who was served, by namespace; `None` for one row of each flow in turn. Who goes first is the fair tree's to say,
        and its law is the fluid's. Here, whoever was served must have fitted, and who was not must have been stopped.

    Raises
    ------
    QueueOverflowError
        If an arrival has to wait, the waiting rows then exceed the bounds, and the policy says `fail`.
    """
    return _Batch(state, arrivals, policy, now_ms, served).plan()


def _child(node: tuple[object, ...]) -> object:
    """Return the child of the job above a tenant's node: its group, or the tenant itself."""
    return node[:2] if node[0] is None else node[0]


class _Batch:
    """One call of `reference_admission`: the steps of the module's header, in order."""

    def __init__(
        self,
        state: DeciderState,
        arrivals: Arrivals,
        policy: CompiledPolicy,
        now_ms: int,
        served: Mapping[str, Served] | None,
    ) -> None:
        self.old = ReferenceState.from_arrays(state, policy)
        units = [0] * len(arrivals) if arrivals.units is None else arrivals.units.to_pylist()
        self.arrivals = list(zip(arrivals.namespaces.to_pylist(), arrivals.size_bytes.to_pylist(), units, strict=True))
        self.is_writable = [True] * len(arrivals) if arrivals.is_writable is None else arrivals.is_writable.tolist()
        self.policy, self.now_ms, self.served, self.windows = policy, now_ms, served, state.windows
        self.most_ns = MOST_NS // max(1, len(state.queue) + len(arrivals))
        self.flows: dict[str, Flow] = {}
        self.scopes: dict[int, Scope] = {}
        # The rows of flows, that is all rows except the malformed, in order.
        self.rows: list[Row] = []
        self.decisions: dict[int, Decision] = {}
        # The quota's owner and the dimension, by each row that a quota refused or marked.
        self.refused_by: dict[int, tuple[Flow | Scope, Dimension]] = {}
        # The level and the dimension of the quota that stopped each namespace.
        self.stopped_by: dict[str, tuple[int, int]] = {}

    def plan(self) -> ReferencePlan:
        self.grow_balances()
        self.reject_too_old()
        self.take_arrivals()
        for flow in self.flows.values():
            flow.find_eligible(self.now_ms)
        self.take_turns()
        for flow in self.flows.values():
            self.decide_rest(flow)
        self.bound_queue()
        self.mark_sizes()
        self.tell_throttle_times()
        decisions = [self.decisions[i] for i in range(len(self.old.queue) + len(self.arrivals))]
        invalid_messages = len(decisions) - len(self.rows)
        by_reason = Counter(each.reason for each in decisions if each.verdict is Verdict.REJECT)
        return ReferencePlan(decisions, self.new_state(), self.usage(), invalid_messages, dict(by_reason))

    # Step 1

    def grow_balances(self) -> None:
        for name in self.old.flows:
            self.flow(name)
        elapsed_ms = self.now_ms - self.old.shared_as_of_ms
        for index, memory in enumerate(self.old.shared):
            is_tenant = index <= len(self.policy.tenant_names)
            level = Level.JOB if index == 0 else Level.TENANT if is_tenant else Level.RESOURCE_GROUP
            limits = ScopeLimits.from_limits(self.policy.shared, index, level, index)
            self.scopes[index] = Scope.grown(limits, memory, self.windows, elapsed_ms=elapsed_ms)

    def flow(self, name: str) -> Flow:
        if name not in self.flows:
            elapsed_ms = self.now_ms - self.old.advanced_to_ms
            memory = self.old.flows.get(name)
            self.flows[name] = Flow.remembered(self.policy, name, memory, self.windows, elapsed_ms=elapsed_ms)
        return self.flows[name]

    def time_ns(self, name: str) -> int:
        """Return the processing time that a row of a namespace is estimated to take."""
        if not self.policy.has_time:
            return 0
        flow, prices = self.flow(name), self.old.prices
        specific_ns = flow.price_ns if flow.priced_ms else prices.specific_ns
        return min(specific_ns + prices.common_ns, self.most_ns)

    # Step 2

    def reject_too_old(self) -> None:
        age_ms = self.policy.queue.age_ms
        for index, queued in enumerate(self.old.queue):
            arrival_ms, release_ms = queued.arrival_ms, queued.release_ms
            time_ns = self.time_ns(queued.namespace)
            row = Row(
                index, queued.namespace, queued.size_bytes, queued.units, arrival_ms, release_ms, is_arrival=False,
                time_ns=time_ns,
            )  # fmt: skip
            self.rows.append(row)
            if age_ms is not None and self.now_ms - arrival_ms > age_ms:
                self.decisions[index] = Decision(Verdict.REJECT, "queue_age")
            else:
                self.flow(row.namespace).rows.append(row)

    # Step 3

    def take_arrivals(self) -> None:
        queued = len(self.old.queue)
        for index, (namespace, size_bytes, units) in enumerate(self.arrivals, start=queued):
            malformed = malformed_reason(namespace, size_bytes, units, is_writable=self.is_writable[index - queued])
            if malformed:
                self.decisions[index] = Decision(Verdict.REJECT, malformed, throttle_time_ms=NEVER_MS)
                continue
            row = Row(
                index, namespace, size_bytes, units, self.now_ms, 0, is_arrival=True, time_ns=self.time_ns(namespace)
            )
            self.rows.append(row)
            flow = self.flow(namespace)
            if too_small := flow.rules.too_small_for(row.tokens, observed=False):
                self.decisions[index] = self.by_size(Verdict.REJECT, *too_small)
            elif self.passes_windows(flow, row):
                flow.rows.append(row)

    def by_size(self, verdict: Verdict, limits: ScopeLimits, dimension: Dimension) -> Decision:
        reason = "size_too_large" if dimension == Dimension.BYTES else "units_too_large"
        return Decision(verdict, reason, limits.level, dimension, limits.index, NEVER_MS)

    def passes_windows(self, flow: Flow, row: Row) -> bool:
        """Apply Pegasus' rules, by count and then by size; a row that either rejects counts in neither."""
        if not flow.rules.has_windows:
            return True
        second = self.now_ms // 1000
        if flow.window_second != second:
            flow.window_second, flow.window_units = second, [0, 0]
        units = [flow.window_units[d] + row.tokens[d] for d in COUNTED]
        for d, rule in zip(COUNTED, flow.rules.windows, strict=True):
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
        """Admit what was served, and find what stopped each flow."""
        self.served = self.in_turns() if self.served is None else self.served
        for flow in self.flows.values():
            served = self.served.get(flow.name, Served(0))
            assert served.count <= flow.eligible, f"{flow.name} gets {served} of {flow.eligible} rows"
            for k, row in enumerate(flow.rows[: served.count]):
                self.admit(flow, row, k, served)
        for scope in self.scopes.values():
            self.debit(scope)
        for flow in self.flows.values():
            if flow.admitted < flow.eligible:
                flow.blocked_by = next((each for each in self.enforced(flow) if each.overdrawn() is not None), None)
                assert flow.blocked_by, f"{flow.name} could go on: {flow.admitted} of {flow.eligible} rows"

    def in_turns(self) -> dict[str, Served]:
        """Return who is served if rows go one by one: the first rows of all flows, then the second ones, and so on.

        A flow of twice the weight has two rows in each turn.
        """
        turns = [
            ((k + 1) / flow.limits.weight, flow.tie(self.now_ms), k, flow)
            for flow in self.flows.values()
            for k in range(flow.eligible)
        ]
        left = copy.deepcopy(self.scopes)
        served = {flow.name: Served(0) for flow in self.flows.values()}
        for *_, k, flow in sorted(turns, key=lambda turn: turn[:3]):
            of_flow = served[flow.name]
            short = {limits.level: left[limits.index].overdrawn() for limits in flow.rules.shared}
            if of_flow.count < k or any(short[limits.level] is not None for limits in flow.rules.enforced):
                continue
            of_flow.count += 1
            for limits in flow.rules.shared:
                dimension = short[limits.level]
                if dimension is not None:
                    of_flow.marked_from.setdefault(limits.level, k)
                    for d in DIMENSIONS[dimension:]:
                        of_flow.short_from.setdefault((limits.level, d), k)
                left[limits.index].take(flow.rows[k].tokens)
        return served

    def enforced(self, flow: Flow) -> list[Scope]:
        return [self.scopes[limits.index] for limits in flow.rules.enforced]

    def admit(self, flow: Flow, row: Row, k: int, served: Served) -> None:
        """Admit the row, marked by the narrowest observing scope that would have stopped it."""
        self.decisions[row.index] = Decision(Verdict.ADMIT)
        flagged_by: list[tuple[Flow | Scope, Dimension]] = []
        dimension = flow.overdrawn() if flow.limits.is_observed else None
        if dimension is not None:
            flagged_by.append((flow, dimension))
        for limits in flow.rules.shared:
            if limits.is_observed and k >= served.marked_from.get(limits.level, flow.eligible):
                short_from = {d: served.short_from.get((limits.level, d), flow.eligible) for d in DIMENSIONS}
                told = next((d for d in DIMENSIONS if k >= short_from[d]), Dimension.TIME)
                flagged_by.append((self.scopes[limits.index], told))
        if flagged_by:
            self.refuse(Verdict.ADMIT, row, *flagged_by[0])
        flow.admitted += 1
        flow.debit(row.tokens, is_marked=dimension is not None)

    def debit(self, scope: Scope) -> None:
        """Debit a shared scope, first for the rows that it lets pass, then for those that it only marks.

        The rows that it lets pass fit, in some order: none of them finds it overdrawn. If it marks any, it has no room
        left for them.
        """
        let_pass: list[Row] = []
        marked: list[Row] = []
        last: list[Row] = []
        for flow in self.flows.values():
            if all(limits.index != scope.limits.index for limits in flow.rules.shared):
                continue
            first = flow.admitted
            if scope.limits.is_observed and self.served is not None:
                first = min(self.served.get(flow.name, Served(0)).marked_from.get(scope.limits.level, first), first)
            let_pass += flow.rows[:first]
            marked += flow.rows[first : flow.admitted]
            last += flow.rows[:first][-1:]
        if let_pass and (scope.is_enforced or scope.limits.is_observed):
            assert scope.overdrawn() is None, f"{scope.limits} is overdrawn, and lets {len(let_pass)} rows pass"
            taken = total_tokens(let_pass)
            for d, bucket in scope.buckets.items():
                before = taken[d] - max(row.tokens[d] for row in last)
                assert before * UNIT_MICRO[d] <= bucket.balance_micro, f"{scope} lets {taken} pass"
            for budget in scope.budgets:
                d = budget.dimension
                assert taken[d] - max(row.tokens[d] for row in last) <= budget.before, f"{budget} lets {taken} pass"
        for row in let_pass:
            scope.debit(row.tokens, is_marked=False)
        assert not marked or scope.overdrawn() is not None, f"{scope.limits} marks {len(marked)} rows that fit"
        for row in marked:
            scope.debit(row.tokens, is_marked=True)

    def refuse(self, verdict: Verdict, row: Row, by: Flow | Scope, dimension: Dimension) -> None:
        told = by.ends_by[dimension]
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
            if row is flow.rows[flow.admitted]:
                self.stopped_by[row.namespace] = (cause.limits.level, cause.ends_by[dimension])
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
        beyond = rows_beyond(room, queues, self.now_ms)
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
            too_small = self.flows[row.namespace].rules.too_small_for(row.tokens, observed=True)
            if too_small and self.decisions[row.index].verdict == Verdict.ADMIT:
                self.refused_by.pop(row.index, None)
                self.decisions[row.index] = self.by_size(Verdict.ADMIT, *too_small)

    def tell_throttle_times(self) -> None:
        """Set the throttle time of each refused or marked row, by the debts after the batch.

        A marked row is told how long the debt of the marking scope lasts, a refused one how long any debt lasts that
        holds its flow back. A rejected one waits for its turn, too.
        """
        names = {row.index: row.namespace for row in self.rows}
        for index, (by, dimension) in self.refused_by.items():
            wait_ms = by.throttle_time_ms(dimension, self.now_ms)
            if self.decisions[index].verdict != Verdict.ADMIT:
                flow = self.flows[names[index]]
                levels: list[Flow | Scope] = [flow, *self.enforced(flow)]
                owing = [level for level in levels if level.is_enforced]
                times_ms = [level.throttle_time_ms(d, self.now_ms) for level in owing for d in DIMENSIONS]
                # A scope may have given a row of another flow its last token at this very moment.
                wait_ms = max(int(isinstance(by, Scope)), *times_ms)
                if self.decisions[index].verdict == Verdict.REJECT:
                    wait_ms = max(wait_ms, self.turn_ms(flow, index))
            self.decisions[index] = replace(self.decisions[index], throttle_time_ms=wait_ms)

    def turn_ms(self, flow: Flow, index: int) -> int:
        """Return how long until it is the turn of a rejected row: the rows of its flow that go before it take tokens.

        They take those of the namespace, and of each of its scopes what this gives out until the flow had its part by
        weight, as far as the scope that stopped it.
        """
        before = total_tokens([row for row in flow.rows[flow.admitted :] if row.index < index])
        waits_ms = [0]
        if flow.is_enforced:
            for d, bucket in flow.buckets.items():
                left_micro = bucket.balance_micro - before[d] * UNIT_MICRO[d]
                waits_ms.append(throttle_time_ms(left_micro, bucket.rate_micro_per_ms))
        for scope in self.enforced(flow):
            for d, bucket in scope.buckets.items():
                left_micro = bucket.balance_micro - self.given_out(flow, scope, before[d] * UNIT_MICRO[d])
                waits_ms.append(
                    throttle_time_ms(left_micro, bucket.rate_micro_per_ms or scope.limits.rate_micro_per_ms[d])
                )
        return max(waits_ms)

    def given_out(self, flow: Flow, scope: Scope, tokens: int) -> int:
        """Return what a scope gives out to all flows that a shared scope stopped, until one of them had its tokens.

        A scope that is wider than the one that stopped the flow gives out what that one does.
        """
        if flow.blocked_by is None:
            return tokens
        by = flow.blocked_by.limits.level
        stopped = [each for each in self.flows.values() if each.blocked_by is not None]

        def scope_of(each: Flow, level: Level) -> ScopeLimits | None:
            return next((limits for limits in each.rules.shared if limits.level == level), None)

        def node_of(each: Flow) -> tuple[object, ...]:
            """Return the way of a namespace: the group, the tenant, and the namespace where these divide the group."""
            group, between = scope_of(each, Level.RESOURCE_GROUP), self.policy.shared.settings.get("fair_between")
            name = self.policy.group_names[group.index - 1 - len(self.policy.tenant_names)].as_py() if group else None
            is_alone = group is not None and between is not None and between[group.index] > 0
            return name, each.name.partition("/")[0], each.name if is_alone else None

        def weight(each: Flow, depth: int) -> int:
            """Return the weight of the namespace, of its tenant's node, or of the child of the job."""
            group, _, alone = node_of(each)
            if depth == 0 or (depth == 1 and alone is not None):
                return each.limits.weight
            limits = scope_of(each, Level.RESOURCE_GROUP if depth == 2 and group is not None else Level.TENANT)
            return 1 if limits is None else limits.weight

        ways: list[dict[object, Flow]] = [
            {each.name: each for each in stopped if node_of(each) == node_of(flow)},
            {node_of(each): each for each in stopped if _child(node_of(each)) == _child(node_of(flow))},
            {_child(node_of(each)): each for each in stopped},
        ]
        for depth, siblings in enumerate(ways):
            if min(by, scope.limits.level) > depth:
                together = sum(weight(each, depth) for each in siblings.values())
                tokens = min(tokens * together // weight(flow, depth), MOST_GIVEN_OUT)
        if by == Level.TENANT:
            tokens *= len({node_of(each) for each in stopped if node_of(each)[1] == node_of(flow)[1]})
        return min(tokens, MOST_GIVEN_OUT)

    # Step 8

    def new_state(self) -> ReferenceState:
        flows = {
            flow.name: flow.memory(self.now_ms)
            for flow in self.flows.values()
            if self.waiting(flow) or flow.has_memory(self.now_ms, has_time=self.policy.has_time)
        }
        queue = [
            QueuedRow(row.namespace, row.size_bytes, row.units, row.arrival_ms, row.release_ms)
            for row in self.rows
            if self.decisions[row.index].verdict == Verdict.DELAY
        ]
        shared = [scope.memory(self.old.shared[index]) for index, scope in self.scopes.items()]
        return replace(
            self.old, advanced_to_ms=self.now_ms, paid_ms=0, flows=flows, queue=queue,
            shared_as_of_ms=self.now_ms, shared=shared,
        )  # fmt: skip

    def usage(self) -> dict[str, FlowUsage]:
        rows: dict[str, list[Row]] = {}
        for row in self.rows:
            rows.setdefault(row.namespace, []).append(row)
        since_last_ms = max(0, self.now_ms - self.old.advanced_to_ms) + self.old.paid_ms
        if not self.old.advanced_to_ms:
            since_last_ms = 0
        return {
            name: usage_of(
                self.flows[name], rows[name], self.decisions, self.now_ms, since_last_ms,
                self.stopped_by.get(name, (-1, -1)),
            )
            for name in rows
        }  # fmt: skip
