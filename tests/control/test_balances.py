"""The balances in reports are those of a token bucket that a reader would write, whatever happens to a job (law L2).

The bucket knows when each share began and ended, and when a lease did. It sees of the job what was admitted and when.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import EpochName
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.shared_quotas import PinnedShares, SharedQuotas
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.usage import UsageReport, by_scope
from tests.control.whole_job import WholeJob
from tests.effort import IS_SEARCH

RATES = (40, 8, 100)
"""Messages a second of the group; the tenant has half of it, the job three quarters."""

SEEDS = range(60 if IS_SEARCH else 1)


def document(rate: int, burst_seconds: int) -> dict[str, object]:
    def publish(messages: float, **more: object) -> dict[str, object]:
        return {"publish": {"messages_per_second": messages, "burst_seconds": burst_seconds, **more}}

    return {
        "job": publish(rate * 3 / 4),
        "tenants": {"a": publish(rate / 2)},
        "resource_groups": {"gold": publish(rate, bytes_per_second=rate * 20)},
        "defaults": {"resource_group": "gold"},
    }


@dataclass
class Bucket:
    """One dimension of one scope; in micro-tokens, and micro-tokens per ms."""

    rate: int
    burst: int
    quarters: int = 4
    """The job's share."""

    balance: int = 0
    as_of_ms: int = 0

    def earn(self, until_ms: int) -> None:
        """Earn at the share that is in force."""
        earned = max(0, until_ms - self.as_of_ms) * self.rate * self.quarters // 4
        self.as_of_ms = max(self.as_of_ms, until_ms)
        self.balance = min(self.balance + earned, self.burst * self.quarters // 4)
        if self.quarters == 0:
            self.balance = min(self.balance, -1)

    def change(self, rate: int, burst: int, quarters: int, at_ms: int) -> None:
        """Go on with another quota and share; what was not earned until now never is."""
        self.rate, self.burst, self.quarters, self.as_of_ms = rate, burst, quarters, max(self.as_of_ms, at_ms)
        self.earn(self.as_of_ms)


@dataclass
class DrawnShares:
    """The part of the control plane that knows the exchange, with shares and leases that a test draws."""

    quarters: int = 0
    lapsed_ms: int | None = None
    """When the lease ended that began with the last epoch; `None` if it still holds."""

    may_go_on: bool = False
    pinned_file: str = ""
    waits: list[bool] = field(default_factory=list)
    """Whether rows waited, each time when it was asked whether an epoch is due."""

    debts_told: int = 0

    def add(self, reports: Sequence[UsageReport], *, now_ms: int) -> None:
        pass

    def rates(self, policy: CompiledPolicy) -> Int64s:
        rates = policy.shared.rate_micro_per_ms.copy()
        rates[1:] = np.where(rates[1:] > 0, rates[1:] * self.quarters // 4, rates[1:])
        return rates

    def is_due(
        self, policy: CompiledPolicy, pinned: PinnedShares, named: None, *, now_ms: int, is_waiting: bool
    ) -> bool:
        self.waits.append(is_waiting)
        return bool((self.rates(policy) != pinned.rates).any())

    def begin_after(self, claims: None) -> None:
        pass

    def begin_epoch(self, policy: CompiledPolicy, named: None, lost: None, *, now_ms: int) -> PinnedShares:
        return PinnedShares(self.rates(policy))

    def end_epoch(self, file: str) -> None:
        self.pinned_file, self.lapsed_ms = file, None

    def keep_until_repaid(self, policy: CompiledPolicy, balance: Int64s, share: Int64s, *, now_ms: int) -> None:
        self.debts_told += 1

    def has_lapsed(self, file: str) -> bool:
        return file != self.pinned_file or self.lapsed_ms is not None

    def paid_until_ms(self, file: str, *, now_ms: int) -> int:
        if file != self.pinned_file:
            return 0
        return now_ms if self.lapsed_ms is None else min(now_ms, self.lapsed_ms)


@dataclass
class SharingJob(WholeJob):
    """A job whose shares are drawn."""

    shares: DrawnShares = field(default_factory=DrawnShares)

    def restart(self) -> None:
        self.shares.pinned_file = ""
        clock = Clock(self.wall_ms, lambda: self.now_ms, self.machine)
        shared: SharedQuotas = self.shares  # type: ignore[assignment]
        self.plane = ControlPlane(self.directory, self.policies, "publish", clock, shared)


@dataclass
class Referee:
    """The buckets of all scopes and both dimensions, beside a job."""

    job: WholeJob
    shares: DrawnShares | None
    buckets: dict[tuple[int, int], Bucket] = field(default_factory=dict)
    history: dict[tuple[int, int], list[tuple[int, int, int]]] = field(default_factory=dict)
    """Of every batch: what the bucket could earn before it, its burst, and what was taken."""

    def policy(self) -> CompiledPolicy:
        return self.job.plane.epochs.policy(self.job.plane.epochs.load(self.job.name))

    def watch(self, planned_ms: int, leased_until_ms: int, before: EpochName) -> None:
        """Follow a batch that was planned then; shares were leased until then at the rates of the epoch before."""
        report, policy = self.job.reports[-1], self.policy()
        is_new, quarters = self.job.name != before, 4 if self.shares is None else self.shares.quarters
        # A batch without an epoch pays the whole time since the last one.
        assert is_new or leased_until_ms >= planned_ms or not quarters
        used = by_scope(match(report.names, policy).shared_scope, report.admitted, len(policy.shared))
        for at in np.argwhere(policy.shared.is_limited).tolist():
            scope, dimension = at
            rate = int(policy.shared.rate_micro_per_ms[scope, dimension])
            burst = int(policy.shared.burst_micro[scope, dimension])
            key, part = (scope, dimension), quarters if scope else 4
            bucket = self.buckets.get(key)
            if bucket is None:
                bucket = self.buckets[key] = Bucket(rate, burst, part, burst, planned_ms)
            was_ms, was_rate, was_burst = bucket.as_of_ms, bucket.rate * bucket.quarters // 4, bucket.burst
            was_burst = was_burst * bucket.quarters // 4
            if is_new:
                bucket.earn(min(leased_until_ms, planned_ms) if scope else planned_ms)
                bucket.change(rate, burst, part, planned_ms)
            bucket.earn(report.as_of_ms)
            could = max(0, planned_ms - was_ms) * was_rate + max(0, report.as_of_ms - planned_ms) * rate * part // 4
            taken = int(used[scope, dimension]) * 1_000_000
            bucket.balance -= taken
            most = max(was_burst, burst * part // 4)
            self.history.setdefault(key, []).append((could, most, taken))
            assert int(report.shared_micro[scope, dimension]) == bucket.balance, (key, len(self.job.reports))

    def check_limits(self, largest: int) -> None:
        """Count in every window: no more than what the rates in force earned, a burst and a message of `largest`."""
        for (_, dimension), steps in self.history.items():
            message = 1_000_000 * (largest if dimension else 1)
            for first in range(len(steps)):
                earned, burst, taken = 0, 0, 0
                for could, most, used in steps[first:]:
                    earned, burst, taken = earned + (could if taken else 0), max(burst, most), taken + used
                    assert taken <= earned + burst + message


def played(job: WholeJob, shares: DrawnShares | None, rng: random.Random) -> Iterator[tuple[int, int, EpochName]]:
    """Play a drawn history; yield of each batch when it was planned, until when shares were leased, and its start."""
    while True:
        event = rng.random()
        if event < 0.08:
            job.policies.set(document(rng.choice(RATES), rng.choice((1, 3))))
        elif event < 0.2 and shares is not None:
            shares.quarters = rng.choice((0, 1, 2, 3, 4))
        elif event < 0.26 and shares is not None and shares.lapsed_ms is None:
            shares.lapsed_ms = job.now_ms + rng.randint(0, 300)
        elif event < 0.3:
            job.restart()
        after_ms = rng.choice((0, 1, 37, 250, 250, 1_000, 1_000, 20_000))
        planned_ms = job.now_ms + after_ms
        leased_until_ms = planned_ms
        if shares is not None and job.batches:
            last_ms = max(job.reports[-1].as_of_ms, job.plane.epochs.load(job.name).paid_ms)
            ends_ms = 0 if not shares.pinned_file else shares.lapsed_ms
            leased_until_ms = planned_ms if ends_ms is None else max(last_ms, min(ends_ms, planned_ms))
        is_changed = event < 0.08 or not job.batches
        names = rng.choices(("a/x", "a/y", "b/z"), k=rng.choice((0, 0, 1, 5, 60)))
        before = job.name
        rows = [(name, rng.choice((1, 30, 200))) for name in names]
        lasts_ms = 0 if is_changed else rng.choice((0, 0, 12, 700))
        if job.trigger(rows, after_ms=after_ms, lasts_ms=lasts_ms) is not None:
            yield planned_ms, leased_until_ms, before


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("is_sharing", [False, True], ids=["alone", "sharing"])
def test_balances_are_those_of_a_plain_token_bucket(is_sharing: bool, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    shares = DrawnShares() if is_sharing else None
    first = document(RATES[0], 1)
    job = WholeJob(tmp_path, first) if shares is None else SharingJob(tmp_path, first, shares=shares)
    referee, epochs = Referee(job, shares), set[EpochName]()
    history = played(job, shares, rng)
    for planned_ms, leased_until_ms, before in (next(history) for _ in range(150)):
        referee.watch(planned_ms, leased_until_ms, before)
        epochs.add(job.name)
    referee.check_limits(largest=200)
    assert 10 < len(epochs) < 150
    assert len(job.admitted) > 150


def test_who_shares_is_asked_for_an_epoch_with_word_of_rows_that_wait_and_told_in_each_what_is_owed(
    tmp_path: Path,
) -> None:
    shares = DrawnShares(quarters=4)
    job = SharingJob(tmp_path, document(RATES[0], 1), shares=shares)
    for shares.quarters in (4, 4, 2):
        job.trigger([("a/x", 200)] * 60, after_ms=10)
    assert shares.waits == [True, True]
    assert job.name.number == 2
    assert shares.debts_told == 4  # as each epoch was made, and as two reports came
