"""A scope's rate is divided over the namespaces of a batch, by what each of them has to send."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.spark.paced.batch_sending import MOST_PS, RowCost, row_costs

PS = 10**12
NAMES = ["a/1", "a/2", "b/1", "b/2", "c"]
RATES = st.none() | st.integers(1, 10**6)
COUNTS = st.tuples(st.integers(0, 10**5), st.integers(0, 10**9))


def compiled(**sections: Any) -> CompiledPolicy:
    return compile_policy(PolicyDocument.model_validate(sections), "publish")


def publish(messages: int | None, size_bytes: int | None = None, **more: Any) -> dict[str, Any]:
    rates = {"messages_per_second": messages, "bytes_per_second": size_bytes}
    return {"publish": {name: rate for name, rate in rates.items() if rate is not None} | more}


def costs(policy: CompiledPolicy, **admitted: tuple[int, int]) -> dict[str, RowCost]:
    names = {name.replace("_", "/"): counts for name, counts in admitted.items()}
    return row_costs(pa.array(list(names)), np.array(list(names.values())), policy)


@pytest.mark.slow
@given(
    counts=st.lists(COUNTS, min_size=5, max_size=5),
    job=RATES,
    tenants=st.tuples(RATES, RATES),
    group=RATES,
    own=RATES,
    size_rates=st.tuples(RATES, RATES, RATES),
)
def test_namespaces_of_a_scope_together_are_no_faster_than_the_scope(
    counts: list[tuple[int, int]],
    job: int | None,
    tenants: tuple[int | None, int | None],
    group: int | None,
    own: int | None,
    size_rates: tuple[int | None, int | None, int | None],
) -> None:
    policy = compiled(
        job=publish(job, size_rates[0]),
        resource_groups={"g": publish(group, size_rates[1])},
        tenants={"a": {"resource_group": "g", **publish(tenants[0])}, "b": publish(tenants[1], size_rates[2])},
        namespaces={"c": {"resource_group": "g", **publish(own)}},
    )
    found = row_costs(pa.array(NAMES), np.array(counts), policy)
    scopes = [
        (NAMES, job, size_rates[0]),
        (["a/1", "a/2", "c"], group, size_rates[1]),
        (["a/1", "a/2"], tenants[0], None),
        (["b/1", "b/2"], tenants[1], size_rates[2]),
        (["c"], own, None),
    ]
    for members, messages, size_bytes in scopes:
        sending = [name for name in members if counts[NAMES.index(name)][0]]
        if messages is not None:
            assert sum(PS / found[name].message_ps for name in sending) <= messages * (1 + 1e-9)
        sending = [name for name in members if counts[NAMES.index(name)][1]]
        if size_bytes is not None:
            assert sum(PS / found[name].byte_ps for name in sending) <= size_bytes * (1 + 1e-9)


@pytest.mark.slow
@given(counts=st.lists(COUNTS, min_size=5, max_size=5), job=RATES, tenants=st.tuples(RATES, RATES), own=RATES)
def test_costs_are_those_of_one_namespace_after_the_other(
    counts: list[tuple[int, int]], job: int | None, tenants: tuple[int | None, int | None], own: int | None
) -> None:
    policy = compiled(
        job=publish(job), tenants={"a": publish(tenants[0]), "b": publish(tenants[1])}, namespaces={"c": publish(own)}
    )
    found = row_costs(pa.array(NAMES), np.array(counts), policy)
    for name, (count, _) in zip(NAMES, counts, strict=True):
        expected = -(-PS // own) if own is not None and name == "c" else 0
        above = [(job, NAMES), (tenants[0], ["a/1", "a/2"]), (tenants[1], ["b/1", "b/2"])]
        for rate, members in above:
            if rate is not None and name in members and count:
                total = sum(each for member, (each, _) in zip(NAMES, counts, strict=True) if member in members)
                needed = -(-total * PS // rate)
                expected = max(expected, -(-needed // count))
        assert found[name] == RowCost(expected, 0)


def test_busiest_scope_is_used_in_full() -> None:
    policy = compiled(job=publish(100), tenants={"a": publish(40)})
    found = costs(policy, a_1=(30, 0), a_2=(10, 0), b_1=(20, 0))
    assert [found[name].message_ps for name in ("a/1", "a/2")] == [PS // 30 + 1, PS // 10]
    # The tenant needs a second for its 40 rows; the job would need 0.6 s for all, and so does the other tenant.
    assert found["b/1"].message_ps == PS * 60 // 100 // 20


def test_what_does_not_hold_rows_back_costs_nothing() -> None:
    policy = compiled(tenants={"a": publish(10, on_excess="observe")}, exempt=["b/1"], job=publish(1000))
    found = costs(policy, a_1=(10, 0), b_1=(10, 0))
    assert found["a/1"].message_ps == PS // 1000
    assert found["b/1"] == RowCost(0, 0)


def test_share_of_a_job_stands_in_place_of_the_rate() -> None:
    policy = compiled(tenants={"a": publish(100)})
    share = np.array([[-1, -1, -1], [25_000, -1, -1]])
    found = row_costs(pa.array(["a/1"]), np.array([[10, 0]]), policy, share)
    assert found["a/1"].message_ps == PS // 25


def test_share_that_a_lowered_quota_left_behind_is_no_faster_than_the_quota() -> None:
    policy = compiled(tenants={"a": publish(100)})
    share = np.array([[-1, -1, -1], [400_000, -1, -1]])
    found = row_costs(pa.array(["a/1"]), np.array([[10, 0]]), policy, share)
    assert found["a/1"].message_ps == PS // 100


def test_row_costs_its_message_or_its_bytes_and_a_huge_one_stays_in_64_bits() -> None:
    cost = RowCost(message_ps=2_000, byte_ps=10**12)
    assert cost.of_rows_ns(np.array([0, 1, 2**36])).tolist() == [2, 10**9, MOST_PS // 10**12 * 10**9]
