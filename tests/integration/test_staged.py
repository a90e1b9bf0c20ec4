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
