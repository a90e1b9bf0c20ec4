"""Lending: what the shards together may use is what the bucket holds, whoever of them uses how much, and when."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_throttle.core.lending.grants import Buckets, Lending, _divided, lend, used_by_scope
from spark_throttle.core.lending.level_parts import Holding
from spark_throttle.core.lending.shard_parts import Claims, OneShard

from spark_throttle.core.arithmetic.units import MAX_TOKENS_PER_SECOND
from spark_throttle.core.limits.token_bucket import admissible_messages, byte_room
from spark_throttle.core.quota import (
    MAX_BURST_TOKENS,
    MICRO,
    MIN_BALANCE_MICRO,
    CompiledPolicy,
    Dimension,
    Int64s,
    OnExcess,
)
from spark_throttle.core.state import Grants
from spark_throttle.core.usage import UsageReport
from spark_throttle.testing.oracle.worlds import Limit, limit, make_grants, make_policy

MESSAGES, BYTES = Dimension.MESSAGES, Dimension.BYTES
JOB, GOLD, IRON = 0, 1, 2
"""Shared scopes of the policies here: no tenants, up to two groups."""

START_MS = 1_760_000_000_000

Demand = tuple[int, int, int, int, int]
"""Shard, group (-1 for none), weight, messages and bytes of one flow."""


def claims_of(demands: list[Demand]) -> Claims:
    rows = np.array(demands, dtype=np.int64).reshape(-1, 5)
    group = np.where(rows[:, 1] >= 0, GOLD + rows[:, 1], -1)
    scope = np.stack([np.full_like(group, -1), group, np.zeros_like(group)], axis=1)
    return Claims(rows[:, 0], scope, rows[:, 2], rows[:, 3:], np.zeros_like(rows[:, 3:]))


def holding(policy: CompiledPolicy, balances: dict[int, tuple[int, int]]) -> Buckets:
    """Return full buckets, but for the scopes whose balance is given in micro-tokens."""
    buckets = Buckets.full(policy, now_ms=START_MS)
    for scope, pair in balances.items():
        buckets.balance_micro[scope] = np.where(policy.shared.is_limited[scope], pair, 0)
    return buckets


def grants_of(lending: Lending, shard: int) -> Grants:
    return Grants(1, lending.balance_micro[shard], lending.headroom_micro[shard], START_MS)


shard_counts = st.sampled_from([1, 2, 3, 8])
balances = st.one_of(
    st.sampled_from([-1, 0, 1, MICRO - 1, MICRO, -MICRO, MAX_BURST_TOKENS * MICRO, MIN_BALANCE_MICRO]),
    st.integers(-20 * MICRO, 50 * MICRO),
)


@st.composite
def demands(draw: st.DrawFn, shards: int) -> list[Demand]:
    flow = st.tuples(
        st.integers(0, shards - 1),
        st.integers(-1, 1),
        st.sampled_from([1, 1, 2, 1000]),
        st.integers(0, 40),
        st.one_of(st.integers(0, 9_000), st.just(2**43)),
    )
    return draw(st.lists(flow, max_size=10))


@st.composite
def worlds(draw: st.DrawFn) -> tuple[CompiledPolicy, Buckets, list[Demand], int]:
    limits = st.builds(
        limit,
        messages_per_second=st.sampled_from([None, 0, 0.2, 5, 1000]),
        bytes_per_second=st.sampled_from([None, 0, 1, 5_000, 2**40]),
        on_excess=st.sampled_from([OnExcess.DELAY, OnExcess.DELAY, OnExcess.OBSERVE]),
    )
    shards = draw(shard_counts)
    policy = make_policy(job=draw(limits), groups={"gold": draw(limits), "iron": draw(limits)})
    held = {}
    for scope in range(3):
        burst = policy.shared.burst_micro[scope]
        rate = policy.shared.rate_micro_per_ms[scope]
        pair = [draw(balances) if rate[d] > 0 else -1 for d in Dimension]
        held[scope] = (min(pair[0], int(burst[0])), min(pair[1], int(burst[1])))
    return policy, holding(policy, held), draw(demands(shards)), shards


@pytest.mark.slow
@given(worlds(), st.integers(0, 10**6))
def test_shards_together_may_admit_what_the_bucket_would(
    world: tuple[CompiledPolicy, Buckets, list[Demand], int], turn: int
) -> None:
    policy, buckets, flows, shards = world
    lending = lend(buckets, claims_of(flows), policy, shards=shards, turn=turn)
    for scope, dimension in np.argwhere(policy.shared.is_limited):
        central = buckets.balance_micro[scope, dimension]
        lent = lending.balance_micro[:, scope, dimension]
        if dimension == MESSAGES:
            assert admissible_messages(lent).sum() == admissible_messages(central)
        else:
            room = np.maximum(byte_room(lent), 0).sum()
            assert room == max(0, byte_room(central))  # and one message a shard
            assert (lent >= 0).any() == (central >= 0)
        if central < 0:
            assert (lent < 0).all()
            assert lent.sum() <= central


@pytest.mark.slow
@given(worlds(), st.integers(0, 10**6))
def test_a_rate_of_0_lends_nothing_and_never_grows(
    world: tuple[CompiledPolicy, Buckets, list[Demand], int], turn: int
) -> None:
    policy, buckets, flows, shards = world
    lending = lend(buckets, claims_of(flows), policy, shards=shards, turn=turn)
    is_shut = policy.shared.rate_micro_per_ms == 0
    assert (lending.balance_micro[:, is_shut] < 0).all()
    assert (lending.headroom_micro[:, is_shut] == 0).all()


@pytest.mark.slow
@given(worlds(), st.lists(st.integers(-50, 10_000_000), max_size=6))
def test_grants_that_stand_never_grow_past_the_bucket(
    world: tuple[CompiledPolicy, Buckets, list[Demand], int], steps_ms: list[int]
) -> None:
    policy, buckets, flows, shards = world
    lending = lend(buckets, claims_of(flows), policy, shards=shards, turn=1)
    grants = [grants_of(lending, shard) for shard in range(shards)]
    now_ms, latest_ms, earned_ms = START_MS, START_MS, 0
    is_open = policy.shared.rate_micro_per_ms > 0
    for step_ms in steps_ms:
        now_ms += step_ms
        earned_ms += max(0, step_ms)
        latest_ms = max(latest_ms, now_ms)
        grants = [grant.grown(policy, now_ms=now_ms, shards=shards) for grant in grants]
        together = np.sum([grant.balance_micro for grant in grants], axis=0)
        for scope, dimension in np.argwhere(is_open):
            central = int(buckets.balance_micro[scope, dimension])
            earned = int(policy.shared.rate_micro_per_ms[scope, dimension]) * earned_ms
            most = min(int(policy.shared.burst_micro[scope, dimension]), central + earned)
            assert together[scope, dimension] <= most


def test_growth_in_two_steps_is_growth_in_one() -> None:
    policy = make_policy(job=limit(messages_per_second=7, bytes_per_second=1_000))
    lending = lend(holding(policy, {JOB: (-MICRO, 5)}), claims_of([]), policy, shards=3, turn=0)
    grant = grants_of(lending, 0)
    once = grant.grown(policy, now_ms=START_MS + 777, shards=3)
    twice = grant.grown(policy, now_ms=START_MS + 300, shards=3).grown(policy, now_ms=START_MS + 777, shards=3)
    assert once.balance_micro.tolist() == twice.balance_micro.tolist()
    assert once.headroom_micro.tolist() == twice.headroom_micro.tolist()


@pytest.mark.parametrize("stands_ms", [60_000, 4_000_000_000_000])
def test_grant_that_stands_for_a_minute_or_a_century_at_the_greatest_rate_is_full(stands_ms: int) -> None:
    policy = make_policy(job=limit(messages_per_second=MAX_TOKENS_PER_SECOND, bytes_per_second=MAX_TOKENS_PER_SECOND))
    burst = policy.shared.burst_micro.tolist()
    grant = make_grants([(0, 0)], [tuple(burst[0])], epoch=1, as_of_ms=START_MS)
    later = grant.grown(policy, now_ms=START_MS + stands_ms, shards=1)
    assert later.balance_micro.tolist() == burst
    assert later.headroom_micro.tolist() == [[0, 0]]


def test_parts_that_are_rounded_up_to_more_than_there_is_take_nothing_from_others() -> None:
    """2,001 parts of 999.5 thousandths are at most 2,000 tokens; rounded up, each is a token."""
    part_milli = np.array([1_000] * 2_001 + [0], dtype=np.int64)
    lent = _divided(2_000, part_milli, np.zeros_like(part_milli), 0)
    assert lent.sum() == 2_000
    assert lent.min() == 0


def test_bucket_that_holds_more_than_its_burst_lends_grants_that_do_not_grow() -> None:
    policy = make_policy(job=limit(messages_per_second=10, bytes_per_second=1_000, burst_seconds=1))
    lending = lend(holding(policy, {JOB: (15 * MICRO, 1_000 * MICRO)}), claims_of([]), policy, shards=2, turn=0)
    assert lending.headroom_micro.tolist() == [[[0, 0]], [[0, 0]]]


def test_idle_shards_get_what_is_spare_equally() -> None:
    policy = make_policy(job=limit(messages_per_second=10, bytes_per_second=600))
    buckets = holding(policy, {JOB: (9 * MICRO, 600 * MICRO)})
    lending = lend(buckets, claims_of([(0, -1, 1, 4, 300)]), policy, shards=3, turn=0)
    assert admissible_messages(lending.balance_micro[:, JOB, MESSAGES]).tolist() == [6, 2, 2]
    assert (lending.balance_micro[:, JOB, BYTES] // MICRO).tolist() == [400, 100, 100]


def test_claim_is_cut_by_the_narrower_scope_before_it_meets_the_wider() -> None:
    # gold may use 10 of the job's 100; iron's flow wants all of the job's.
    policy = make_policy(
        job=limit(messages_per_second=100),
        groups={"gold": limit(messages_per_second=10), "iron": limit(messages_per_second=1000)},
    )
    buckets = holding(policy, {JOB: (99 * MICRO, 0), GOLD: (9 * MICRO, 0), IRON: (999 * MICRO, 0)})
    flows = [(0, 0, 1, 500, 0), (1, 1, 1, 500, 0)]
    lending = lend(buckets, claims_of(flows), policy, shards=2, turn=1)
    assert admissible_messages(lending.balance_micro[:, JOB, MESSAGES]).tolist() == [10, 90]


def test_observing_scope_does_not_cut_claims() -> None:
    watched = limit(messages_per_second=10, on_excess=OnExcess.OBSERVE)
    policy = make_policy(job=limit(messages_per_second=100), groups={"gold": watched, "iron": Limit()})
    buckets = holding(policy, {JOB: (99 * MICRO, 0), GOLD: (9 * MICRO, 0)})
    lending = lend(buckets, claims_of([(0, 0, 1, 80, 0), (1, 1, 1, 20, 0)]), policy, shards=2, turn=0)
    assert admissible_messages(lending.balance_micro[:, JOB, MESSAGES]).tolist() == [80, 20]


@pytest.mark.slow
def test_shard_with_the_smaller_claim_is_not_starved_at_one_message_an_epoch() -> None:
    policy = make_policy(job=limit(messages_per_second=1))
    flows = [(0, -1, 1, 9, 0)] * 5 + [(1, -1, 1, 9, 0)]
    got = np.zeros(2, dtype=np.int64)
    advance_micro = None
    for turn in range(60):
        lending = lend(
            holding(policy, {JOB: (0, 0)}), claims_of(flows), policy, shards=2, turn=turn, advance_micro=advance_micro
        )
        got += admissible_messages(lending.balance_micro[:, JOB, MESSAGES])
        advance_micro = lending.advance_micro  # each shard uses what it is lent
    assert np.abs(got - [50, 10]).max() <= 1


def test_demand_beyond_all_bounds_does_not_overflow() -> None:
    largest = limit(messages_per_second=2**40, bytes_per_second=2**40)
    policy = make_policy(job=largest, groups={"gold": largest})
    flows = [(shard, 0, 1000, 2**62, 2**62) for shard in range(8)] * 50
    lending = lend(Buckets.full(policy, now_ms=START_MS), claims_of(flows), policy, shards=8, turn=3)
    assert admissible_messages(lending.balance_micro[:, JOB, MESSAGES]).sum() == 2**40 + 1
    assert (lending.balance_micro[:, GOLD, BYTES] >= 0).all()
    assert lending.balance_micro[:, GOLD, BYTES].sum() == 2**40 * MICRO


def test_debt_of_a_scope_that_only_observes_has_a_floor() -> None:
    policy = make_policy(job=limit(bytes_per_second=1, on_excess=OnExcess.OBSERVE))
    buckets = Buckets.full(policy, now_ms=START_MS)
    for _ in range(10):
        buckets = buckets.debit(np.array([[2**42, 2**42]]), policy)
    assert buckets.balance_micro.tolist() == [[0, MIN_BALANCE_MICRO]]


def usage(shard: int, policy: CompiledPolicy, admitted: Int64s, group: Int64s) -> UsageReport:
    nothing = np.zeros_like(admitted)
    none = np.full(len(admitted), -1, dtype=np.int64)
    names = pa.array([f"n{i}" for i in range(len(admitted))])
    return UsageReport(
        shard, 1, policy.revision, START_MS, names, none, group, none + 2, nothing, admitted, nothing, nothing, nothing,
        none + 1, none + 1, 0,
    )  # fmt: skip


def test_usage_is_counted_in_every_scope_of_a_flow() -> None:
    policy = make_policy(job=limit(messages_per_second=1), groups={"gold": limit(), "iron": limit()})
    reports = [
        usage(0, policy, np.array([[1, 10], [2, 20]]), np.array([0, 1])),
        usage(1, policy, np.array([[4, 40], [8, 80]]), np.array([0, -1])),
    ]
    assert used_by_scope(reports, policy).tolist() == [[15, 150], [5, 50], [2, 20]]
    assert used_by_scope([], policy).tolist() == [[0, 0]] * 3


# Settling over histories (law L2)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Limit, int, list[tuple[int, bool, list[tuple[int, int]]]]]:
    shards = draw(st.sampled_from([1, 2, 3, 5]))
    offers = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 400)), min_size=shards, max_size=shards)
    steps = st.tuples(st.sampled_from([0, 1, 90, 1_000, 30_000]), st.booleans(), offers)
    job = limit(
        messages_per_second=draw(st.sampled_from([0.2, 3, 50])),
        bytes_per_second=draw(st.sampled_from([0.5, 200, 10_000])),
        burst_seconds=draw(st.sampled_from([1, 10])),
    )
    return job, shards, draw(st.lists(steps, min_size=1, max_size=12))


@pytest.mark.slow
@given(histories())
def test_no_window_admits_more_than_burst_and_rate_and_one_message_a_shard(
    history: tuple[Limit, int, list[tuple[int, bool, list[tuple[int, int]]]]],
) -> None:
    """Shards use any part of what stands, epochs come at any time: KIP-599's bound holds for their sum."""
    job, shards, steps = history
    policy = make_policy(job=job)
    now_ms, turn = START_MS, 0
    buckets = Buckets.full(policy, now_ms=now_ms)
    grants: list[Grants] = []
    used: list[tuple[int, Int64s]] = []
    admitted: list[tuple[int, Int64s]] = []
    demand: list[Demand] = []
    for step_ms, is_epoch, offers in steps:
        now_ms += step_ms
        if is_epoch or not grants:
            turn += 1
            for at_ms, tokens in used:
                buckets = buckets.settle(tokens[None], policy, at_ms=at_ms)
            buckets = buckets.refill(policy, now_ms=now_ms)
            lending = lend(buckets, claims_of(demand), policy, shards=shards, turn=turn)
            grants = [replace(grants_of(lending, shard), as_of_ms=now_ms) for shard in range(shards)]
            used = []
        grants = [grant.grown(policy, now_ms=now_ms, shards=shards) for grant in grants]
        for shard, (messages, size) in enumerate(offers):
            balance = grants[shard].balance_micro.copy()
            for _ in range(messages):
                if (balance[JOB] < 0).any():
                    break
                balance[JOB] -= np.array([1, size]) * MICRO
                used.append((now_ms, np.array([1, size])))
                admitted.append(used[-1])
            grants[shard] = replace(grants[shard], balance_micro=balance)
        demand = [(shard, -1, 1, *offer) for shard, offer in enumerate(offers)]
    largest = max((tokens[BYTES] for _, tokens in admitted), default=0)
    over = np.array([1, largest]) * MICRO * shards
    for first, (from_ms, _) in enumerate(admitted):
        total = np.zeros(2, dtype=np.int64)
        for at_ms, tokens in admitted[first:]:
            total = total + tokens * MICRO
            earned = np.array(job.rate_micro_per_ms) * (at_ms - from_ms)
            assert (total <= np.array(job.burst_micro) + earned + over).all()


@pytest.mark.parametrize("shards", [1, 2, 8])
def test_debt_of_one_shard_is_repaid_before_another_may_go_on(shards: int) -> None:
    policy = make_policy(job=limit(bytes_per_second=100))
    buckets = Buckets.full(policy, now_ms=START_MS).debit(np.array([[1, 1_100]]), policy)
    for at_ms, is_open in ((9_999, False), (10_000, True)):
        lending = lend(buckets.refill(policy, now_ms=START_MS + at_ms), claims_of([]), policy, shards=shards, turn=0)
        assert (lending.balance_micro[:, JOB, BYTES] >= 0).any() == is_open


@pytest.mark.parametrize(
    ("behind_bytes", "wanted_bytes", "held_bytes"),
    [(641_351_380_605, 1_000, 767_002_366), (201_504_077_734, 358_460_508, 9_988_181_409), (1 << 40, 4, 96_907_719)],
)
def test_shards_are_lent_what_a_scope_holds_however_far_behind_one_is(
    behind_bytes: int, wanted_bytes: int, held_bytes: int
) -> None:
    policy = make_policy(groups={"gold": limit(bytes_per_second=10**12)})
    buckets = holding(policy, {GOLD: (0, held_bytes * MICRO)})
    claims = claims_of([(0, 0, 1, 1, wanted_bytes), (1, 0, 1, 1, 10**12), (2, 0, 1, 1, 10)])
    advance_micro = np.zeros((3, len(policy.shared), 2), dtype=np.int64)
    advance_micro[0, GOLD, BYTES] = -behind_bytes * MICRO
    lent = lend(buckets, claims, policy, shards=3, turn=0, advance_micro=advance_micro).balance_micro[:, GOLD, BYTES]
    assert np.maximum(lent, 0).sum() == held_bytes * MICRO
    assert lent[0] <= (wanted_bytes + held_bytes // 2) * MICRO


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.just(0), st.integers(-1, 1), st.integers(1, 5), st.integers(0, 40), st.integers(0, 400))),
    st.sampled_from([(None, 100), (30, None), (30, 100), (0, 100)]),
    st.sampled_from(OnExcess),
    st.lists(balances, min_size=4, max_size=4),
    st.booleans(),
)
def test_one_shard_is_lent_by_sums_what_a_division_would_lend_it(
    demands: list[Demand], rates: tuple[int | None, int | None], on_excess: OnExcess, held: list[int], is_by_turn: bool
) -> None:
    messages, size = rates
    gold = limit(messages_per_second=messages, bytes_per_second=size, on_excess=on_excess)
    policy = make_policy(groups={"gold": gold, "iron": limit(messages_per_second=50)})
    claims = claims_of(demands)
    buckets = holding(policy, {GOLD: (held[0], held[1]), IRON: (held[2], held[3])})
    found = lend(buckets, claims, policy, shards=1, turn=1, is_by_turn=is_by_turn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneShard, "of", lambda *_: None)
        divided = lend(buckets, claims, policy, shards=1, turn=1, is_by_turn=is_by_turn)
    assert found.balance_micro.tolist() == divided.balance_micro.tolist()
    assert found.headroom_micro.tolist() == divided.headroom_micro.tolist()
    assert found.deferral is divided.deferral is None
    if found.ahead_bound_milli is None or divided.ahead_bound_milli is None:
        assert found.ahead_bound_milli is divided.ahead_bound_milli is None
    else:
        assert found.ahead_bound_milli.tolist() == divided.ahead_bound_milli.tolist()


def test_flow_of_two_limited_scopes_takes_a_division_even_in_one_shard() -> None:
    policy = make_policy(job=limit(messages_per_second=100), groups={"gold": limit(messages_per_second=50)})
    held = np.array([[100, 0], [50, 0]])
    tokens = Holding(held, policy.shared.rate_micro_per_ms, policy.shared.is_limited, np.zeros(2, dtype=np.bool_))
    assert OneShard.of(claims_of([(0, 0, 1, 9, 9)]), tokens, policy) is None
    assert OneShard.of(claims_of([(0, -1, 1, 9, 9)]), tokens, policy) is not None
