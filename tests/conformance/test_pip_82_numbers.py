"""A job, and jobs in an exchange, answer as PIP-82 works it out (`docs/documents.md`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from spark_throttle.core.arithmetic.rate_codes import decode, encode
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.sharing.division import is_news
from spark_throttle.sharing.report import ScopeRows, unpack_base
from spark_throttle.sharing.settings import SharePolicy, ShareSettings
from spark_throttle.testing import SimulatedExchange, SimulatedJob

pytestmark = pytest.mark.slow

QUOTA: Final = {"publish": {"messages_per_second": 100, "burst_seconds": 1}}
GOLD: Final = PolicyDocument.model_validate({"resource_groups": {"gold": QUOTA}})


class Brokers:
    """Jobs that divide a quota of 100; what each may use is what its lease says."""

    def __init__(self, policy: SharePolicy, count: int) -> None:
        self._exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000, policy=policy))
        self._jobs = [self._exchange.join(f"broker-{n + 1}", GOLD, percent=0) for n in range(count)]

    def use(self, *usages: int) -> list[float]:
        """Return what each may use three cycles after they began to use this."""
        for job, usage in zip(self._jobs, usages, strict=True):
            job.want(GOLD, usage)
        self._exchange.time.pass_by(3_000)
        return [round(job.leased()["resource_group", "gold"][0] / 1_000, 2) for job in self._jobs]


@pytest.mark.parametrize(("limited", "admitted"), [("namespaces", 10 * 401), ("tenants", 401)])
def test_user_who_makes_more_topics_gets_more_unless_the_tenant_is_limited(limited: str, admitted: int) -> None:
    """100 messages per second per topic: in 3 s, the burst, the rate, and the message that finds a balance of 0."""
    scope = {"namespaces": "acme/*", "tenants": "acme"}[limited]
    job = SimulatedJob({limited: {scope: QUOTA}, "queue": {"messages": 5_000}})
    for _ in range(4):  # full buckets, and then 3 s
        job.offer([(f"acme/topic-{topic}", 1_000) for topic in range(10)] * 120)
        job.trigger(after_ms=1_000)
    assert len(job.admitted) == admitted


@pytest.mark.parametrize(
    ("policy", "shares"),
    [("residual", [20, 60, 40]), ("proportional", [11, 55, 33]), ("max_min", [13.33, 53.33, 33.33])],
)
def test_brokers_that_use_10_50_30_of_100_share_the_rest(policy: SharePolicy, shares: list[float]) -> None:
    assert Brokers(policy, 3).use(10, 50, 30) == shares


def test_broker_at_20_of_80_and_20_rises_to_50_and_the_other_gives_way() -> None:
    stealing, brokers = Brokers("steal", 2), Brokers("max_min", 2)
    assert stealing.use(80, 20) == [80, 50]
    assert stealing.use(80, 30) == [72, 55]
    assert brokers.use(80, 20) == [80, 20]
    assert brokers.use(80, 30) == [70, 30]


def test_70_and_30_leave_nothing_unused_at_a_load_of_80_and_20_and_are_halved_at_70_and_70() -> None:
    brokers = Brokers("max_min", 2)
    assert brokers.use(70, 30) == [70, 30]
    assert brokers.use(80, 20) == [80, 20]
    assert brokers.use(70, 30) == [70, 30]
    assert brokers.use(70, 70) == [50, 50]


def test_equilibrium_takes_ten_rounds_of_stealing_and_30_too_much_and_max_min_has_it_at_once() -> None:
    stealing, taken = Brokers("steal", 2), [[80, 20]]
    while taken[-1] != [50, 50]:
        taken.append([int(part) for part in stealing.use(*taken[-1])])
    assert taken[:5] == [[80, 20], [80, 50], [61, 65], [63, 51], [54, 56]]
    assert len(taken) - 1 == 10
    assert max(sum(each) for each in taken) == 130
    assert Brokers("max_min", 2).use(100, 100) == [50, 50]


@pytest.fixture(scope="module")
def five_brokers() -> SimulatedExchange:
    """Return where five brokers with the same 5,000 namespaces report: of 100,000, each on five of 100 brokers."""
    quota = {"publish": {"messages_per_second": 100, "bytes_per_second": 100_000}}
    policies = PolicyDocument.model_validate({"resource_groups": {f"acme-{n}": quota for n in range(5_000)}})
    exchange = SimulatedExchange(ShareSettings(interval_ms=60_000, lease_ms=600_000))
    for n in range(5):
        exchange.join(f"broker-{n}", policies, percent=20)
    exchange.time.pass_by(120_000)
    return exchange


def reports_in(exchange: SimulatedExchange) -> list[ScopeRows]:
    return [unpack_base(block, name) for name, block in exchange.objects.items() if name.endswith(".base")]


def test_change_of_more_than_10_percent_is_reported_and_anything_after_12_cycles(
    five_brokers: SimulatedExchange,
) -> None:
    row = reports_in(five_brokers)[0].take(np.zeros(4, dtype=np.int64))
    percent = np.array([[110], [111], [90], [89]])
    changed = replace(row, usage=encode(decode(row.usage) * percent // 100))
    cycles, settings = np.zeros(4, dtype=np.int64), five_brokers.settings
    assert is_news(settings, changed, row, cycles).tolist() == [False, True, False, True]
    assert is_news(settings, row, row, np.array([0, 1, 11, 12])).tolist() == [False, False, False, True]


def test_five_brokers_of_5000_namespaces_report_322_kb_each_and_hold_2000_kb(five_brokers: SimulatedExchange) -> None:
    """A job enforces one direction, and PIP-82 counts both: the page says twice as much."""
    reports = reports_in(five_brokers)
    assert [len(report) for report in reports] == [5_000] * 5
    assert 2 * sum(report.nbytes for report in reports) == 2_000_000
    sizes = {name: len(block) for name, block in five_brokers.objects.items()}
    whole = max(size for name, size in sizes.items() if name.endswith(".base"))
    unchanged = max(size for name, size in sizes.items() if name.endswith(".head"))
    assert (whole, unchanged) == (160_248, 680)
    assert 2 * (whole + unchanged) == 321_856
    assert 2 * 100 * (whole + unchanged) == 32_185_600
    assert 2 * 100 * 100 * (whole + unchanged) == 3_218_560_000
