"""The prices by which a scope that is short of time is divided: what is a namespace's own, and what a batch's."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.time_quota.namespace_prices import NamespacePrices
from spark_throttle.core.time_quota.time_ledger import TimeLedger
from spark_throttle.testing.oracle.worlds import Namespace, Tenant, limit, make_policy
from tests.core.time_quota.test_time_ledger import MS, report

POLICY = make_policy(tenants={"acme": Tenant(limit(request_percentage=4, burst_seconds=2))})


def batch(
    ledger: TimeLedger, common_ms: int, rows: dict[str, int], specific_ms: dict[str, int] | None = None,
    *, after_ms: int = 1_000, policy: CompiledPolicy = POLICY,
) -> TimeLedger:  # fmt: skip
    """Return the ledger after a batch of so many rows of each namespace."""
    common = TimeCharges.common(common_ms * MS, pa.array(sorted(rows)), np.array([rows[name] for name in sorted(rows)]))
    own = TimeCharges.of({name: each * MS for name, each in (specific_ms or {}).items()})
    reports = [report(**{name.replace("/", "_"): count for name, count in rows.items()})]
    return ledger.settled(TimeCharges.sum_of([common, own]), reports, policy, at_ms=ledger.as_of_ms + after_ms)


def prices_ms(ledger: TimeLedger) -> dict[str, float]:
    return dict(zip(ledger.names.to_pylist(), (ledger.prices.price_ns[:, 0] / MS).tolist(), strict=True))


def test_who_was_served_in_a_dear_batch_is_no_dearer_than_who_was_not() -> None:
    """The first batch after a start takes seconds for one row; the next ones take milliseconds."""
    ledger = batch(TimeLedger.opened(POLICY, now_ms=0), 1_700, {"acme/a": 1})
    for _ in range(3):
        ledger = batch(ledger, 50, {"acme/b": 10})
    prices = prices_ms(ledger)
    assert prices["acme/a"] == prices["acme/b"]
    assert ledger.own.price_ns.tolist() == [1_700 * MS, 5 * MS]  # what the account of each says


def test_what_a_namespace_uses_for_itself_makes_it_dearer_whatever_the_batch_takes() -> None:
    ledger = batch(TimeLedger.opened(POLICY, now_ms=0), 300, {"acme/a": 1, "acme/b": 2}, {"acme/a": 40})
    prices = prices_ms(ledger)
    assert prices == {"acme/a": 140, "acme/b": 100}
    for _ in range(8):
        ledger = batch(ledger, 10, {"acme/b": 10}, after_ms=60_000)
    assert prices_ms(ledger) == {"acme/a": 41, "acme/b": 1}


def test_common_price_rises_at_once_and_falls_by_half_in_a_second() -> None:
    ledger = batch(TimeLedger.opened(POLICY, now_ms=0), 10, {"acme/a": 10})
    seen = []
    for common_ms in (1_000, 1, 1, 1):
        ledger = batch(ledger, common_ms, {"acme/a": 10})
        seen.append(prices_ms(ledger)["acme/a"])
    assert seen == [100, 50, 25, 12.5]


LONG = {name: Tenant(limit(request_percentage=4, burst_seconds=seconds)) for name, seconds in (("acme", 2), ("zoo", 8))}


def test_common_price_tells_what_a_scope_is_enough_for_as_it_falls_in_the_scopes_own_window() -> None:
    """Tenants of 2 s and of 8 s; the job and a group have no quota. A policy without the former keeps the latter's."""
    policy = make_policy(tenants=LONG)
    ledger = batch(TimeLedger.opened(policy, now_ms=0), 1_000, {"acme/a": 10}, policy=policy)
    ledger = batch(ledger, 1, {"acme/a": 10}, after_ms=2_000, policy=policy)
    assert prices_ms(ledger) == {"acme/a": 50}
    assert (ledger.prices.held_up_ns / MS).tolist() == [0, 0, 37.5]
    kept = ledger.carried(policy, make_policy(tenants={"new": LONG["acme"], "zoo": LONG["zoo"]}))
    assert (kept.prices.held_up_ns / MS).tolist() == [0, 0, 37.5]


def test_price_of_a_namespace_falls_at_every_level_in_the_window_of_its_scope_there() -> None:
    """The tenant has a window of 2 s, the group one of 8 s, and the job no quota; the namespace's own window is 1 s."""
    policy = make_policy(
        tenants={"acme": Tenant(limit(request_percentage=4, burst_seconds=2), "gold")},
        groups={"gold": limit(request_percentage=4, burst_seconds=8)},
        namespaces={"acme/a": Namespace(limit(request_percentage=1, burst_seconds=1))},
    )
    ledger = TimeLedger.opened(policy, now_ms=0)
    for each_ms in (100, 1):
        charged, rows = TimeCharges.of({"acme/a": 10 * each_ms * MS}), [report(acme_a=10)]
        ledger = ledger.settled(charged, rows, policy, at_ms=ledger.as_of_ms + 1_000)
    assert ledger.own.price_ns.tolist() == [50 * MS]
    assert ledger.prices.price_ns.tolist() == [[75 * MS, 93_750_000, 93_750_000]]
    is_short = np.array([[True, False, False]])
    assert ledger.prices.dividing(is_short).tolist() == [75 * MS]
    assert ledger.prices.dividing(~is_short).tolist() == [93_750_000]
    assert ledger.prices.dividing(is_short | True).tolist() == [93_750_000]
    assert ledger.prices.dividing(is_short & False).tolist() == [75 * MS]


def test_time_of_no_message_of_a_namespace_is_no_price_of_it() -> None:
    ledger = batch(TimeLedger.opened(POLICY, now_ms=0), 10, {"acme/a": 1}, {"acme/silent": 70})
    assert prices_ms(ledger) == {"acme/a": 10, "acme/silent": 0}


times = st.integers(0, 2**40)
counts = st.integers(0, 1_000)
steps = st.lists(
    st.tuples(times, st.lists(st.tuples(counts, times), min_size=3, max_size=3), st.sampled_from([0, 1, 999, 5_000])),
    max_size=6,
)


class SlowPrice:
    """A price in fractions, of a namespace or of what is common."""

    def __init__(self) -> None:
        self.price, self.has_messages = Fraction(0), False

    def charge(self, time_ns: int, messages: int, window_ms: int, passed_ms: int) -> None:
        if messages:
            fallen = self.price * (1 - Fraction(min(passed_ms, window_ms), 2 * window_ms))
            self.price, self.has_messages = max(Fraction(time_ns, messages), fallen), True


@pytest.mark.slow
@given(steps)
def test_prices_equal_slow_ones(batches: list[tuple[int, list[tuple[int, int]], int]]) -> None:
    windows_ms = np.array([[0, 7, 9_000], [1_000, 0, 1], [7, 1_000, 0]])
    held_up = SlowPrice()
    prices, common, own = NamespacePrices.unknown(3, scopes=2), SlowPrice(), [SlowPrice() for _ in range(9)]
    for together_ns, each, passed_ms in batches:
        messages = np.array([count for count, _ in each])
        specific_ns = np.array([time_ns if count else 0 for count, time_ns in each])
        total = int(messages.sum())
        common_ns = together_ns if total else 0
        prices = prices.charged(specific_ns, messages, windows_ms=windows_ms, passed_ms=passed_ms)
        prices = prices.with_common(common_ns, total, windows_ms=np.array([7, 6_000]), passed_ms=passed_ms)
        held_up.charge(common_ns, total, 6_000, passed_ms)
        common.charge(common_ns, total, 1_000, passed_ms)
        for slow, (at, level) in zip(own, np.ndindex(windows_ms.shape), strict=True):
            slow.charge(int(specific_ns[at]), int(messages[at]), int(windows_ms[at, level]) or 1_000, passed_ms)
            expected = slow.price + common.price if slow.has_messages else Fraction(0)
            # Each price is rounded down to a nanosecond, and its time to 30 bits in each batch.
            assert abs(int(prices.price_ns[at, level]) - expected) <= 3 + expected * Fraction(6, 2**27)
        above_ns = held_up.price - common.price
        assert abs(int(prices.held_up_ns[1]) - above_ns) <= 3 + held_up.price * Fraction(12, 2**27)
        assert prices.held_up_ns[0] == 0
