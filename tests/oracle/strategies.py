"""Hypothesis strategies: small worlds in which everything that can happen to a row happens often.

Numbers are drawn from the edges (0, one micro-token, a fraction of a token, more than an int32 holds) and from a
middle range in which a few messages exhaust a quota. Names collide: tenants have named and unnamed namespaces, a
namespace may have a tenant's name, and some rows have no name at all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.limits.budgets import CalendarWindows
from spark_throttle.core.measured_time import MeasuredTime
from spark_throttle.core.quota import (
    MAX_BURST_TOKENS,
    MAX_SIZE_BYTES,
    MICRO,
    MOST_NS,
    UNLIMITED,
    CompiledPolicy,
    Dimension,
    Guarantees,
    Int64s,
    Level,
    OnExcess,
    Overflow,
    Period,
    QueueBounds,
)
from spark_throttle.core.state import ControlRow
from spark_throttle.policy.compile import setting_of
from spark_throttle.policy.model import GroupPolicy, NamespacePolicy, ScopePolicy, TenantPolicy
from tests.oracle.history import History, Step, pins
from tests.oracle.setting_values import settings_of, values_of
from tests.oracle.worlds import (
    Limit,
    Namespace,
    Tenant,
    Window,
    make_arrivals,
    make_policy,
)

START_TIMES_MS = (0, 1, 999, 1_000, 1_760_000_000_000)
STEPS_MS = (0, 1, 7, 100, 999, 1_000, 2_500, 60_000, 86_400_000)
BACKWARD_STEPS_MS = (-1, -1_500, -86_400_000)

TENANT_NAMES = ("acme", "blue", "cora")
GROUP_NAMES = ("gold", "iron", "wood")
GLOBS = ("acme/lo*", "acme/*", "cora/*", "bl*", "*/logs", "*ü*o*", "*")
"""Globs, the most specific first."""

NAMESPACE_NAMES = ("acme/logs", "acme/clicks", "blue/logs", "blue", "cora/ü/logs", "dora/logs", "solo")
LONGEST_NAME = "acme/" + "é" * 509 + "x"
TOO_LONG_NAME = LONGEST_NAME + "x"
MALFORMED_NAMES = (None, "", TOO_LONG_NAME)
MALFORMED_SIZES_BYTES = (None, -1, -(2**63), MAX_SIZE_BYTES + 1, 2**63 - 1)

MESSAGE_RATES = (0, 1, 200, 333, 1_000, 3_000, 3_000, 10_000, 10_000, 1_000_000, 2**30 - 1, 2**30 + 1)
BYTE_RATES = (0, 1, 1_000, 99_999, 10**5, 10**5, 10**6, 10**9, 2**30, 1_000 * MAX_BURST_TOKENS)
MAX_BURST_MICRO = MAX_BURST_TOKENS * MICRO


FEW_TOKENS_MICRO = st.integers(0, 20 * MICRO)
BURSTS_MICRO = st.one_of(
    FEW_TOKENS_MICRO, st.sampled_from((0, 1, MICRO - 1, MICRO, 300 * MICRO, 1_000 * MICRO, MAX_BURST_MICRO))
)
WEIGHTS = st.sampled_from((1, 1, 2, 3, 7, 1_000))
TIME_QUOTAS = st.one_of(
    st.just((UNLIMITED, 0)),
    st.just((UNLIMITED, 0)),
    st.just((0, 0)),
    st.tuples(st.sampled_from((1, 500_000, 2_500_000)), st.sampled_from((0, 1, 10**9, MAX_BURST_TOKENS * MICRO))),
)
"""Rates and bursts of quotas on processing time."""


TIMES_NS = st.sampled_from((0, 1, 999, 1_000_000, 1_000_000, 10_000_000, 2**40, MOST_NS))
"""What messages take of processing time."""

BALANCES_MICRO = st.one_of(
    st.integers(-3 * MICRO, 12 * MICRO),
    st.integers(0, 1_000).map(lambda tokens: tokens * MICRO),
    st.sampled_from((-1, 0, 1, MICRO - 1, MAX_BURST_MICRO // 2)),
)

NAMES = st.sampled_from((*NAMESPACE_NAMES, *NAMESPACE_NAMES, *TENANT_NAMES, LONGEST_NAME))
SIZES_BYTES = st.one_of(
    st.sampled_from((0, 1, 1, 10, 100, 1_000)), st.integers(0, 200), st.sampled_from((2**31, MAX_SIZE_BYTES))
)
RUNS = st.lists(st.tuples(NAMES, SIZES_BYTES, st.integers(1, 5), SIZES_BYTES), max_size=8)
MALFORMED_ROWS = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from(MALFORMED_NAMES),
            st.one_of(SIZES_BYTES, st.sampled_from(MALFORMED_SIZES_BYTES)),
            SIZES_BYTES,
        ),
        st.tuples(NAMES, st.sampled_from(MALFORMED_SIZES_BYTES), SIZES_BYTES),
        st.tuples(NAMES, SIZES_BYTES, st.sampled_from(MALFORMED_SIZES_BYTES)),
    ),
    min_size=1,
    max_size=3,
)


@cache
def settings(part: type[ScopePolicy]) -> st.SearchStrategy[dict[str, int]]:
    """Return some of the settings of an entry and its quota, mostly none."""
    drawn = {
        key: st.sampled_from([setting_of(key, value) for value in values_of(key, (1, 50, 99, 100, 2**31))])
        for key in (*settings_of(type(part().publish)), *settings_of(part))
    }
    return st.one_of(st.just(dict[str, int]()), st.fixed_dictionaries({}, optional=drawn))


@cache
def limits(on_excess: tuple[OnExcess, ...], part: type[ScopePolicy] = ScopePolicy) -> st.SearchStrategy[Limit]:
    """Return limits in some dimensions; a rate of 0 has no burst."""
    message_limits = st.tuples(st.sampled_from(MESSAGE_RATES), BURSTS_MICRO)
    byte_limits = st.tuples(st.sampled_from(BYTE_RATES), BURSTS_MICRO)
    absent = st.just((UNLIMITED, 0))
    unit_limits = st.one_of(absent, absent, byte_limits)
    tokens = st.one_of(
        st.tuples(absent, absent, unit_limits),
        st.tuples(message_limits, absent, unit_limits),
        st.tuples(absent, byte_limits, unit_limits),
        st.tuples(message_limits, byte_limits, unit_limits),
    )
    return st.builds(_limit, tokens, st.sampled_from(on_excess), WEIGHTS, settings(part), TIME_QUOTAS)


def _limit(
    tokens: tuple[tuple[int, int], ...],
    on_excess: OnExcess,
    weight: int,
    settings: dict[str, int],
    time: tuple[int, int],
) -> Limit:
    rates, bursts = zip(*tokens, time, strict=True)
    held = tuple(burst if rate > 0 else 0 for rate, burst in zip(rates, bursts, strict=True))
    return Limit(rates, held, on_excess, weight, settings)


@cache
def maybe_limits(on_excess: tuple[OnExcess, ...], part: type[ScopePolicy] = ScopePolicy) -> st.SearchStrategy[Limit]:
    """Return limits; half of the time, no limit."""
    return st.one_of(st.just(Limit()), limits(on_excess, part))


@cache
def windows() -> st.SearchStrategy[tuple[Window, Window]]:
    """Return Pegasus' rules by count and by size, mostly none."""
    units = st.sampled_from((0, 1, 2, 5, 1_000))
    waits_ms = st.sampled_from((0, 1, 50, 1_500))
    rule = st.builds(Window, units, waits_ms, units, waits_ms)
    off = st.just(Window())
    return st.one_of(st.just((Window(), Window())), st.tuples(rule, off), st.tuples(off, rule), st.tuples(rule, rule))


@cache
def queue_bounds(*, may_fail: bool) -> st.SearchStrategy[QueueBounds]:
    """Return bounds from one row to more than a test can fill."""
    return st.builds(
        QueueBounds,
        messages=st.sampled_from((1, 3, 8, 2**50, 2**50)),
        bytes=st.sampled_from((1, 150, 2**50, 2**50, 2**50)),
        age_ms=st.sampled_from((None, None, 0, 500, 5_000)),
        on_overflow=st.sampled_from(Overflow) if may_fail else st.just(Overflow.REJECT),
    )


@cache
def members(on_excess: tuple[OnExcess, ...], groups: tuple[str, ...]) -> st.SearchStrategy[Namespace]:
    """Return entries of a namespace in a policy with these groups."""
    return st.builds(_namespace, maybe_limits(on_excess, NamespacePolicy), st.sampled_from((None, *groups)), windows())


def _namespace(limit: Limit, group: str | None, rules: tuple[Window, Window]) -> Namespace:
    return Namespace(limit, group, *rules)


SOME_GLOBS = ((), (), (), GLOBS, GLOBS[:3], GLOBS[2:4], GLOBS[4:], GLOBS[::2])
SOME_EXEMPT = ((), (), (), (), ("acme/logs",), ("*/clicks", "solo"), ("blue*",))


@st.composite
def policies(
    draw: st.DrawFn, *, on_excess: tuple[OnExcess, ...] = tuple(OnExcess), may_fail: bool = False
) -> CompiledPolicy:
    """Return policies with up to 3 tenants, 3 groups, 6 namespaces and some globs, plus the defaults and the job."""
    groups = GROUP_NAMES[: draw(st.integers(0, len(GROUP_NAMES)))]
    tenants = TENANT_NAMES[: draw(st.integers(0, len(TENANT_NAMES)))]
    named = NAMESPACE_NAMES[: draw(st.integers(0, 6))]
    tenant, member = maybe_limits(on_excess, TenantPolicy), members(on_excess, groups)
    policy = make_policy(
        job=draw(maybe_limits(on_excess)),
        tenants={name: Tenant(draw(tenant), draw(st.sampled_from((None, *groups)))) for name in tenants},
        groups={name: draw(limits(on_excess, GroupPolicy)) for name in groups},
        namespaces={name: draw(member) for name in (*named, *draw(st.sampled_from(SOME_GLOBS)))},
        exempt=draw(st.sampled_from(SOME_EXEMPT)),
        default=draw(member),
        queue=draw(queue_bounds(may_fail=may_fail)),
    )
    return replace(policy, guarantees=draw(st.none() | guarantees(policy)))


@st.composite
def guarantees(draw: st.DrawFn, policy: CompiledPolicy) -> Guarantees | None:
    """Return guarantees of some scopes: whether they can be kept at once, no limit depends on."""
    tenants, groups = len(policy.tenant_names), len(policy.group_names)
    names, group = policy.namespace_names.to_pylist(), policy.namespace_group.tolist()
    places = [
        (Level.TENANT, -1, (1 + at, draw(st.sampled_from((-1, *range(1 + tenants, 1 + tenants + groups)))), 0))
        for at in range(tenants)
    ]
    places += [(Level.RESOURCE_GROUP, -1, (-1, 1 + tenants + at, 0)) for at in range(groups)]
    known = policy.tenant_names.to_pylist()
    for at, name in enumerate(names):
        tenant = name.split("/")[0]
        scope = 1 + known.index(tenant) if tenant in known else -1
        places.append((Level.NAMESPACE, at, (scope, 1 + tenants + group[at] if group[at] >= 0 else -1, 0)))
    chosen = [place for place in places if draw(st.booleans())]
    if not chosen:
        return None
    rates = [[draw(st.sampled_from((UNLIMITED, *MESSAGE_RATES))) for _ in Dimension] for _ in chosen]
    times_ms = st.sampled_from((1, 1_000, 10_000))
    levels, rules, ways = zip(*chosen, strict=True)
    columns = (
        levels,
        rules,
        ways,
        rates,
        [draw(times_ms) for _ in chosen],
        [[draw(times_ms)] * len(Dimension) for _ in chosen],
    )
    return Guarantees(*(np.array(column, dtype=np.int64) for column in columns))


@st.composite
def measured_times(draw: st.DrawFn) -> MeasuredTime:
    """Return what was measured of some namespaces."""
    names = [name for name in NAMESPACE_NAMES if draw(st.booleans())]
    columns = []
    for _ in names:
        used_ns, part = draw(TIMES_NS), draw(st.sampled_from((0, 0, 1, 4)))
        columns.append([used_ns, draw(TIMES_NS), draw(st.sampled_from((0, 1, 1, 3, 10, 1_000))), used_ns * part // 4])
    return MeasuredTime(pa.array(names, pa.string()), *np.array(columns, dtype=np.int64).reshape(-1, 4).T.copy())


@st.composite
def epochs(draw: st.DrawFn, policy: CompiledPolicy, *, number: int, paid_ms: int) -> ControlRow:
    """Return what an epoch pins under `policy`: shares of the quotas, what was measured of time, both or neither."""
    measured = draw(measured_times()) if draw(st.integers(0, 2)) == 0 else None
    share_micro_per_ms = None
    if draw(st.integers(0, 4)) == 0:
        quota = policy.shared.rate_micro_per_ms
        shares = [
            draw(st.sampled_from((rate, rate // 2, min(rate, 1), 0, rate * 1_000)))
            for rate in quota.reshape(-1).tolist()
        ]
        share_micro_per_ms = np.array(shares, dtype=np.int64).reshape(-1, len(Dimension))
        share_micro_per_ms = np.where(quota == UNLIMITED, UNLIMITED, share_micro_per_ms)
    windows = None if draw(st.integers(0, 7)) == 0 else draw(calendar_windows(number, paid_ms))
    return pins(number, paid_ms, share_micro_per_ms=share_micro_per_ms, measured=measured, windows=windows)


@st.composite
def calendar_windows(draw: st.DrawFn, number: int, paid_ms: int) -> CalendarWindows:
    """Return windows of budgets, of which some have begun since those of the epoch before."""
    begun = [number // 2 * 2 + draw(st.sampled_from((0, 0, 1, 2))) for _ in Period]
    until_ms = [paid_ms + draw(st.sampled_from((1, 500, 3_600_000))) for _ in Period]
    return CalendarWindows(*np.array([begun, [paid_ms] * len(Period), until_ms], dtype=np.int64))


@st.composite
def balances(draw: st.DrawFn, policy: CompiledPolicy) -> Int64s:
    """Return balances of the shared buckets under `policy`; a scope with rate 0 or without a limit holds nothing."""
    nothing = {0: -1, UNLIMITED: 0}
    drawn = [
        nothing[rate] if rate in nothing else draw(BALANCES_MICRO)
        for rate in policy.shared.rate_micro_per_ms.reshape(-1).tolist()
    ]
    return np.array(drawn, dtype=np.int64).reshape(-1, len(Dimension))


@st.composite
def arrivals(draw: st.DrawFn, *, malformed: bool = True) -> Arrivals:
    """Return a batch of runs of equal rows, sometimes with malformed rows."""
    rows: list[tuple[str | None, int | None, int | None]] = []
    for name, size_bytes, count, units in draw(RUNS):
        rows += [(name, size_bytes, units)] * count
    has_units = draw(st.integers(0, 2)) > 0
    if malformed and draw(st.integers(0, 4)) == 4:
        for row in draw(MALFORMED_ROWS):
            rows.insert(draw(st.integers(0, len(rows))), row)
        return replace(_made(rows, has_units=has_units), is_writable=np.arange(len(rows)) % draw(st.integers(2, 5)) > 0)
    return _made(rows, has_units=has_units)


def _made(rows: list[tuple[str | None, int | None, int | None]], *, has_units: bool) -> Arrivals:
    return make_arrivals(rows if has_units else [row[:2] for row in rows])


@st.composite
def histories(
    draw: st.DrawFn,
    *,
    on_excess: tuple[OnExcess, ...] = tuple(OnExcess),
    monotone: bool = False,
    one_policy: bool = False,
    malformed: bool = True,
    may_fail: bool = False,
    max_steps: int = 5,
) -> History:
    """Return up to `max_steps` batches; the first one and every policy change come with an epoch, others may."""
    steps: list[Step] = []
    now_ms = draw(st.sampled_from(START_TIMES_MS))
    policy = draw(policies(on_excess=on_excess, may_fail=may_fail))
    for epoch in range(1, draw(st.integers(1, max_steps)) + 1):
        is_new = not one_policy and epoch > 1 and draw(st.integers(0, 5)) == 0
        if is_new:
            policy = draw(policies(on_excess=on_excess, may_fail=may_fail))
        pinned = shared_micro = None
        if epoch == 1 or is_new or draw(st.booleans()):
            paid_ms = max(0, now_ms - draw(st.sampled_from((0, 0, 1, 1_000))))
            pinned = draw(epochs(policy, number=epoch, paid_ms=paid_ms))
            share = pinned.share_micro_per_ms
            if share is None and draw(st.integers(0, 2)) > 0:
                shared_micro = draw(balances(policy))
        steps.append(Step(now_ms, draw(arrivals(malformed=malformed)), policy, pinned, shared_micro))
        now_ms = max(0, now_ms + draw(st.sampled_from(STEPS_MS if monotone else STEPS_MS + BACKWARD_STEPS_MS)))
    return History(steps)
