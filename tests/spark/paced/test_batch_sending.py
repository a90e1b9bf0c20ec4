"""How fast a batch's rows go to their destinations, and what a task says of those that were not taken."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.shares.destinations import WHOLE, Aimd
from spark_throttle.core.undelivered import UndeliveredCall
from spark_throttle.errors import Backpressure
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.spark.paced.batch_sending import BatchDestination, row_costs
from spark_throttle.spark.paced.calls import IdempotencyKey
from spark_throttle.spark.paced.paced_task import PacedTask, SendOptions
from spark_throttle.spark.paced.sending import BatchName
from spark_throttle.spark.rows.frames import NAMESPACE

FAST = 10**12


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
