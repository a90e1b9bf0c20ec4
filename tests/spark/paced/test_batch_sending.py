"""How fast a batch's rows go to their destinations: by the epoch, by what was said since, and by a task's part."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.core.shares.destinations import WHOLE, Told
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.spark.paced.batch_sending import BatchDestination, BatchSending
from spark_throttle.spark.paced.calls import Call
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.kept_sender import Heard
from spark_throttle.spark.paced.paced_task import PacedTask, SendOptions
from spark_throttle.spark.paced.row_costs import row_costs
from spark_throttle.spark.paced.sending import BatchName, parcels_of
from spark_throttle.spark.paced.unsent_calls import by_namespace, count_rows, tables_of
from spark_throttle.spark.rows.frames import NAMESPACE

RATES = st.integers(1, 10**9)


def destination(rows: int, sent: int, ceiling: int, base: int) -> BatchDestination:
    return BatchDestination(rows, sent, 1, ceiling, Heard(Aimd(base, 0)), is_unavailable=False, gives_up=False)


def test_task_with_a_third_of_the_rows_sends_at_a_third_of_the_rate_and_may_rise_to_the_quota() -> None:
    terms = destination(300, 60_000, 240_000, 54_000).terms(100, 2.0, is_timed=True)
    assert terms.row_ns == 50_000_000  # 20 of 60 a second
    assert terms.began == Aimd(WHOLE * 9 // 10, 0)
    assert terms.ceiling_part == WHOLE * 4 * 108 // 100  # as hasty as any batch, for what its planning takes
    assert terms.asks_once is False


@pytest.mark.slow
@given(sent=RATES, base=RATES, part=st.integers(1, 4 * WHOLE), quiet_ms=st.integers(0, 10**5))
def test_what_was_said_before_a_batch_is_told_as_if_it_had_been_said_in_it(
    sent: int, base: int, part: int, quiet_ms: int
) -> None:
    told = Told(5, 1, part, quiet_ms, 0, 7)
    found = destination(10, sent, 10**9, base).after(told)
    assert found == Heard(Aimd(max(1, sent * part // WHOLE), quiet_ms))
    later = destination(0, base, 10**9, base)
    again = later.told(told, found.aimd)
    assert (again.accepted, again.refused, again.unsent_messages) == (5, 1, 0)
    after = later.after(again)
    assert after.aimd.quiet_ms == quiet_ms
    assert abs(after.aimd.base - found.aimd.base) <= 1 + base // WHOLE


def test_namespace_that_is_no_utf8_has_a_key_of_its_own() -> None:
    names = pa.array([b"acme/\xe9", b"acme/\\xe9", b"acme/\xe8"], pa.binary()).view(pa.string())
    limits = {"tenants": {"acme": {"publish": {"messages_per_second": 100}}}}
    costs = row_costs(names, np.array([[1, 0]] * 3), compile_policy(PolicyDocument.model_validate(limits), "publish"))
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


def test_calls_for_destinations_are_returned_where_the_driver_sends_them() -> None:
    taken: list[int] = []

    def send(rows: list[dict[str, Any]], key: IdempotencyKey) -> None:
        taken.extend(row["id"] for row in rows)

    known = {"api": destination(2, 10**6, 10**6, 10**6)}
    rows = pa.RecordBatch.from_pydict({NAMESPACE: ["t/a", "other", "t/b"], "id": [1, 2, 3]})
    task = PacedTask(
        send, BatchName("q", 1, "i"), {}, 1, 0, SendOptions(), known, {"t/a": "api", "t/b": "api"}, keeps=True
    )
    (answer,) = next(iter(task([rows]))).to_pylist()
    assert (answer["rows"], answer["resumed"], answer["told"]) == (3, 0, "{}")
    assert taken == [2]
    kept = by_namespace(answer["unsent"])
    assert {name: count_rows(tables) for name, tables in kept.items()} == {"t/a": 1, "t/b": 1}


def test_batch_in_which_nothing_was_sent_to_a_destination_passes_on_until_when_it_asked_not_to_be_called() -> None:
    closed = replace(destination(1, 10**6, 10**6, 10**6), heard=Heard(Aimd(10**6), 2**41))
    nothing: Any = None
    batch = BatchSending(
        BatchName("q", 1, "i"), nothing, nothing, {}, {}, {}, 0, {"api": closed, "other": closed}, {"t/a": "api"}
    )
    kept = tables_of(parcels_of("t/a", pa.table({"id": [1, 2]}), [Call(0, 2, 0)], BatchName("q", 1, "i")))
    assert batch.told_of_kept({}, kept) == {"api": Told(0, 0, WHOLE, 0, 0, 2, 2**41)}
