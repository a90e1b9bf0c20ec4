"""The recount finds what is wrong: rows lost, doubled or changed, windows over a limit, service out of proportion."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from demos.fairness import measure_fairness
from demos.recount import (
    Flows,
    ScopeLimit,
    check_conservation,
    count_over_limit,
    count_tokens,
    largest_messages,
    offered_tokens,
    scope_limits,
)
from demos.tables import Batch, BatchRows
from spark_throttle.core.quota import MICRO, CompiledPolicy
from spark_throttle.load.traffic import Traffic, TrafficGroup
from spark_throttle.policy.compile import compile_policy
from spark_throttle.store.policy_location import load_policies

TRAFFIC = Traffic((TrafficGroup("gold", 3, 2, 100, 1.0), TrafficGroup("free", 2, 1, 100, 1.0)), seed=5)


def rows(start: int, end: int) -> pa.Table:
    return pa.Table.from_batches([TRAFFIC.rows(start, end)])


def policy_of(text: str) -> CompiledPolicy:
    return compile_policy(load_policies(text), "publish")


# ----------------------------------------------------------------------------------------------- conservation


def test_every_row_once_in_any_table_and_order_is_conserved() -> None:
    whole = rows(0, 100).take(pa.array(np.random.Generator(np.random.PCG64(1)).permutation(100)))
    found = check_conservation(TRAFFIC, 100, [whole.slice(0, 60), whole.slice(60, 40), whole.slice(0, 0)])
    assert (found.lost, found.doubled) == (0, 0)


@pytest.mark.parametrize("column", ["namespace", "ts", "size_bytes", "payload"])
def test_changed_row_is_lost_and_one_too_many(column: str) -> None:
    whole = rows(0, 10)
    unlike = next(i for i in range(10) if whole[column][i] != whole[column][0])
    order = list(range(10))
    order[0], order[unlike] = unlike, 0
    other = pc.take(whole[column], pa.array(order))
    changed = whole.set_column(whole.schema.get_field_index(column), whole.schema.field(column), other)
    found = check_conservation(TRAFFIC, 10, [changed])
    assert (found.lost, found.doubled) == (2, 2)


def test_null_is_a_change() -> None:
    whole = rows(0, 10)
    emptied = whole.set_column(4, whole.schema.field(4), pa.nulls(10, pa.binary()))
    assert check_conservation(TRAFFIC, 10, [emptied]).lost == 10


def test_row_that_was_never_offered_is_one_too_many() -> None:
    found = check_conservation(TRAFFIC, 10, [rows(0, 13)])
    assert (found.lost, found.doubled) == (0, 3)


def test_nothing_offered_and_nothing_kept_is_conserved() -> None:
    found = check_conservation(TRAFFIC, 0, [rows(0, 0)])
    assert (found.lost, found.doubled) == (0, 0)


# -------------------------------------------------------------------------------------------------- counting


def test_tokens_are_counted_by_batch_and_namespace() -> None:
    whole = rows(0, 300)
    batch = np.repeat([0, 2], [100, 200])
    tokens = count_tokens(BatchRows(whole, batch), TRAFFIC.namespaces(), 3)
    assert tokens[1].sum() == 0
    assert tokens[:, :, 0].sum(axis=1).tolist() == [100, 0, 200]
    for position, name in enumerate(TRAFFIC.namespaces().to_pylist()):
        mine = whole.slice(100, 200).filter(pc.equal(whole.slice(100, 200)["namespace"], name))
        assert tokens[2, position].tolist() == [mine.num_rows, pc.sum(mine["size_bytes"]).as_py() or 0]


def test_offered_tokens_are_those_of_the_batches() -> None:
    batches = [Batch(0, 0, 0, 100), Batch(1, 5, 100, 100), Batch(2, 9, 100, 300)]
    assert (
        offered_tokens(TRAFFIC, batches)
        == count_tokens(BatchRows(rows(0, 300), np.repeat([0, 2], [100, 200])), TRAFFIC.namespaces(), 3)
    ).all()


def test_largest_messages_are_found_by_namespace() -> None:
    part = BatchRows(rows(0, 50), np.zeros(50, dtype=np.int64))
    largest = largest_messages(part, pa.array([*TRAFFIC.namespaces().to_pylist(), "other"]))
    by_name = {row["namespace"]: 0 for row in part.rows.to_pylist()}
    for row in part.rows.to_pylist():
        by_name[row["namespace"]] = max(by_name[row["namespace"]], row["size_bytes"])
    assert largest.tolist() == [by_name.get(name, 0) for name in TRAFFIC.namespaces().to_pylist()] + [0]


# ---------------------------------------------------------------------------------------------------- scopes

POLICY = """
resource_groups:
  gold: {publish: {messages_per_second: 10, burst_seconds: 2}}
  other: {publish: {bytes_per_second: 500, on_excess: observe}}
tenants:
  gold-00: {resource_group: gold, publish: {bytes_per_second: 1000, burst_seconds: 1}}
  gold-01: {resource_group: gold}
namespaces:
  gold-00/ns-0000: {resource_group: other, publish: {messages_per_second: 3, on_excess: observe}}
  gold-01/ns-0001: {publish: {messages_per_second: 0}}
defaults: {resource_group: other, publish: {weight: 7}}
"""


def test_limits_are_those_that_are_enforced_and_met() -> None:
    names = pa.array(["gold-00/ns-0000", "gold-01/ns-0001", "gold-00/ns-0002", "free-00/ns-0000"])
    limits = {limit.name: limit for limit in scope_limits(policy_of(POLICY), names)}
    assert limits.keys() == {"gold-00", "gold", "gold-01/ns-0001"}
    assert limits["gold"].members.tolist() == [1, 2]
    assert limits["gold"].rate_micro_per_ms.tolist() == [10_000, -1]
    assert limits["gold"].burst_micro.tolist() == [20 * MICRO, 0]
    assert limits["gold-00"].members.tolist() == [0, 2]


def test_exempt_namespace_is_in_no_limit() -> None:
    policy = policy_of(POLICY + "job: {publish: {messages_per_second: 9}}\nexempt: [gold-01/*]\n")
    limits = {limit.name: limit for limit in scope_limits(policy, pa.array(["gold-01/ns-0001", "free"]))}
    assert limits.keys() == {"job"}
    assert limits["job"].members.tolist() == [1]


# ---------------------------------------------------------------------------------------------------- limits


def limit(rate: int, burst: int, members: tuple[int, ...] = (0,)) -> ScopeLimit:
    """Return a limit in messages a second."""
    rates, bursts = np.array([1000 * rate, -1]), np.array([burst * MICRO, 0])
    return ScopeLimit("a scope", np.array(members), rates, bursts)


def messages(*by_batch: int) -> Any:
    return np.array([[[n, 10 * n]] for n in by_batch], dtype=np.int64)


def batches_at(*times_ms: int) -> list[Batch]:
    return [Batch(index, time_ms, 0, 0) for index, time_ms in enumerate(times_ms)]


LARGEST = np.array([10])


def test_exactly_burst_and_rate_and_one_message_of_debt_is_within_the_limit() -> None:
    assert count_over_limit(messages(6, 5), batches_at(0, 1000), [limit(5, 5)], LARGEST) == 0


def test_one_message_more_is_over_in_each_window_that_holds_it() -> None:
    assert count_over_limit(messages(6, 6), batches_at(0, 1000), [limit(5, 5)], LARGEST) == 1
    assert count_over_limit(messages(7, 0, 0), batches_at(0, 1, 5000), [limit(10, 5)], LARGEST) == 2


def test_many_small_batches_do_not_hide_what_they_pass_together() -> None:
    over = count_over_limit(messages(*[2] * 10), batches_at(*range(0, 1000, 100)), [limit(10, 5)], LARGEST)
    # Windows of 7 batches or more pass 14 at least, and earn 5 + 1 + 6.
    assert over == sum(1 for i in range(10) for j in range(i, 10) if 2 * (j - i + 1) > 6 + (j - i))


def test_bytes_may_run_into_debt_by_the_largest_message() -> None:
    admitted = messages(3)
    by_bytes = ScopeLimit("a scope", np.array([0]), np.array([-1, 1000]), np.array([0, 20 * MICRO]))
    assert count_over_limit(admitted, batches_at(0), [by_bytes], np.array([10])) == 0
    assert count_over_limit(admitted, batches_at(0), [by_bytes], np.array([9])) == 1


def test_shared_scope_sums_its_members() -> None:
    admitted = np.array([[[3, 0], [3, 0], [9, 0]]])
    largest = np.zeros(3, dtype=np.int64)
    assert count_over_limit(admitted, batches_at(0), [limit(1, 5, members=(0, 1))], largest) == 0
    assert count_over_limit(admitted, batches_at(0), [limit(1, 4, members=(0, 1))], largest) == 1


def test_clock_that_goes_back_earns_nothing() -> None:
    assert count_over_limit(messages(6, 1), batches_at(1000, 0), [limit(10, 5)], LARGEST) == 1


@pytest.mark.slow
@given(
    steps=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 30)), min_size=1, max_size=12),
    rate=st.integers(0, 20),
    burst=st.integers(0, 30),
)
def test_windows_over_equals_asking_every_pair(steps: list[tuple[int, int]], rate: int, burst: int) -> None:
    times = np.cumsum([step for step, _ in steps]).tolist()
    counts = [count for _, count in steps]
    expected = sum(
        1
        for i in range(len(times))
        for j in range(i, len(times))
        if 1000 * (sum(counts[i : j + 1]) - burst - 1) > rate * (times[j] - times[i])
    )
    assert count_over_limit(messages(*counts), batches_at(*times), [limit(rate, burst)], LARGEST) == expected


# -------------------------------------------------------------------------------------------------- fairness

SHARED = """
resource_groups: {all: {publish: {messages_per_second: 30, burst_seconds: 1}}}
namespaces: {t/b: {publish: {weight: 2}}}
tenants: {t: {resource_group: all}}
"""


def flows(offered: Any, admitted: Any) -> Flows:
    pairs = [np.stack([np.array(each), np.array(each)], axis=-1) for each in (offered, admitted)]
    return Flows(pa.array(["t/a", "t/b", "t/idle", "x/y"]), pairs[0], pairs[1], np.zeros_like(pairs[0]))


def test_service_in_proportion_to_weight_is_a_ratio_of_one() -> None:
    offered = [[60, 60, 1, 9], [40, 40, 0, 9], [40, 40, 0, 9], [0, 0, 0, 0]]
    admitted = [[15, 15, 1, 9], [10, 20, 0, 9], [10, 20, 0, 9], [75, 15, 0, 0]]
    fairness = measure_fairness(policy_of(SHARED), "all", flows(offered, admitted))
    assert fairness.members.tolist() == [0, 1, 2]
    assert fairness.is_backlogged.tolist() == [True, True, False]
    assert fairness.weight.tolist() == [1, 2, 1]
    # Batches 1 and 2: after batch 0 a second's worth waits, and batch 3 brings nothing.
    assert fairness.service.tolist() == pytest.approx([20 / 30, 40 / 30, 0])
    assert fairness.ratio == pytest.approx(1.0)


def test_service_out_of_proportion_shows_in_the_ratio() -> None:
    offered = [[60, 60, 0, 0]] * 3
    admitted = [[15, 15, 0, 0]] * 3
    assert measure_fairness(policy_of(SHARED), "all", flows(offered, admitted)).ratio == pytest.approx(2.0)


def test_namespace_that_once_had_nothing_waiting_is_not_compared() -> None:
    offered = [[60, 60, 0, 0], [60, 60, 0, 0], [60, 60, 0, 0]]
    admitted = [[15, 15, 0, 0], [105, 20, 0, 0], [10, 20, 0, 0]]
    fairness = measure_fairness(policy_of(SHARED), "all", flows(offered, admitted))
    assert fairness.is_backlogged.tolist() == [False, True, False]
    assert fairness.ratio == 1.0


def test_group_that_was_never_overloaded_has_no_ratio() -> None:
    offered = [[10, 10, 0, 0], [10, 10, 0, 0]]
    assert measure_fairness(policy_of(SHARED), "all", flows(offered, offered)).ratio is None


def test_dominant_service_takes_the_larger_part_of_two_limits() -> None:
    both = SHARED.replace("messages_per_second: 30", "messages_per_second: 30, bytes_per_second: 15")
    offered = [[60, 60, 0, 0]] * 2
    admitted = [[15, 15, 0, 0], [10, 20, 0, 0]]
    fairness = measure_fairness(policy_of(both), "all", flows(offered, admitted))
    assert fairness.service.tolist() == pytest.approx([10 / 15, 20 / 15, 0])
