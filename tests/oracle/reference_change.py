"""The oracle of an epoch: the state converted to its policy and its shares, namespace by namespace, scope by scope."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from spark_throttle.core.measured_time import MeanPrices, MeasuredTime
from spark_throttle.core.quota import MIN_BALANCE_MICRO, MOST_NS, CompiledPolicy, Dimension, Int64s, Level, OnExcess
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.state import ControlRow, DeciderState
from tests.oracle.reference_bucket import TokenBucket, ceil_div
from tests.oracle.reference_budget import Tally, period_of
from tests.oracle.reference_flow import Flow
from tests.oracle.reference_rules import DIMENSIONS, ScopeLimits, Tokens, pair, rules_of, tokens
from tests.oracle.reference_state import FlowMemory, ReferenceState, ScopeMemory, those_of


def reference_epoch(
    state: DeciderState, row: ControlRow, before: CompiledPolicy, after: CompiledPolicy, *, now_ms: int
) -> ReferenceState:
    """Return what `under_epoch` must return for the same arguments."""
    if row.measured is not None:
        state = _corrected(ReferenceState.from_arrays(state, before), row.measured, before).to_arrays(before)
    told = _in_windows(ReferenceState.from_arrays(state, before), row, before)
    state = replace(told.to_arrays(before), windows=row.windows)
    names: list[str] = state.flows.names.to_pylist()
    flows = {}
    for i, name in enumerate(names):
        old, new = rules_of(before, name), rules_of(after, name)
        elapsed_ms = now_ms - state.advanced_to_ms
        held, cut = state.flows.balance_micro[i].tolist(), state.flows.cut_micro[i].tolist()
        changes = [(old.limits, new.limits, d, held[d]) for d in DIMENSIONS]
        balances = [changed_balance(*each, elapsed_ms=elapsed_ms) for each in changes]
        cuts = [_cut(*each, cut[each[2]], balances[each[2]], elapsed_ms=elapsed_ms) for each in changes]
        memory = FlowMemory(
            tokens(balances),
            tokens(cuts),
            int(state.flows.window_second[i]),
            pair(state.flows.window_units[i]),
            int(state.flows.price_ns[i]),
            int(state.flows.priced_ms[i]),
            _under(old.limits, new.limits, told.flows[name].tallies),
        )
        flows[name] = memory.meaningful(new, second=now_ms // 1000)
    paid_ms = now_ms
    if after is before:
        paid_ms = max(state.shared.as_of_ms, min(row.paying.paid_ms, now_ms))
    earned = _earned(state, before, elapsed_ms=paid_ms - state.shared.as_of_ms)
    balance_micro = _shared(earned, before, after, row)
    pinned = SharedBuckets(balance_micro, paid_ms, row.share_micro_per_ms)
    unspent = state if after is before else replace(state, flows=replace(state.flows, spent=None))
    after_epoch = ReferenceState.from_arrays(replace(unspent, shared=pinned), after)
    after_epoch = replace(after_epoch, shared=_with_tallies(after_epoch.shared, told.shared, before, after))
    if after is before:
        return replace(after_epoch, epoch=row.epoch)
    queue = []
    for queued in after_epoch.queue:
        rules = rules_of(after, queued.namespace).windows
        longest_ms = max((rule.delay_ms for rule in rules if rule.delay_units > 0), default=0)
        queue.append(replace(queued, release_ms=min(queued.release_ms, now_ms + longest_ms)))
    passed_ms = max(0, now_ms - state.advanced_to_ms) + state.paid_ms if state.advanced_to_ms else 0
    return replace(
        after_epoch, advanced_to_ms=now_ms, flows=flows, queue=queue, epoch=row.epoch, paid_ms=passed_ms
    )  # fmt: skip


def _in_windows(state: ReferenceState, row: ControlRow, policy: CompiledPolicy) -> ReferenceState:
    """Return the state with the tallies wiped of each budget for which other windows have begun."""
    if row.windows is None or not state.windows:
        return state
    begun = [new - old for new, old in zip(row.windows.number.tolist(), state.windows[0], strict=True)]

    def wiped(limits: ScopeLimits, tallies: tuple[Tally, ...]) -> tuple[Tally, ...]:
        budgets = limits.with_tallies(tallies)
        for budget in budgets:
            budget.begin(begun[period_of(budget.tally.key)])
        return those_of(limits, [budget.tally for budget in budgets])

    flows = {
        name: replace(flow, tallies=wiped(rules_of(policy, name).limits, flow.tallies))
        for name, flow in state.flows.items()
    }
    shared = [
        replace(scope, tallies=wiped(limits, scope.tallies))
        for scope, limits in zip(state.shared, _scopes_of(policy)[0], strict=True)
    ]
    return replace(state, flows=flows, shared=shared)


def _under(old: ScopeLimits, new: ScopeLimits, tallies: tuple[Tally, ...]) -> tuple[Tally, ...]:
    """Return what is used of the budgets that a scope had before and still has: less of it may be over."""
    had, has = dict(old.budgets), dict(new.budgets)
    kept = [
        replace(tally, over=min(tally.over, max(tally.used - has[tally.key], 0)))
        for tally in tallies
        if tally.key in had and tally.key in has
    ]
    return those_of(new, kept)


def _with_tallies(
    scopes: list[ScopeMemory], told: list[ScopeMemory], before: CompiledPolicy, after: CompiledPolicy
) -> list[ScopeMemory]:
    """Return the scopes of `after` with what those of the same names had used."""
    former = {
        key: (limits, each.tallies) for limits, key, each in zip(*_scopes_of(before), told, strict=True)
    }  # fmt: skip
    found = []
    for limits, key, each in zip(*_scopes_of(after), scopes, strict=True):
        tallies = _under(former[key][0], limits, former[key][1]) if key in former else ()
        found.append(replace(each, tallies=tallies))
    return found


def _corrected(state: ReferenceState, measured: MeasuredTime, policy: CompiledPolicy) -> ReferenceState:
    """Return the state with every bucket charged what was measured in place of the estimate, and prices moved."""
    flows, shared = dict(state.flows), list(state.shared)
    columns = (measured.measured_ns, measured.estimated_ns, measured.messages, measured.common_ns)
    windows_ms = []
    for name, used_ns, told_ns, messages, common_ns in zip(
        measured.names.to_pylist(), *(each.tolist() for each in columns), strict=True
    ):
        rules = rules_of(policy, name)
        flow = flows.get(name) or Flow.remembered(policy, name, None, elapsed_ms=0).memory(0)
        flow = replace(flow, balance_micro=_owing(rules.limits, flow.balance_micro, used_ns - told_ns))
        windows_ms.append(
            min((window for each in (rules.limits, *rules.shared) if (window := _window_ms(each))), default=1_000)
        )
        if messages:
            passed_ms = state.advanced_to_ms - flow.priced_ms
            price_ns = _moved(flow.price_ns, used_ns - common_ns, messages, windows_ms[-1], passed_ms)
            flow = replace(flow, price_ns=price_ns, priced_ms=state.advanced_to_ms)
        flows[name] = flow
    for scope in range(len(shared)):
        limits = ScopeLimits.from_limits(policy.shared, scope, Level.JOB, scope)
        names = measured.names.to_pylist()
        passing = [any(each.index == scope for each in rules_of(policy, name).shared) for name in names]
        used_ns, told_ns = (
            min(sum(ns for ns, passes in zip(each.tolist(), passing, strict=True) if passes), MOST_NS)
            for each in columns[:2]
        )
        left = _owing(limits, shared[scope].balance_micro, used_ns - told_ns)
        shared[scope] = replace(shared[scope], balance_micro=left)
    used_ns, _, messages, common_ns = (sum(each.tolist()) for each in columns)
    prices = state.prices
    if messages:
        passed_ms = state.advanced_to_ms - prices.priced_ms
        specific_ns = min(used_ns - common_ns, MOST_NS)
        mean_ns = _moved(prices.specific_ns, specific_ns, messages, min(windows_ms), passed_ms)
        prices = MeanPrices(ceil_div(min(common_ns, MOST_NS), messages), mean_ns, state.advanced_to_ms)
    return replace(state, flows=flows, shared=shared, prices=prices)


def _moved(price_ns: int, time_ns: int, messages: int, window_ms: int, passed_ms: int) -> int:
    """Return a price after a batch: what was measured, or more while it falls, by half in a window at most."""
    fallen_ns = price_ns * min(max(passed_ms, 0), window_ms) // (2 * window_ms)
    return max(ceil_div(time_ns, messages), 1, price_ns - fallen_ns)


def _owing(limits: ScopeLimits, balance_micro: Tokens, owed_ns: int) -> Tokens:
    """Return balances less time; an observing scope is overdrawn by at most a burst."""
    *others, held_ns = balance_micro
    if not limits.limits(Dimension.TIME):
        return balance_micro
    least_ns = -limits.burst_micro[Dimension.TIME] if limits.on_excess == OnExcess.OBSERVE else MIN_BALANCE_MICRO
    return tokens([*others, max(held_ns - owed_ns, min(least_ns, held_ns))])


def _window_ms(limits: ScopeLimits) -> int:
    """Return the time in which a bucket of time fills; 0 if it never does."""
    rate, burst = limits.rate_micro_per_ms[Dimension.TIME], limits.burst_micro[Dimension.TIME]
    return min(max(burst // rate, 1), 10_000) if rate > 0 else 0


def _earned(state: DeciderState, policy: CompiledPolicy, *, elapsed_ms: int) -> dict[tuple[Level, str], Tokens]:
    """Return the balances of the shared scopes later, at the shares that were in force."""
    earned = {}
    memories = ReferenceState.from_arrays(state, policy).shared
    for memory, quota, key in zip(memories, *_scopes_of(policy), strict=True):
        balances = [0] * len(DIMENSIONS)
        for d in quota.limited_dimensions:
            bucket = memory.bucket(quota, d)
            bucket.refill(elapsed_ms)
            balances[d] = bucket.balance_micro
        earned[key] = tokens(balances)
    return earned


def _shared(
    earned: dict[tuple[Level, str], Tokens], before: CompiledPolicy, after: CompiledPolicy, row: ControlRow
) -> Int64s:
    """Return the balances of the shared scopes of `after`, cut to their bursts at the shares of the epoch."""
    former = dict(zip(*reversed(_scopes_of(before)), strict=True))
    found = []
    for scope, (quota, key) in enumerate(zip(*_scopes_of(after), strict=True)):
        share = None if row.share_micro_per_ms is None else tokens(row.share_micro_per_ms[scope])
        balances = [0] * len(DIMENSIONS)
        for d in quota.limited_dimensions:
            if after is before:
                balance_micro = earned[key][d]
            elif key in former:
                balance_micro = changed_balance(former[key], quota, d, earned[key][d], elapsed_ms=0)
            else:
                balance_micro = TokenBucket.full(quota.rate_micro_per_ms[d], quota.burst_micro[d]).balance_micro
            bucket = ScopeMemory(tokens([balance_micro] * len(DIMENSIONS)), share).bucket(quota, d)
            bucket.refill(0)
            balances[d] = bucket.balance_micro
        found.append(balances)
    return np.array(found, dtype=np.int64).reshape(-1, len(DIMENSIONS))


def _scopes_of(policy: CompiledPolicy) -> tuple[list[ScopeLimits], list[tuple[Level, str]]]:
    """Return the limits of the shared scopes, and what each is called."""
    keys = [(Level.JOB, "")]
    keys += [(Level.TENANT, name) for name in policy.tenant_names.to_pylist()]
    keys += [(Level.RESOURCE_GROUP, name) for name in policy.group_names.to_pylist()]
    return [ScopeLimits.from_limits(policy.shared, at, level, at) for at, (level, _) in enumerate(keys)], keys


def _cut(old: ScopeLimits, new: ScopeLimits, d: Dimension, held: int, cut: int, holds: int, *, elapsed_ms: int) -> int:
    """Return how much more the largest bucket since it was full lacks, after a change, than the new one."""
    if not (old.limits(d) and new.limits(d)):
        return 0
    was, becomes = (TokenBucket.full(each.rate_micro_per_ms[d], each.burst_micro[d]) for each in (old, new))
    largest = TokenBucket(was.rate_micro_per_ms, 0, held - was.full_micro - cut)
    largest.earn(elapsed_ms)
    if old.on_excess == OnExcess.OBSERVE:
        overdrawn = TokenBucket(was.rate_micro_per_ms, was.burst_micro, held)
        overdrawn.refill(elapsed_ms)
        largest.balance_micro += max(0, -becomes.burst_micro - overdrawn.balance_micro)
    return max(0, holds - becomes.full_micro - largest.balance_micro)


def changed_balance(
    old: ScopeLimits, new: ScopeLimits, dimension: Dimension, balance_micro: int, *, elapsed_ms: int
) -> int:
    """Return the balance of a bucket after a change of its limits."""
    if not new.limits(dimension):
        return 0
    begins = TokenBucket.full(new.rate_micro_per_ms[dimension], new.burst_micro[dimension])
    if not old.limits(dimension):
        return begins.balance_micro
    bucket = TokenBucket(old.rate_micro_per_ms[dimension], old.burst_micro[dimension], balance_micro)
    bucket.refill(elapsed_ms)
    if old.on_excess == OnExcess.OBSERVE:
        bucket.balance_micro = max(bucket.balance_micro, -begins.burst_micro)
    if bucket.rate_micro_per_ms == 0 < begins.rate_micro_per_ms and bucket.balance_micro == -1:
        bucket.balance_micro = 0  # closed, but not in debt
    return min(bucket.balance_micro, begins.balance_micro)
