"""Functions for `foreachBatch` whose destinations push back: only rows for these wait, and each row is taken once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from spark_throttle.control.epochs import EpochName, Epochs
from spark_throttle.errors import Backpressure
from spark_throttle.files.storage import Directory
from spark_throttle.spark.sinks import batch_sink
from tests.effort import thorough_after
from tests.integration.streams import Event, Lake, finish, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from spark_throttle.spark import Throttle

DESTINATION = {"floor_messages_per_second": 100, "open_after_seconds": 0.2}
EVENTS: list[Event] = [(number, f"{'ab'[number % 2]}/{number % 6}", 10) for number in range(900)]


def api(**destination: Any) -> dict[str, Any]:
    return policies(
        resource_groups={
            "api": {**publish(messages_per_second=300, burst_seconds=2), "destination": {**DESTINATION, **destination}}
        },
        tenants={"a": {"resource_group": "api"}},
    )


class Tables:
    """A function that keeps a batch by its number, and may have to wait for the table of tenant ``a``."""

    def __init__(self, refusals: int, scope: str | None = "api") -> None:
        self.left, self.scope = refusals, scope
        self.kept: dict[int, list[Event]] = {}
        self.calls: list[tuple[int, list[Event]]] = []

    def write(self, rows: DataFrame, batch: int) -> None:
        found = [tuple(row) for row in rows.collect()]
        self.calls.append((batch, found))
        if batch in self.kept:
            assert sorted(self.kept[batch]) == sorted(found)  # as it had them
            return
        if self.left and any(str(namespace).startswith("a/") for _, namespace, _ in found):
            self.left -= 1
            raise Backpressure(scope=self.scope, problem="the table is locked")
        self.kept[batch] = found

    @property
    def rows(self) -> list[Event]:
        return [row for _, rows in sorted(self.kept.items()) for row in rows]

    def batches_of(self, tenant: str) -> set[int]:
        return {batch for batch, rows in self.kept.items() if any(str(row[1]).startswith(tenant) for row in rows)}


def run(lake: Lake, throttle: Throttle, function: Any) -> None:
    finish(lake.writer(throttle).foreachBatch(function).start())


def run_until_taken(lake: Lake, throttle: Throttle, tables: Tables) -> None:
    for _ in range(60):
        run(lake, throttle, tables.write)
        if len(tables.rows) >= len(EVENTS):
            return


def check_taken_once_in_order(tables: Tables) -> None:
    assert sorted(row[0] for row in tables.rows) == [row[0] for row in EVENTS]
    for name in {row[1] for row in EVENTS}:
        numbers = [row[0] for row in tables.rows if row[1] == name]
        assert numbers == sorted(numbers)


@pytest.mark.thorough
@pytest.mark.parametrize("scope", thorough_after(1, ["api", None]))
def test_rows_of_a_destination_that_refuses_wait_for_later_batches_and_the_others_do_not(
    lake: Lake, scope: str | None
) -> None:
    tables = Tables(6, scope)
    lake.offer(EVENTS)
    run_until_taken(lake, lake.throttle(api()), tables)
    check_taken_once_in_order(tables)
    assert tables.batches_of("b") == {0}
    assert min(tables.batches_of("a")) > 0
    names = sorted(path.name for path in (lake.control / "epochs").iterdir())
    loaded = [Epochs(Directory(str(lake.control))).load(EpochName(int(name[:12]), name)) for name in names]
    rates = [each.destinations for each in loaded if each.destinations is not None]
    assert any(each.is_open.any() for each in rates)
    assert not rates[-1].is_open.any()
    back = [int(each.undelivered.rows.sum()) for each in loaded if each.undelivered is not None]
    assert max(back) >= 300
    assert back[-1] == 0


def test_batch_that_is_run_again_calls_the_function_with_the_rows_that_it_took(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The destination is back when the batch runs again, and gets nothing that the function took without it.
    <https://github.com/apache/paimon/issues/9666>, where a function writes.
    """
    tables = Tables(1)
    lake.offer(EVENTS)
    throttle = lake.throttle(api())

    def crash(directory: Any, batch: int, packed: Any) -> None:
        raise RuntimeError("crashed")

    with monkeypatch.context() as patched:
        patched.setattr(batch_sink, "write_report", crash)
        with pytest.raises(StreamingQueryException, match="crashed"):
            run(lake, throttle, tables.write)
    assert {row[1][0] for row in tables.kept[0] if row[1]} == {"b"}
    assert not tables.left
    run_until_taken(lake, throttle, tables)
    first_calls = [rows for batch, rows in tables.calls if batch == 0]
    assert [len(rows) for rows in first_calls][1:] == [len(tables.kept[0])] * (len(first_calls) - 1)
    check_taken_once_in_order(tables)


def test_rows_of_an_unavailable_destination_go_to_the_dead_letters_if_the_policy_says_so(lake: Lake) -> None:
    tables = Tables(10**6)
    lake.offer(EVENTS)
    throttle = lake.throttle(api(on_unavailable="dead_letters"))
    run(lake, throttle, tables.write)
    assert lake.reasons == {"destination_unavailable"}
    tables.left = 0
    for _ in range(20):
        run(lake, throttle, tables.write)
        if len(tables.rows) + len(lake.rejected_ids) == len(EVENTS):
            break
    assert sorted([*lake.rejected_ids, *(row[0] for row in tables.rows)]) == [row[0] for row in EVENTS]


def test_rows_that_a_function_did_not_take_wait_for_whatever_sink_comes_next(lake: Lake) -> None:
    tables = Tables(10**6)
    lake.offer(EVENTS)
    throttle = lake.throttle(api())
    run(lake, throttle, tables.write)
    assert len(EVENTS) - len(tables.rows) > 300
    other: list[int] = []
    for _ in range(20):
        run(lake, throttle, lambda rows, _: other.extend(row["id"] for row in rows.collect()))
        if len(other) + len(tables.rows) == len(EVENTS):
            break
    assert sorted([*other, *(row[0] for row in tables.rows)]) == [row[0] for row in EVENTS]


def test_metered_function_says_it_in_a_task(lake: Lake, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.touch()
    taken: list[int] = []
    lake.offer(EVENTS[:60])
    throttle = lake.throttle(api())

    def insert(rows: Iterator[Any]) -> None:
        if any(row["ns"].startswith("a/") for row in rows) and locked.exists():
            raise Backpressure(scope="api")

    metered = throttle.metered(insert, namespace="ns")

    def write(rows: DataFrame, batch: int) -> None:
        rows.foreachPartition(metered)
        taken.extend(row["id"] for row in rows.collect())

    run(lake, throttle, write)
    assert sorted(taken) == [row[0] for row in EVENTS[:60] if str(row[1]).startswith("b/")]
    locked.unlink()
    run(lake, throttle, write)
    assert sorted(taken) == list(range(60))
