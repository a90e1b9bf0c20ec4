"""Shards, grants and buckets together: a quota that shards share is used up, divided fairly, and never passed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from spark_throttle.core.lending.advances import advance_after
from spark_throttle.core.lending.grants import Buckets, Lending, claims_of, lend, used_by_scope

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.quota import CompiledPolicy, Dimension
from spark_throttle.core.state import DeciderState, Grants
from spark_throttle.core.usage import UsageReport
from spark_throttle.testing.oracle.worlds import Limit, Namespace, limit, make_arrivals, make_policy

START_MS = 1_760_000_000_000
MESSAGES, BYTES = Dimension.MESSAGES, Dimension.BYTES

Offer = Mapping[str, tuple[int, int]]
"""The number of messages of each namespace, and the size of one."""


@dataclass
class Job:
    """Some shards, an epoch before every batch unless it is left out, and an account of all that was admitted."""

    policy: CompiledPolicy
    shard_of: Mapping[str, int]
    shards: int
    now_ms: int = START_MS
    turn: int = 0
    buckets: Buckets = field(init=False)
    lending: Lending | None = None
    states: list[DeciderState] = field(init=False)
    reports: dict[int, UsageReport] = field(default_factory=dict)
    unsettled: list[list[UsageReport]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.buckets = Buckets.full(self.policy, now_ms=self.now_ms)
        self.states = [DeciderState.initial(len(self.policy.shared)) for _ in range(self.shards)]

    def epoch(self) -> None:
        self.turn += 1
        advance_micro = None
        if self.lending is not None:
            spent = [report for reports in self.unsettled for report in reports]
            advance_micro = advance_after(self.lending, spent, self.policy)
        for reports in self.unsettled:
            used = used_by_scope(reports, self.policy)
            self.buckets = self.buckets.settle(used, self.policy, at_ms=reports[0].now_ms)
        self.unsettled = []
        self.buckets = self.buckets.refill(self.policy, now_ms=self.now_ms)
        claims = claims_of(list(self.reports.values()), self.policy)
        self.lending = lend(
            self.buckets, claims, self.policy, shards=self.shards, turn=self.turn, advance_micro=advance_micro
        )
        lent, headroom = self.lending.balance_micro, self.lending.headroom_micro
        for shard, state in enumerate(self.states):
            grants = Grants(self.turn, lent[shard], headroom[shard], self.now_ms)
            if self.lending.ahead_bound_milli is not None:
                grants = replace(grants, ahead_bound_milli=self.lending.ahead_bound_milli[shard])
            self.states[shard] = replace(state, grants=grants)

    def batch(self, offer: Offer, *, after_ms: int = 1_000, has_epoch: bool = True) -> Counter[str]:
        """Return the messages that each namespace got through."""
        self.now_ms += after_ms
        if has_epoch:
            self.epoch()
        got: Counter[str] = Counter()
        self.unsettled.append([])
        for shard in range(self.shards):
            here = [(name, size) for name, (n, size) in offer.items() if self.shard_of[name] == shard for _ in range(n)]
            plan = plan_admission(
                self.states[shard],
                make_arrivals(here),
                self.policy,
                now_ms=self.now_ms,
                shards=self.shards,
                shard=shard,
            )
            self.states[shard] = plan.state
            self.reports[shard] = plan.usage
            self.unsettled[-1].append(plan.usage)
            admitted = plan.usage.admitted[:, MESSAGES].tolist()
            got += Counter(dict(zip(plan.usage.names.to_pylist(), admitted, strict=True)))
        return got


def grouped(names: list[str], shards: int, quota: Limit) -> Job:
    """Return a job whose namespaces are of one group with `quota`, spread over shards unevenly."""
    policy = make_policy(groups={"gold": quota}, default=Namespace(group="gold"))
    return Job(policy, {name: min(i, shards - 1) for i, name in enumerate(names)}, shards)


def drained(job: Job, offer: Offer) -> None:
    """Use the first burst up, of one second."""
    for _ in range(4):
        job.batch(offer)


@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3, 8])
def test_stable_demand_above_the_quota_uses_all_of_it_from_the_second_batch(shards: int) -> None:
    names = [f"t{i}/n" for i in range(12)]
    job = grouped(names, shards, limit(messages_per_second=100))
    offer = {name: (5 + 3 * i, 10) for i, name in enumerate(names)}
    job.batch(offer)
    job.batch(offer)
    assert [sum(job.batch(offer).values()) for _ in range(20)] == [100] * 20


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("shards", [1, 3, 8])
def test_shares_of_steady_flows_are_max_min_across_shards(shards: int) -> None:
    # 90 a second for wants of 1, 4, 30 and eight of 200: 1, 4, and 85 / 9 for each of the others.
    names = [f"t{i}/n" for i in range(11)]
    job = grouped(names, shards, limit(messages_per_second=90))
    wants = [1, 4, 30] + [200] * 8
    offer = {name: (n, 10) for name, n in zip(names, wants, strict=True)}
    drained(job, offer)
    got: Counter[str] = Counter()
    for _ in range(60):
        got += job.batch(offer)
    expected = [60.0, 240.0] + [60 * 85 / 9] * 9
    # One message an epoch and shard is rounded, one way or the other, and evens out.
    assert [got[name] for name in names] == pytest.approx(expected, abs=12)
    assert sum(got.values()) == 60 * 90


@pytest.mark.slow
def test_flow_alone_in_its_shard_is_not_starved_at_a_message_a_second() -> None:
    names = [*(f"many/{i}" for i in range(5)), "one/n"]
    policy = make_policy(groups={"gold": limit(messages_per_second=1)}, default=Namespace(group="gold"))
    job = Job(policy, dict.fromkeys(names[:5], 0) | {"one/n": 1}, 2)
    offer = dict.fromkeys(names, (3, 10))
    drained(job, offer)
    got: Counter[str] = Counter()
    for _ in range(120):
        got += job.batch(offer)
    assert sum(got.values()) == 120
    assert [got[name] for name in names] == pytest.approx([20] * 6, abs=3)


@pytest.mark.slow
def test_small_and_large_messages_in_different_shards_use_up_both_dimensions() -> None:
    # As in test_allocation: of 1,000 messages and 1 MB a second, 909 of 100 B and 91 of 10 kB.
    policy = make_policy(
        groups={"gold": limit(messages_per_second=1_000, bytes_per_second=1_000_000)}, default=Namespace(group="gold")
    )
    job = Job(policy, {"small/n": 0, "large/n": 1}, 2)
    offer = {"small/n": (2_000, 100), "large/n": (200, 10_000)}
    drained(job, offer)
    got: Counter[str] = Counter()
    for _ in range(10):
        got += job.batch(offer)
    assert got["small/n"] == pytest.approx(9_090, abs=20)
    assert got["large/n"] == pytest.approx(909, abs=4)


def test_shares_are_right_one_batch_after_demand_changes() -> None:
    names = [f"t{i}/n" for i in range(4)]
    job = grouped(names, 4, limit(messages_per_second=80))
    offer = dict.fromkeys(names[:2], (200, 1))
    drained(job, offer)
    before = job.batch(offer)
    assert [before[name] for name in names] == pytest.approx([40, 40, 0, 0], abs=1)  # whole messages, in turns
    assert sum(before.values()) == 80
    everyone = dict.fromkeys(names, (200, 1))
    job.batch(everyone)
    got = job.batch(everyone)
    assert [got[name] for name in names] == pytest.approx([20] * 4, abs=1)
    assert sum(got.values()) == 80


def test_pause_is_not_paid_twice() -> None:
    # 10 a second, burst 10: after an hour the standing grants let a burst through, and the next second earns 10.
    job = grouped(["a/n", "b/n"], 2, limit(messages_per_second=10))
    job.batch({})
    offer = {"a/n": (50, 1), "b/n": (50, 1)}
    first = sum(job.batch(offer, after_ms=3_600_000, has_epoch=False).values())
    second = sum(job.batch(offer).values())
    assert first <= 10 + 2
    assert first + second <= 10 + 10 + 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_any_traffic_keeps_burst_and_rate_and_one_message_a_shard(seed: int) -> None:
    rng = random.Random(seed)
    shards = rng.choice([1, 2, 5])
    names = [f"t{i}/n" for i in range(9)]
    rate, in_bytes = rng.choice([2, 20, 200]), rng.choice([500, 20_000])
    job = grouped(names, shards, limit(messages_per_second=rate, bytes_per_second=in_bytes, burst_seconds=2))
    history: list[tuple[int, int, int]] = []
    for _ in range(80):
        offer = {name: (rng.randrange(30), rng.randrange(1, 300)) for name in names if rng.random() < 0.4}
        job.batch(offer, after_ms=rng.choice([0, 5, 300, 1_000, 20_000]), has_epoch=rng.random() < 0.7 or job.turn == 0)
        used = used_by_scope(job.unsettled[-1], job.policy)[1]
        history.append((job.now_ms, int(used[MESSAGES]), int(used[BYTES])))
    times = np.array([at_ms for at_ms, *_ in history])
    for column, quota, largest in ((1, rate, 1), (2, in_bytes, 300)):
        used = np.array([step[column] for step in history])
        for first in range(len(used)):
            earned = quota * (times[first:] - times[first]) / 1000
            assert (used[first:].cumsum() <= 2 * quota + earned + shards * largest).all()
