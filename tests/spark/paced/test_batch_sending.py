"""A batch's rows leave as fast as scopes and destinations allow, and a task says which were not taken."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.quota import CompiledPolicy
from spark_throttle.core.shares.destinations import WHOLE, Aimd
from spark_throttle.core.undelivered import UndeliveredCall
from spark_throttle.errors import Backpressure, ConfigurationError
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.spark.paced.batch_sending import MOST_PS, BatchDestination, RowCost, row_costs
from spark_throttle.spark.paced.calls import HASTE, IdempotencyKey
from spark_throttle.spark.paced.paced_sink import PacedTask, SendOptions
from spark_throttle.spark.paced.sending import BatchName
from spark_throttle.spark.paced.stream_sink import PacedStreamWriter
from spark_throttle.spark.rows.frames import NAMESPACE

FAST = 10**12

PS = 10**12
NAMES = ["a/1", "a/2", "b/1", "b/2", "c"]
RATES = st.none() | st.integers(1, 10**6)
COUNTS = st.tuples(st.integers(0, 10**5), st.integers(0, 10**9), st.integers(0, 10**9))


def destination(rows: int, sent: int, ceiling: int, base: int, *, is_unavailable: bool = False) -> BatchDestination:
    return BatchDestination(rows, sent, 1, ceiling, Aimd(base, 0), is_unavailable)


def test_task_with_a_third_of_the_rows_sends_at_a_third_of_the_rate_and_may_rise_to_the_quota() -> None:
    terms = destination(300, 60_000, 240_000, 54_000).terms(100, 2.0, is_timed=True)
    assert terms.row_ns == 50_000_000  # 20 of 60 a second
    assert terms.began == Aimd(WHOLE * 9 // 10, 0)
    assert terms.ceiling_part == WHOLE * 4 * 108 // 100  # as hasty as any batch, for what its planning takes
    assert terms.asks_once is False


def test_namespace_that_is_no_utf8_has_a_key_of_its_own() -> None:
    names = pa.array([b"acme/\xe9", b"acme/\\xe9", b"acme/\xe8"], pa.binary()).view(pa.string())
    limits = {"tenants": {"acme": {"publish": {"messages_per_second": 100}}}}
    costs = row_costs(
        names, np.array([[1, 0, 0]] * 3), compile_policy(PolicyDocument.model_validate(limits), "publish")
    )
    taken: list[str] = []

    def send(rows: list[dict[str, Any]], key: IdempotencyKey) -> None:
        assert key.namespace in costs
        taken.append(key.text)

    task = PacedTask(send, BatchName("q", 1, "i"), costs, 1, 0, SendOptions())
    (answer,) = next(
        iter(task([pa.RecordBatch.from_arrays([names, pa.array([1, 2, 3])], [NAMESPACE, "id"])]))
    ).to_pylist()
    assert answer["rows"] == 3
    assert len(set(taken)) == len(costs) == 3


class Sender:
    """Refuses namespaces; takes all others."""

    def __init__(self, *refused: str, may_be_taken: bool = False) -> None:
        self.refused, self.may_be_taken, self.keys = refused, may_be_taken, list[str]()

    def __call__(self, rows: list[dict[str, Any]], key: IdempotencyKey) -> None:
        if key.namespace in self.refused:
            raise Backpressure(may_be_taken=self.may_be_taken)
        self.keys += [f"{key.text}:{row['id']}" for row in rows]


def undelivered(sender: Sender, *, is_again: bool = False, **again: list[UndeliveredCall]) -> list[UndeliveredCall]:
    """Return what a task that sends four rows, three of them to a destination, says was not taken."""
    rows = pa.RecordBatch.from_pydict({NAMESPACE: ["a", "a", "a", "other"], "id": [1, 2, 3, 4]})
    task = PacedTask(
        sender, BatchName("q", 7, "i"), {}, 1_000_000, 0, SendOptions(rows_per_call=1),
        {"api": destination(3, FAST, FAST, FAST)}, {"a": "api"}, again, {}, is_again,
    )  # fmt: skip
    (answer,) = next(iter(task([rows]))).to_pylist()
    assert answer["rows"] == 4
    assert sender.keys[0] == "q/7/i/other/0:4" or not sender.refused
    return [UndeliveredCall(*call) for call in json.loads(answer["undelivered"])]


def test_rows_that_nobody_took_are_told_together() -> None:
    assert undelivered(Sender("a")) == [UndeliveredCall("a", 0, 3)]
    assert undelivered(Sender()) == []


def test_call_that_may_have_been_taken_keeps_its_key_and_those_behind_it_need_none() -> None:
    found = undelivered(Sender("a", may_be_taken=True))
    assert found == [UndeliveredCall("a", 0, 1, 7, "i", 0), UndeliveredCall("a", 1, 2)]


def test_all_calls_of_an_attempt_after_the_first_keep_their_keys() -> None:
    """The first attempt may have sent any of them."""
    found = undelivered(Sender("a"), is_again=True)
    assert found == [UndeliveredCall("a", place, 1, 7, "i", place) for place in range(3)]


@pytest.mark.parametrize("refused", [True, False])
def test_calls_that_are_made_again_come_first_under_their_keys(*, refused: bool) -> None:
    sender = Sender("a") if refused else Sender()
    found = undelivered(sender, a=[UndeliveredCall("a", 5, 2, 3, "x", 9)])
    if refused:
        assert found == [UndeliveredCall("a", 0, 2, 3, "x", 9), UndeliveredCall("a", 2, 1)]
    else:
        assert found == []
        mine = [key for key in sender.keys if "/a/" in key]
        assert mine == ["q/3/x/a/9:1", "q/3/x/a/9:2", "q/7/i/a/2:3"]


def compiled(**sections: Any) -> CompiledPolicy:
    return compile_policy(PolicyDocument.model_validate(sections), "publish")


def publish(
    messages: int | None, size_bytes: int | None = None, units: int | None = None, **more: Any
) -> dict[str, Any]:
    rates = {"messages_per_second": messages, "bytes_per_second": size_bytes, "units_per_second": units}
    return {"publish": {name: rate for name, rate in rates.items() if rate is not None} | more}


def costs(policy: CompiledPolicy, **admitted: tuple[int, int]) -> dict[str, RowCost]:
    names = {name.replace("_", "/"): counts for name, counts in admitted.items()}
    return row_costs(pa.array(list(names)), np.array([(*counts, 0) for counts in names.values()]), policy)


@pytest.mark.slow
@given(
    counts=st.lists(COUNTS, min_size=5, max_size=5),
    job=RATES,
    tenants=st.tuples(RATES, RATES),
    group=RATES,
    own=RATES,
    size_rates=st.tuples(RATES, RATES, RATES),
    unit_rates=st.tuples(RATES, RATES, RATES),
)
def test_namespaces_of_a_scope_together_are_no_faster_than_the_scope(
    counts: list[tuple[int, int, int]],
    job: int | None,
    tenants: tuple[int | None, int | None],
    group: int | None,
    own: int | None,
    size_rates: tuple[int | None, int | None, int | None],
    unit_rates: tuple[int | None, int | None, int | None],
) -> None:
    policy = compiled(
        job=publish(job, size_rates[0], unit_rates[0]),
        resource_groups={"g": publish(group, size_rates[1], unit_rates[1])},
        tenants={
            "a": {"resource_group": "g", **publish(tenants[0])},
            "b": publish(tenants[1], size_rates[2], unit_rates[2]),
        },
        namespaces={"c": {"resource_group": "g", **publish(own)}},
    )
    found = row_costs(pa.array(NAMES), np.array(counts), policy)
    scopes = [
        (NAMES, (job, size_rates[0], unit_rates[0])),
        (["a/1", "a/2", "c"], (group, size_rates[1], unit_rates[1])),
        (["a/1", "a/2"], (tenants[0], None, None)),
        (["b/1", "b/2"], (tenants[1], size_rates[2], unit_rates[2])),
        (["c"], (own, None, None)),
    ]
    for members, rates in scopes:
        for dimension, rate in enumerate(rates):
            sending = [name for name in members if counts[NAMES.index(name)][dimension]]
            if rate is not None:
                assert sum(PS / found[name][dimension] for name in sending) <= rate * (1 + 1e-9)


@pytest.mark.slow
@given(counts=st.lists(COUNTS, min_size=5, max_size=5), job=RATES, tenants=st.tuples(RATES, RATES), own=RATES)
def test_costs_are_those_of_one_namespace_after_the_other(
    counts: list[tuple[int, int, int]], job: int | None, tenants: tuple[int | None, int | None], own: int | None
) -> None:
    policy = compiled(
        job=publish(job), tenants={"a": publish(tenants[0]), "b": publish(tenants[1])}, namespaces={"c": publish(own)}
    )
    found = row_costs(pa.array(NAMES), np.array(counts), policy)
    for name, (count, *_) in zip(NAMES, counts, strict=True):
        expected = -(-PS // own) if own is not None and name == "c" else 0
        above = [(job, NAMES), (tenants[0], ["a/1", "a/2"]), (tenants[1], ["b/1", "b/2"])]
        for rate, members in above:
            if rate is not None and name in members and count:
                total = sum(each for member, (each, *_) in zip(NAMES, counts, strict=True) if member in members)
                needed = -(-total * PS // rate)
                expected = max(expected, -(-needed // count))
        assert found[name] == RowCost(expected, 0, 0)


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
    assert found["b/1"] == RowCost(0, 0, 0)


def test_share_of_a_job_stands_in_place_of_the_rate() -> None:
    policy = compiled(tenants={"a": publish(100)})
    share = np.array([[-1] * 4, [25_000, -1, -1, -1]])
    found = row_costs(pa.array(["a/1"]), np.array([[10, 0, 0]]), policy, share)
    assert found["a/1"].message_ps == PS // 25


def test_share_that_a_lowered_quota_left_behind_is_no_faster_than_the_quota() -> None:
    policy = compiled(tenants={"a": publish(100)})
    share = np.array([[-1] * 4, [400_000, -1, -1, -1]])
    found = row_costs(pa.array(["a/1"]), np.array([[10, 0, 0]]), policy, share)
    assert found["a/1"].message_ps == PS // 100


def test_row_costs_its_message_its_bytes_or_its_units_and_a_huge_one_stays_in_64_bits() -> None:
    cost = RowCost(message_ps=2_000, byte_ps=10**12, unit_ps=5 * 10**12)
    found = cost.of_rows_ns(np.array([0, 1, 2**36, 1]), np.array([0, 0, 0, 1]))
    assert found.tolist() == [2, 10**9, MOST_PS // 10**12 * 10**9, 5 * 10**9]


@pytest.mark.parametrize(("option", "cost"), [("size", RowCost(0, 1, 0)), ("units", RowCost(0, 0, 1))])
def test_sink_of_a_pipeline_takes_from_a_column_what_a_quota_counts_and_asks_for_it(option: str, cost: RowCost) -> None:
    task = PacedTask(Sender(), BatchName("q", 7, "i"), {"a": cost}, 0, 0, SendOptions())
    rows = pa.RecordBatch.from_pydict({"ns": ["a", "a"], "tokens": [3_000_000, None]})
    given = {"size": None, "units": None, option: "tokens"}
    writer = PacedStreamWriter("control", "ns", given["size"], given["units"], {})
    (flow,) = task.flows([writer._with_task_columns(rows, task)])
    assert sum(parcel.takes_ns for parcel in flow.parcels) == -(-3_000 * HASTE[0] // HASTE[1])
    assert flow.parcels[0].rows.column_names == ["ns", "tokens"]
    with pytest.raises(ConfigurationError, match=f"give the option {option}, the column that has"):
        PacedStreamWriter("control", "ns", None, None, {})._with_task_columns(rows, task)
