"""A batch that is run again gives up the calls that its first attempt gave up, and no other."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.core.limits.aimd import Aimd
from spark_throttle.errors import Backpressure
from spark_throttle.spark.paced.batch_sending import BatchDestination
from spark_throttle.spark.paced.kept_sender import Heard
from spark_throttle.spark.paced.paced_task import PacedTask, SendOptions
from spark_throttle.spark.paced.retry_after import wall_ms
from spark_throttle.spark.paced.sending import BatchName
from spark_throttle.spark.rows.frames import NAMESPACE

ROWS = pa.RecordBatch.from_pydict({NAMESPACE: ["t/a", "t/a", "t/b", "other"], "id": [1, 2, 3, 4]})
RATE = 10**12
CLOSED = BatchDestination(3, RATE, RATE, RATE, Heard(Aimd(RATE)), is_unavailable=True, gives_up=True)


class Sender:
    def __init__(self, *, refuses: bool, whom: tuple[str, ...] = ("t/a", "t/b")) -> None:
        self.refuses, self.whom, self.taken = refuses, whom, set[int]()

    def __call__(self, rows: list[dict[str, Any]], key: Any) -> None:
        if self.refuses and key.namespace in self.whom:
            raise Backpressure
        self.taken |= {row["id"] for row in rows}


def attempt(
    sender: Sender, given_up: frozenset[str] | None, destination: BatchDestination = CLOSED, batch: int = 1
) -> dict[str, Any]:
    task = PacedTask(
        sender, BatchName("q", batch, "i"), {}, 1_000_000, 0, SendOptions(rows_per_call=1), {"api": destination},
        {"t/a": "api", "t/b": "api"}, given_up=given_up,
    )  # fmt: skip
    assert task.may_give_up == (given_up is None)
    (answer,) = next(iter(task([ROWS]))).to_pylist()
    assert (answer["rows"], answer["resumed"]) == (4, 0)
    return answer


def ids(tables: list[bytes]) -> set[int]:
    return {row["id"] for table in tables for row in pa.ipc.open_stream(table).read_all().to_pylist()}


def test_first_attempt_gives_up_what_an_unavailable_destination_refuses() -> None:
    sender = Sender(refuses=True)
    answer = attempt(sender, None)
    assert sender.taken == {4}
    assert ids(answer["given_up"]) == {1, 2, 3}
    assert len(answer["given_up_keys"]) == 3
    assert answer["unsent"] == []


@pytest.mark.parametrize("refuses", [False, True])
def test_a_later_attempt_gives_up_the_same_calls_whether_or_not_the_destination_is_back(refuses: bool) -> None:
    first = attempt(Sender(refuses=True), None)
    sender = Sender(refuses=refuses)
    again = attempt(sender, frozenset(first["given_up_keys"]))
    assert sender.taken == {4}
    assert again["given_up"] == first["given_up"]
    assert again["given_up_keys"] == first["given_up_keys"]
    assert again["unsent"] == []


def test_a_later_attempt_keeps_what_is_refused_if_the_first_gave_up_nothing() -> None:
    answer = attempt(Sender(refuses=True), frozenset())
    assert answer["given_up"] == []
    assert ids(answer["unsent"]) == {1, 2, 3}


def test_destination_that_said_until_when_it_is_unavailable_is_not_asked_and_its_rows_are_given_up() -> None:
    sender = Sender(refuses=False)
    until_ms = wall_ms() + 3_600_000
    answer = attempt(sender, None, replace(CLOSED, heard=Heard(Aimd(RATE), until_ms)))
    assert sender.taken == {4}
    assert ids(answer["given_up"]) == {1, 2, 3}
    told = json.loads(answer["told"])["api"]
    assert abs(told["closed_until_ms"] - until_ms) <= 1
    assert (told["accepted"], told["refused"], told["unsent_messages"]) == (0, 0, 0)


@pytest.mark.slow
def test_row_that_is_never_taken_does_not_keep_an_unavailable_destination_from_being_found_again() -> None:
    """Each batch asks with the call of another namespace."""
    given_up = []
    for batch in (1, 2):
        sender = Sender(refuses=True, whom=("t/a",))
        given_up.append(ids(attempt(sender, None, batch=batch)["given_up"]))
    assert sorted(given_up, key=len) == [set(), {1, 2, 3}]
