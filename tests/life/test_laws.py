"""Each law finds a fault that is put into the job, in a few steps: a law that never speaks is no law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

from spark_throttle.control.batch_mark import BatchMark
from spark_throttle.core import codec, grants, token_bucket
from spark_throttle.core.fair_order import FairOrder
from spark_throttle.core.quota import Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.spark import shard_batch
from spark_throttle.testing import simulated_query
from spark_throttle.testing.simulated_batch import FollowedPolicies
from spark_throttle.testing.simulated_sinks import TransactionalTable
from tests.life.drawing import Step
from tests.life.laws import Violation
from tests.life.life import ISOLATION, Birth, Life

Fault: TypeAlias = Callable[[pytest.MonkeyPatch], None]

GROUP = {
    "version": 1,
    "resource_groups": {"gold": {"publish": {"messages_per_second": 5, "burst_seconds": 1}}},
    "defaults": {"resource_group": "gold"},
}
FLOOD = Step("flood", {"rows": [("acme/a", 1, 100), ("blue/a", 1, 100)], "triggers": 12, "after_ms": 1_000})
CRASH = Step(
    "crash", {"at": "after table", "rows": [("acme/a", 1, 9)], "after_ms": 1_000, "down_ms": 0, "document": None}
)
POLICY = Step("policy", {"document": {"version": 1}})


def takes_a_batch_again(patch: pytest.MonkeyPatch) -> None:
    def append(self: TransactionalTable[Any], mark: BatchMark, rows: list[Any]) -> bool:
        self.rows += rows
        return True

    patch.setattr(TransactionalTable, "append", append)


def loses_the_last_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(simulated_query, "ids_of", lambda tables: [row for t in tables for row in t["id"].to_pylist()[:-1]])


def pays(times: float) -> Fault:
    def fault(patch: pytest.MonkeyPatch) -> None:
        def refill(balance: Int64s, rate: Int64s, burst: Int64s, elapsed_ms: int) -> Int64s:
            return token_bucket.refill(balance, rate, burst, int(elapsed_ms * times))

        patch.setattr(grants, "refill", refill)

    return fault


def serves_by_name(patch: pytest.MonkeyPatch) -> None:
    def tags(self: FairOrder, flow: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Int64s:
        return flow * 10**12 + messages_before

    patch.setattr(FairOrder, "tags", tags)


def turns_the_order_round(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(simulated_query, "ids_of", lambda tables: [row for t in tables for row in t["id"].to_pylist()][::-1])


def trusts_the_shuffle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(shard_batch, "arranged", pa.concat_tables)


def follows_nothing(patch: pytest.MonkeyPatch) -> None:
    first: dict[int, Any] = {}

    def current(self: FollowedPolicies) -> Any:
        return first.setdefault(id(self), self.snapshot)

    patch.setattr(FollowedPolicies, "current", current)


def charges_twice(patch: pytest.MonkeyPatch) -> None:
    def pack_usage(usage: UsageReport) -> bytes:
        return codec.pack_usage(replace(usage, admitted=2 * usage.admitted))

    patch.setattr(shard_batch, "pack_usage", pack_usage)


def dies_of_a_row(patch: pytest.MonkeyPatch) -> None:
    def payload(table: pa.Table) -> pa.Table:
        raise ValueError(table)

    patch.setattr(shard_batch, "payload", payload)


@pytest.mark.parametrize(
    ("law", "fault", "steps"),
    [
        ("L1", takes_a_batch_again, [CRASH]),
        ("L1", loses_the_last_row, [FLOOD]),
        ("L2", pays(3), [FLOOD]),
        ("L3", serves_by_name, [FLOOD]),
        ("L4", pays(0.2), [FLOOD]),
        ("L5", turns_the_order_round, [FLOOD]),
        ("L6", trusts_the_shuffle, [CRASH]),
        ("L7", follows_nothing, [FLOOD, POLICY, FLOOD]),
        ("L8", charges_twice, [FLOOD]),
        (ISOLATION, dies_of_a_row, [FLOOD]),
    ],
)
def test_a_law_finds_the_fault_that_breaks_it(
    law: str, fault: Fault, steps: Sequence[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    Life(Birth(GROUP, 1), (law, ISOLATION)).play(steps)
    fault(monkeypatch)
    with pytest.raises(Violation) as found:
        Life(Birth(GROUP, 1), (law, ISOLATION)).play(steps)
    assert found.value.law == law
