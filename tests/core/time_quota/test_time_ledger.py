"""The ledger of processing time: charges, prices, windows, and what they let through, against a slow oracle."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.limits.message_limits import MessageBuckets, is_stricter, stricter
from spark_throttle.core.quota import (
    MICRO,
    MIN_BALANCE_MICRO,
    NEVER_MS,
    UNLIMITED,
    CompiledPolicy,
    OnExcess,
    TimeQuotas,
)
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.time_quota.time_accounts import TimeAccounts
from spark_throttle.core.time_quota.time_in_force import limits_in_force
from spark_throttle.core.time_quota.time_ledger import TimeLease, TimeLedger, time_by_scope
from spark_throttle.core.usage import UsageReport
from spark_throttle.testing.oracle.worlds import Limit, Namespace, Tenant, limit, make_policy

MS = 1_000_000
"""Nanoseconds in a millisecond."""

HALF = limit(request_percentage=50, burst_seconds=2)
NOTHING = TimeCharges.of({})


def report(**messages: int) -> UsageReport:
    """Return the report of a batch that admitted messages; `_` stands for the slash of a name."""
    names = [name.replace("_", "/") for name in messages]
    pairs = np.array([[count, 100 * count] for count in messages.values()], dtype=np.int64).reshape(-1, 2)
    none = np.zeros(len(names), dtype=np.int64)
    return UsageReport(
        1, "r1", 0, pa.array(names, pa.string()), none - 1, none - 1, none + 1, pairs, pairs, pairs * 0, pairs * 0,
        pairs * 0, none, none, np.zeros((1, 2), dtype=np.int64), NEVER_MS, NEVER_MS,
    )  # fmt: skip


def charges(unattributed_ns: int = 0, **time_ms: int) -> TimeCharges:
    """Return charges in milliseconds; `_` stands for the slash of a name."""
    return TimeCharges.of(
        {name.replace("_", "/"): each * MS for name, each in time_ms.items()}, unattributed_ns=unattributed_ns
    )


def test_batch_is_charged_to_the_namespace_its_tenant_its_group_and_the_job() -> None:
    policy = make_policy(
        job=HALF, tenants={"acme": Tenant(HALF, "gold")}, groups={"gold": HALF}, namespaces={"acme/x": Namespace(HALF)},
    )  # fmt: skip
    ledger = TimeLedger.opened(policy, now_ms=0)
    ledger = ledger.settled(charges(acme_x=1_500, blue_y=100), [report(acme_x=10, blue_y=1)], policy, at_ms=0)
    assert ledger.shared.balance_ns.tolist() == [-600 * MS, -500 * MS, -500 * MS]
    assert ledger.names.to_pylist() == ["acme/x", "blue/y"]  # the second for its price alone
    assert ledger.own.balance_ns.tolist() == [-500 * MS, 0]
    assert ledger.own.price_ns.tolist() == [150 * MS, 100 * MS]
    assert ledger.used.shared_ns.tolist() == [1_600 * MS, 1_500 * MS, 1_500 * MS]
    assert ledger.used.own_ns.tolist() == [1_500 * MS, 100 * MS]
    assert ledger.shared.throttle_ms(quotas(policy)).tolist() == [1_200, 1_000, 1_000]


def quotas(policy: CompiledPolicy) -> TimeQuotas:
    assert policy.shared.time is not None
    return policy.shared.time


def test_exempt_time_and_time_of_nobody_are_counted_and_charged_to_no_scope() -> None:
    policy = make_policy(job=HALF, exempt=["infra/*"])
    ledger = TimeLedger.opened(policy, now_ms=0)
    used = charges(unattributed_ns=7, infra_a=900, acme_x=100)
    ledger = ledger.settled(used, [report(infra_a=9, acme_x=1)], policy, at_ms=0)
    assert ledger.shared.balance_ns.tolist() == [900 * MS]
    assert (ledger.used.exempt_ns, ledger.used.unattributed_ns) == (900 * MS, 7)
    shared_ns, exempt_ns = time_by_scope(used.names, used.time_ns, policy)
    assert (shared_ns.tolist(), exempt_ns) == ([100 * MS], 900 * MS)


def test_charges_of_many_namespaces_that_are_beyond_all_bounds_are_a_debt_and_no_gift() -> None:
    policy = make_policy(job=HALF, tenants={"acme": Tenant(HALF, None)}, exempt=["infra/*"])
    names = [f"{tenant}/{at}" for tenant in ("acme", "infra") for at in range(200)]
    ledger = TimeLedger.opened(policy, now_ms=0)
    for _ in range(3):
        used = TimeCharges.of(dict.fromkeys(names, 2**30 * 1_000 * MS))
        ledger = ledger.settled(used, [report(acme_0=1)], policy, at_ms=0)
    assert min(ledger.shared.throttle_ms(quotas(policy)).tolist()) > 10**9
    assert min(*ledger.used.shared_ns, ledger.used.exempt_ns) > 0


def test_debt_is_repaid_whole_however_short_the_window_is() -> None:
    policy = make_policy(job=HALF)
    ledger = TimeLedger.opened(policy, now_ms=0)
    ledger = ledger.settled(charges(acme_x=1_000_000), [report(acme_x=1)], policy, at_ms=0)
    assert ledger.shared.balance_ns.tolist() == [-999_000 * MS]
    assert ledger.shared.throttle_ms(quotas(policy)).tolist() == [1_998_000]
    assert ledger.refilled(policy, now_ms=1_998_000).shared.balance_ns.tolist() == [0]


def test_throttle_time_is_kip_124s() -> None:
    """Used 3 s in a window of 2 s of half a core: (3 - 1) / 1 * 2 s are 4 s, of which KIP-124 would forgive 2 s."""
    quota = TimeQuotas(np.array([500_000, 500_000]), np.array([1_000 * MS, 1_000 * MS]))
    full = TimeAccounts.opened(quota)
    used = dataclasses.replace(full, balance_ns=full.balance_ns * 0)  # the window's own time is used up
    for used_ms, throttled_ms in ((1_500, 1_000), (3_000, 4_000)):
        over_ns = np.array([used_ms * MS - 1_000 * MS] * 2)
        by_formula_ms = Fraction(used_ms - 1_000, 1_000) * 2_000
        found = used.charged(quota, over_ns, np.array([1, 1])).throttle_ms(quota).tolist()
        assert found == [throttled_ms] * 2 == [by_formula_ms] * 2


def test_namespace_without_charges_is_not_limited() -> None:
    policy = make_policy(default=Namespace(HALF))
    ledger = TimeLedger.opened(policy, now_ms=0)
    ledger = ledger.settled(NOTHING, [report(acme_x=10**6)], policy, at_ms=0)
    assert ledger.names.to_pylist() == []
    shared = make_policy(job=HALF)
    ledger = TimeLedger.opened(shared, now_ms=0).settled(NOTHING, [report(acme_x=10**6)], shared, at_ms=0)
    assert ledger.shared_as_messages(shared).rate_micro_per_ms.tolist() == [UNLIMITED]


def test_price_rises_at_once_and_falls_by_half_a_window() -> None:
    policy = make_policy(job=HALF)
    ledger = TimeLedger.opened(policy, now_ms=0)
    rates = []
    for cost_ms in (10, 10, 100, 100, *[1] * 7):
        batch = charges(acme_x=10 * cost_ms), [report(acme_x=10)]
        ledger = ledger.settled(*batch, policy, at_ms=ledger.as_of_ms + 4_000)
        rates.append(int(ledger.shared_as_messages(policy).rate_micro_per_ms[0]))
    # Half a core is 50 messages of 10 ms a second. A window is 2 s, and a batch lowers a price by half at most.
    assert rates == [50_000, 50_000, 5_000, 5_000, 10_000, 20_000, 40_000, 80_000, 160_000, 320_000, 500_000]


@pytest.mark.slow
def test_price_falls_by_no_more_in_many_short_batches_and_not_while_no_time_passes() -> None:
    policy = make_policy(job=HALF)
    dear = TimeLedger.opened(policy, now_ms=0).settled(charges(acme_x=1_000), [report(acme_x=10)], policy, at_ms=0)
    ledger = dear
    for _ in range(20):
        ledger = ledger.settled(NOTHING, [report(acme_x=1_000)], policy, at_ms=ledger.as_of_ms + 100)
    assert 5_000 < ledger.shared_as_messages(policy).rate_micro_per_ms[0] <= 10_000
    at_once = dear.settled(NOTHING, [report(acme_x=1_000)], policy, at_ms=0)
    assert at_once.shared_as_messages(policy).rate_micro_per_ms[0] == 5_000
    later = dear.settled(NOTHING, [report(acme_x=1_000)], policy, at_ms=0, passed_ms=1_000)
    assert later.shared_as_messages(policy).rate_micro_per_ms[0] == 5_000 * 4 // 3


def test_time_without_messages_is_a_price_of_the_last_ones_and_does_not_add_up() -> None:
    policy = make_policy(job=HALF)
    ledger = TimeLedger.opened(policy, now_ms=0)
    for messages in (10, 0, 0, 0):
        ledger = ledger.settled(charges(acme_x=100), [report(acme_x=messages)], policy, at_ms=0)
    assert ledger.shared_as_messages(policy).rate_micro_per_ms.tolist() == [50_000]


def test_scope_that_only_observes_is_measured_and_holds_nothing_back() -> None:
    observed = limit(request_percentage=50, burst_seconds=2, on_excess=OnExcess.OBSERVE)
    policy = make_policy(job=observed, default=Namespace(observed))
    ledger = TimeLedger.opened(policy, now_ms=0)
    ledger = ledger.settled(charges(acme_x=9_000), [report(acme_x=10)], policy, at_ms=0)
    assert ledger.shared.balance_ns.tolist() == ledger.own.balance_ns.tolist() == [-8_000 * MS]
    for told in (ledger.shared_as_messages(policy), ledger.own_as_messages(policy)):
        assert told.rate_micro_per_ms.tolist() == [UNLIMITED]


def test_quota_of_zero_admits_nothing_whatever_a_message_costs() -> None:
    policy = make_policy(job=limit(request_percentage=0), default=Namespace(limit(request_percentage=0)))
    ledger = TimeLedger.opened(policy, now_ms=0)
    for now_ms in (0, 10_000):
        told = ledger.refilled(policy, now_ms=now_ms).shared_as_messages(policy)
        assert (told.balance_micro.tolist(), told.rate_micro_per_ms.tolist()) == ([-1], [0])
    ledger = ledger.settled(charges(acme_x=5), [report(acme_x=10)], policy, at_ms=0)
    assert ledger.own_as_messages(policy).rate_micro_per_ms.tolist() == [0]


# Policies that change


@pytest.mark.parametrize(
    ("after", "balance_ms"),
    [
        (limit(request_percentage=100, burst_seconds=2), -800),  # raised: the debt stays
        (limit(request_percentage=25, burst_seconds=2), -800),  # lowered: it stays too
        (limit(messages_per_second=5), 0),  # removed
        (limit(request_percentage=0), -800),  # shut: the debt waits for the quota that comes after
    ],
)
def test_debt_is_carried_to_a_changed_quota(after: Limit, balance_ms: int) -> None:
    def policy_of(of: Limit) -> CompiledPolicy:
        other = limit(request_percentage=1)  # so that there is a ledger in any case
        return make_policy(tenants={"acme": Tenant(of), "zoe": Tenant(other)}, namespaces={"acme/x": Namespace(of)})

    before, then = policy_of(HALF), policy_of(after)
    ledger = TimeLedger.opened(before, now_ms=0)
    ledger = ledger.settled(charges(acme_x=1_800), [report(acme_x=9)], before, at_ms=0).carried(before, then)
    assert ledger.shared.balance_ns[1] == balance_ms * MS
    if after.time_rate_ns_per_ms == UNLIMITED:
        assert ledger.names.to_pylist() == []
        again = ledger.carried(then, before)
        assert again.shared.balance_ns[1] == 1_000 * MS  # as any scope that gets its first quota: full
    else:
        assert ledger.own.balance_ns.tolist() == [balance_ms * MS]
        assert ledger.shared.time_ns[1] == 1_800 * MS


def test_price_of_a_scope_goes_with_its_name() -> None:
    before = make_policy(tenants={"acme": Tenant(HALF), "blue": Tenant(HALF)})
    after = make_policy(tenants={"blue": Tenant(HALF), "cora": Tenant(HALF)}, revision="r2")
    ledger = TimeLedger.opened(before, now_ms=0)
    ledger = ledger.settled(charges(blue_x=40), [report(blue_x=4)], before, at_ms=0).carried(before, after)
    assert ledger.shared.time_ns.tolist() == [40 * MS, 40 * MS, 0]
    assert ledger.shared.balance_ns.tolist() == [0, 960 * MS, 1_000 * MS]
    assert ledger.used.shared_ns.tolist() == [40 * MS, 40 * MS, 0]


# The oracle

numbers = st.sampled_from([0, 1, 7, 999, MS, 1_000 * MS, 2**40, 2**56])
rates = st.sampled_from([UNLIMITED, 0, 1, 5_000, 500_000, 2_500_000, 2**50])
bursts = st.sampled_from([1, 999, MS, 1_000 * MS, 2**59])


class SlowAccount:
    """One account, in plain integers and fractions."""

    def __init__(self, rate: int, burst: int) -> None:
        self.rate, self.burst = rate, burst
        self.balance = {UNLIMITED: 0, 0: -1}.get(rate, burst)
        self.time = self.messages_micro = self.passed_ms = 0

    def pass_time(self, elapsed_ms: int) -> None:
        self.passed_ms = elapsed_ms
        if self.rate > 0:
            self.balance = min(self.balance + self.rate * elapsed_ms, self.burst)

    def charge(self, time_ns: int, messages: int) -> None:
        if self.rate >= 0:
            self.balance = max(self.balance - time_ns, MIN_BALANCE_MICRO)
        if not messages:
            self.time = max(self.time, time_ns)
            return
        window_ms = max(self.burst // self.rate, 1) if self.rate > 0 else 1_000
        part = 1 - Fraction(min(self.passed_ms, window_ms), 2 * window_ms)
        price = Fraction(self.time, self.messages_micro) if self.messages_micro else Fraction(0)
        self.time = max(time_ns, int(min(price * messages * MICRO, Fraction(2**57)) * part))
        self.messages_micro = messages * MICRO

    def note(self, time_ns: int) -> None:
        """Take over the time that messages count for, which is rounded to 30 bits."""
        assert abs(self.time - time_ns) <= (self.time >> 27) + 2
        self.time = time_ns

    def passes(self) -> Fraction | None:
        """Return how many messages the time is enough for; `None` where it holds nothing back."""
        if self.rate < 0 or (not self.time and self.balance >= 0) or (not self.messages_micro and self.balance >= 0):
            return None
        if self.rate == 0 or self.balance < 0:
            return Fraction(-1)
        return Fraction(self.balance * self.messages_micro, self.time * MICRO)


@pytest.mark.slow
@given(
    st.lists(st.tuples(rates, bursts), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.sampled_from([0, 1, 999, 60_000, 10**9]), st.lists(st.tuples(numbers, st.integers(0, 10**6)),
                                                                   min_size=4, max_size=4)),
        max_size=6,
    ),
)  # fmt: skip
def test_accounts_equal_a_slow_account_each(
    given_quotas: list[tuple[int, int]], batches: list[tuple[int, list[tuple[int, int]]]]
) -> None:
    quota = TimeQuotas(
        np.array([rate for rate, _ in given_quotas]),
        np.array([burst if rate > 0 else 0 for rate, burst in given_quotas]),
    )
    slow = [SlowAccount(rate, burst if rate > 0 else 0) for rate, burst in given_quotas]
    accounts = TimeAccounts.opened(quota)
    for elapsed_ms, used in batches:
        accounts = accounts.refilled(quota, elapsed_ms)
        time_ns, messages = (np.array(column[: len(slow)], dtype=np.int64) for column in zip(*used, strict=True))
        accounts = accounts.charged(quota, time_ns, messages, passed_ms=elapsed_ms)
        for account, each_ns, count in zip(slow, time_ns.tolist(), messages.tolist(), strict=True):
            account.pass_time(elapsed_ms)
            account.charge(each_ns, count)
        assert accounts.balance_ns.tolist() == [account.balance for account in slow]
        for account, told_ns in zip(slow, accounts.time_ns.tolist(), strict=True):
            account.note(told_ns)
        assert accounts.messages_micro.tolist() == [account.messages_micro for account in slow]
        told = accounts.as_messages(quota)
        for at, account in enumerate(slow):
            check_told(told.take(np.array([at])), account)


def check_told(told: MessageBuckets, account: SlowAccount) -> None:
    """Check the messages that an account lets through: as many as its time is enough for, rounded down."""
    passes = account.passes()
    rate, balance = int(told.rate_micro_per_ms[0]), int(told.balance_micro[0])
    if passes is None:
        assert rate == UNLIMITED
        return
    if account.rate == 0:
        assert (rate, balance) == (0, -1)
        return
    assert balance <= int(told.burst_micro[0])
    if passes < 0:
        assert told.wait_ms.tolist() == [-(account.balance // account.rate)]
    else:
        assert 0 <= balance <= passes * MICRO * Fraction(2**30 + 4, 2**30)  # quotients have 30 bits
        burst_ms, most = -(-account.burst // account.rate), Fraction(2**30 - 4, 2**30)
        exact = Fraction(account.rate * account.messages_micro, account.time)
        if 1 <= exact < 2**50 and exact * burst_ms < 2**59 and passes * MICRO < 2**59:
            assert rate >= exact * most - 1
            assert balance >= min(passes * MICRO, Fraction(rate * burst_ms)) * most - 1


buckets = st.tuples(
    st.sampled_from([-(2**40), -5_001, -1, 0, 3, MICRO, 2**40]), st.sampled_from([UNLIMITED, 0, 1, 5, 1_000]),
    st.sampled_from([0, 10, MICRO, 2**41]),
)  # fmt: skip


def bucket_of(balance: int, rate: int, burst: int) -> MessageBuckets:
    if rate <= 0:
        balance, burst = {UNLIMITED: 0, 0: min(balance, -1)}[rate], 0
    return MessageBuckets(np.array([min(balance, burst) if rate else balance]), np.array([rate]), np.array([burst]))


@pytest.mark.slow
@given(buckets, buckets, st.sampled_from([0, 1, 7, 5_000, 10**7]))
def test_stricter_of_two_buckets_never_holds_more_than_either(
    one: tuple[int, int, int], other: tuple[int, int, int], later_ms: int
) -> None:
    time, own = bucket_of(*one), bucket_of(*other)
    both = stricter(time, own)
    limited = [each for each in (time, own) if each.is_limited[0]]
    assert bool(both.is_limited[0]) == bool(limited)
    if not limited:
        return
    assert both.wait_ms[0] == max(each.wait_ms[0] for each in limited)
    assert bool(is_stricter(time, own)[0]) == (
        bool(time.is_limited[0])
        and (len(limited) == 1 or (-time.wait_ms[0], time.balance_micro[0]) < (-own.wait_ms[0], own.balance_micro[0]))
    )
    for each in limited:
        held, most = (int(of.grown(later_ms).balance_micro[0]) for of in (both, each))
        assert held <= max(most, -1) or (held < 0 and most < 0)
    if both.wait_ms[0] == 0:
        assert both.balance_micro[0] == min(int(each.balance_micro[0]) for each in limited)


def test_shared_scope_lets_through_what_both_its_limits_let_through() -> None:
    both = limit(messages_per_second=10, request_percentage=50, burst_seconds=2)
    policy = make_policy(tenants={"acme": Tenant(both), "blue": Tenant(both)})
    ledger = TimeLedger.opened(policy, now_ms=0)
    used = charges(acme_x=900, blue_x=90), [report(acme_x=9, blue_x=9)]
    ledger = ledger.settled(*used, policy, at_ms=0)
    buckets = SharedBuckets.full(policy, now_ms=0).debited(np.array([[0, 0], [9, 900], [9, 900]]), policy, -(10**18))
    limits = limits_in_force(policy, buckets.balance_micro, ledger, None)
    assert limits.is_by_time(buckets.balance_micro, policy).tolist() == [False, True, False]
    in_force, balance_micro = dataclasses.replace(buckets, time=limits).in_force(policy)
    assert balance_micro[1:, 0].tolist() == [MICRO, 11 * MICRO]  # 100 ms left at 100 ms; 20 - 9
    assert in_force.shared.rate_micro_per_ms[1:, 0].tolist() == [5_000, 10_000]
    assert buckets.balance_micro[1:, 0].tolist() == [11 * MICRO, 11 * MICRO]


def test_leased_scope_earns_as_long_as_the_lease_lasts_and_others_go_on() -> None:
    policy = make_policy(job=HALF, groups={"gold": HALF}, default=Namespace(HALF, group="gold"))
    ledger = TimeLedger.opened(policy, now_ms=0).settled(charges(a_x=1_900), [report(a_x=10)], policy, at_ms=0)
    assert ledger.shared.balance_ns.tolist() == [-900 * MS, -900 * MS]
    assert ledger.own.balance_ns.tolist() == [-900 * MS]
    for until_ms, earned_ms in ((0, 0), (400, 200), (9_000, 500)):
        lease = TimeLease(np.array([False, True]), until_ms)
        later = ledger.refilled(policy, now_ms=1_000, lease=lease)
        assert later.shared.balance_ns.tolist() == [-400 * MS, (-900 + earned_ms) * MS]
        assert later.own.balance_ns.tolist() == [-400 * MS], "a namespace's quota is its job's alone"
        assert later.as_of_ms == later.used.interval_ms == 1_000


# Whose messages the time is for


def test_time_of_a_shared_scope_is_told_at_the_price_of_what_its_namespaces_want() -> None:
    """A second, of messages of 100 ms and of 1 ms: half a second each are 5 and 500 of them, if both want more."""
    policy = make_policy(job=limit(request_percentage=100, burst_seconds=1))
    ledger = TimeLedger.opened(policy, now_ms=0)
    for names in ({"acme_x": 1_000}, {"acme_y": 10}, {}):
        ledger = ledger.settled(charges(**names), [report(**dict.fromkeys(names, 10))], policy, at_ms=ledger.as_of_ms)
    cheap = dataclasses.replace(ledger.shared, time_ns=np.array([MS]), messages_micro=np.array([MICRO]))
    ledger = dataclasses.replace(ledger, shared=cheap).refilled(policy, now_ms=9_000)

    def messages(**wanted: int) -> int:
        claimed = dataclasses.replace(
            report(**wanted), demand=np.array([[each, 0] for each in wanted.values()]),
            tenant=np.full(len(wanted), -1), group=np.full(len(wanted), -1),
        )  # fmt: skip
        buckets = SharedBuckets.full(policy, now_ms=9_000)
        limits = limits_in_force(policy, buckets.balance_micro, ledger, claimed)
        return int(dataclasses.replace(buckets, time=limits).in_force(policy)[1][0, 0]) // MICRO

    assert messages(acme_x=1_000, acme_y=100_000) == pytest.approx(505, abs=1)
    assert messages(acme_x=1_000, acme_y=100) == pytest.approx(109, abs=1)  # 100 ms are wanted, the rest are dear
    assert messages(acme_x=3, acme_y=100) == pytest.approx(703, abs=1)  # 600 ms are left, at the last messages' price
    assert messages(acme_y=100_000) == pytest.approx(1_000, abs=1)
    assert messages(acme_x=1_000) == pytest.approx(10, abs=1)
