"""Rows that are staged in files and decided on by one decider: what reaches the sink, and what is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    from spark_throttle.spark import ThrottledStreamWriter


def staged(lake: Lake, limits: Any, **settings: Any) -> ThrottledStreamWriter:
    """Return a staging writer of the lake's events that ends when all is drained."""
    return lake.writer(lake.throttle(limits, **settings)).option("throttle.writer", "staged")


def table_ids(lake: Lake, name: str = "out") -> list[int]:
    return sorted(DeltaTable(lake.path(name)).to_pyarrow_table(columns=["id"]).column("id").to_pylist())


def data_files(lake: Lake, name: str = "out") -> set[str]:
    return {str(path.relative_to(lake.root / name)) for path in (lake.root / name).rglob("*.parquet")}


def committed_files(lake: Lake, name: str = "out") -> set[str]:
    return {Path(uri).name for uri in DeltaTable(lake.path(name)).file_uris()}


def test_files_of_which_all_rows_leave_are_the_tables_own(lake: Lake) -> None:
    for batch in range(3):
        lake.offer([(batch * 10 + n, f"t/{n}", 5) for n in range(4)])
    finish(staged(lake, {}).format("delta").start(lake.path("out")))
    assert table_ids(lake) == [n * 10 + m for n in range(3) for m in range(4)]
    assert data_files(lake) >= committed_files(lake)
    assert len(committed_files(lake)) == 3


SHUT = policies(tenants={"slow": publish(messages_per_second=0)})
HALF = policies(tenants={"bad": publish(messages_per_second=0, on_excess="reject")})
SLOWLY = policies(tenants={"slow": publish(messages_per_second=4, burst_seconds=1)})


def rows(first: int, *names: str | None) -> list[tuple[int, str | None, int | None]]:
    return [(first + at, name, 5) for at, name in enumerate(names)]


def waiting_files(lake: Lake) -> list[str]:
    folder = lake.control / "staged"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_rows_wait_outside_the_table_and_leave_once_in_order(lake: Lake) -> None:
    for batch in range(3):
        lake.offer(rows(batch * 100, *(["slow/a", "fast/b", "slow/c"] * 3)))
    finish(staged(lake, SHUT).format("delta").start(lake.path("out")))
    assert table_ids(lake) == [batch * 100 + n for batch in range(3) for n in (1, 4, 7)]
    assert [name for name in waiting_files(lake) if "-rest-" in name], "the first batch had no hint"
    assert [name for name in waiting_files(lake) if "-rest-" not in name], "later ones had"
    query = finish(staged(lake, SLOWLY).format("delta").start(lake.path("out")))
    assert table_ids(lake) == [batch * 100 + n for batch in range(3) for n in range(9)]
    assert len(query.recentProgress) > 1, "nothing waited"


def test_cut_files_are_deleted_by_the_next_batch(lake: Lake) -> None:
    lake.offer(rows(0, "slow/a", "fast/b"))
    finish(staged(lake, SHUT).format("delta").start(lake.path("out")))
    cut = {name for name in data_files(lake) - committed_files(lake) if "-c000" not in name}  # Spark's has no row
    lake.offer(rows(10, "fast/b"))
    finish(staged(lake, SHUT).format("delta").start(lake.path("out")))
    assert cut
    assert not cut & data_files(lake)
    assert table_ids(lake) == [1, 10]


@pytest.mark.parametrize("limits", [SHUT, SLOWLY])
def test_batch_that_is_run_again_stages_anew_and_writes_each_row_once(lake: Lake, limits: Any) -> None:
    for batch in range(3):
        lake.offer(rows(batch * 100, *(["slow/a", "fast/b", "slow/c"] * 3)))
    finish(staged(lake, limits).format("delta").start(lake.path("out")))
    before, last = table_ids(lake), lake.last_batch()
    lake.crash_in(last)
    finish(staged(lake, limits).format("delta").start(lake.path("out")))
    assert table_ids(lake) == before
    finish(staged(lake, {}).format("delta").start(lake.path("out")))
    assert table_ids(lake) == [batch * 100 + n for batch in range(3) for n in range(9)]


def test_rejected_rows_go_to_dead_letters_with_the_reason(lake: Lake) -> None:
    lake.offer(rows(0, "bad/a", "fast/b", None, "bad/c"))
    finish(staged(lake, HALF).format("delta").usage(lake.path("usage")).start(lake.path("out")))
    assert table_ids(lake) == [1]
    assert lake.rejected_ids == [0, 2, 3]
    assert lake.reasons == {"quota", "no namespace"} or len(lake.reasons) == 2
    assert [row["admitted_messages"] for row in lake.usage("namespace", "fast/b")] == [1]


@pytest.mark.parametrize("sink", ["parquet", "noop", "json"])
def test_other_sinks_get_the_rows_through_spark(lake: Lake, sink: str) -> None:
    for batch in range(2):
        lake.offer(rows(batch * 10, "slow/a", "fast/b", "bad/x"))
    limits = policies(tenants={**SHUT["tenants"], **HALF["tenants"]})
    finish(staged(lake, limits).format(sink).start(lake.path("out")))
    finish(staged(lake, HALF).format(sink).usage(lake.path("usage")).start(lake.path("out")))
    assert lake.rejected_ids == [2, 12]
    if sink != "noop":
        found = lake.spark.read.schema("id long").format(sink).load(lake.path("out"))
        assert sorted(row["id"] for row in found.collect()) == [0, 1, 10, 11]
    assert sum(row["admitted_messages"] for row in lake.usage("namespace", "slow/a")) == 2


def test_function_gets_each_namespace_in_order(lake: Lake) -> None:
    lake.offer([(n, f"slow/{n % 3}", 5) for n in reversed(range(30))])
    finish(staged(lake, SHUT).foreachBatch(lake.keep).start())
    lake.offer([(n, f"slow/{n % 3}", 5) for n in range(30, 60)])
    finish(staged(lake, {}).foreachBatch(lake.keep).start())
    for namespace in range(3):
        found = [row[0] for row in lake.admitted if row[1] == f"slow/{namespace}"]
        assert found == sorted(found)
    assert lake.admitted_ids == list(range(60))


def test_partitioned_table_gets_the_rows_through_spark(lake: Lake) -> None:
    lake.offer(rows(0, "slow/a", "fast/b", "fast/c"))
    for limits in (SHUT, {}):
        finish(staged(lake, limits).format("delta").partitionBy("ns").start(lake.path("out")))
    assert table_ids(lake) == [0, 1, 2]
    assert DeltaTable(lake.path("out")).metadata().partition_columns == ["ns"]
