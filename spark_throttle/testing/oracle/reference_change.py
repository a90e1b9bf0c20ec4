"""The oracle of a policy change: a shard's state, converted to the new policy's terms namespace by namespace."""

from __future__ import annotations

from dataclasses import replace

from spark_throttle.core.quota import MAX_SIZE_BYTES, CompiledPolicy, Dimension, Level, OnExcess
from spark_throttle.core.state import DeciderState
from spark_throttle.testing.oracle.reference_bucket import VT_MAX, TokenBucket, milli_tokens_in
from spark_throttle.testing.oracle.reference_rules import DIMENSIONS, NamespaceRules, Pair, ScopeLimits, pair, rules_of
from spark_throttle.testing.oracle.reference_state import FlowMemory, ReferenceState


def reference_change(
    state: DeciderState, before: CompiledPolicy, after: CompiledPolicy, *, now_ms: int
) -> ReferenceState:
    """Return what `carried` must return for the same arguments; `state` already has the grants of `after`."""
    names: list[str] = state.flows.names.to_pylist()
    flows = {}
    for i, name in enumerate(names):
        old, new = rules_of(before, name), rules_of(after, name)
        balances = [
            changed_balance(
                old.limits,
                new.limits,
                d,
                int(state.flows.balance_micro[i, d]),
                elapsed_ms=now_ms - state.advanced_to_ms,
            )
            for d in DIMENSIONS
        ]
        memory = FlowMemory(
            pair(balances),
            changed_lead(
                old, new, pair(state.flows.lead_vt[i]), is_same_domain=_domain(before, old) == _domain(after, new)
            ),
            int(state.flows.window_second[i]),
            pair(state.flows.window_units[i]),
        )
        flows[name] = memory.meaningful(new, second=now_ms // 1000)
    granted = ReferenceState.from_arrays(state, after)
    queue = []
    for row in granted.queue:
        rules = rules_of(after, row.namespace).windows
        longest_ms = max((rule.delay_ms for rule in rules if rule.delay_units > 0), default=0)
        queue.append(replace(row, release_ms=min(row.release_ms, now_ms + longest_ms)))
    return ReferenceState(now_ms, flows, queue, granted.epoch, granted.granted_as_of_ms, granted.grants, granted.time)


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
    was_full = bucket.is_full
    if old.on_excess == OnExcess.OBSERVE:
        bucket.balance_micro = max(bucket.balance_micro, -begins.burst_micro)
    if begins.rate_micro_per_ms == 0:
        return min(bucket.balance_micro, -1 if was_full else -2)
    if bucket.rate_micro_per_ms == 0 and bucket.balance_micro in (-1, -2):
        bucket.balance_micro = 0  # closed, but not in debt
    return min(bucket.balance_micro, begins.balance_micro)


def changed_lead(old: NamespaceRules, new: NamespaceRules, lead_vt: Pair, *, is_same_domain: bool) -> Pair:
    """Return the lead of a flow after a change: the same number of tokens as before, at most one message."""
    was, becomes = old.domain, new.domain
    if is_same_domain and (was is None or becomes is None or old.turn_rates == new.turn_rates):
        is_same_weight = old.limits.weight == new.limits.weight
        if is_same_weight:
            return lead_vt
    ahead = [0, 0]
    for d in DIMENSIONS:
        if was is None or becomes is None or d not in old.clocked_dimensions or d not in new.clocked_dimensions:
            continue
        thousandths = milli_tokens_in(lead_vt[d] - 2, old.turn_rates[d], old.limits.weight)
        thousandths = min(thousandths, 1000 * (1 if d == Dimension.MESSAGES else MAX_SIZE_BYTES))
        ahead[d] = _time_of(thousandths, new.turn_rates[d], new.limits.weight)
    return pair(ahead)


def _time_of(thousandths: int, rate_micro_per_ms: int, weight: int) -> int:
    """Return the virtual time of thousandths of a token, rounded down; whole tokens at large rates."""
    if rate_micro_per_ms == 0:
        return 0
    if rate_micro_per_ms >= 2**30:
        return min(((thousandths // 1000) << 30) // (rate_micro_per_ms // 1000 * weight), VT_MAX)
    return min((thousandths << 30) // (rate_micro_per_ms * weight), VT_MAX)


def _domain(policy: CompiledPolicy, rules: NamespaceRules) -> tuple[Level, str] | None:
    """Return the level and the name of the scope in which a namespace takes turns."""
    domain = rules.domain
    if domain is None:
        return None
    names = ["", *policy.tenant_names.to_pylist(), *policy.group_names.to_pylist()]
    return domain.level, names[domain.index]
