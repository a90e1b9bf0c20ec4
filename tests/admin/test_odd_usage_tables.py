"""A usage table is a table that others may write: what is in it is shown, refused with a reason, or left out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from spark_throttle.admin.watch.scope_history import UsageTable
from spark_throttle.checkpoint.manifest import bind, rename
from spark_throttle.errors import ConfigurationError, FileUnusableError
from spark_throttle.files.storage import Directory
from spark_throttle.status.usage_table import USAGE_SCHEMA
from spark_throttle.what_if.traffic import Traffic

AT_MS = 1_795_266_764_000
RANGE = {"since_ms": AT_MS - 60_000, "until_ms": AT_MS + 60_000}


def usage(**columns: list[Any]) -> pa.Table:
    """Return three batches of a namespace, a second apart, with other values in some columns."""
    times = [datetime.fromtimestamp(AT_MS / 1000 + n, UTC) for n in range(3)]
    known: dict[str, list[Any]] = {"batch_time": times, "level": ["namespace"] * 3, "scope": ["acme/a"] * 3}
    values = {
        field.name: columns.get(field.name) or known.get(field.name)
        or [None if pa.types.is_nested(field.type) else "r" if pa.types.is_string(field.type) else 5] * 3
        for field in USAGE_SCHEMA
    }  # fmt: skip
    return pa.table(values, schema=USAGE_SCHEMA)


def written(folder: Path, table: pa.Table) -> UsageTable:
    """Write the table, and return the rows of the job `r`, which was put back once."""
    control = Directory(str(folder / "control"))
    rename(control, bind(control, direction="publish"), "r-1")
    write_deltalake(str(folder / "usage"), table)
    return UsageTable(str(folder / "usage"), control)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"scope": ["acme/a", None, "acme/b"]}, "rows without namespace"),
        ({"offered_bytes": [None, 5, 5]}, "rows without bytes, largest_bytes"),
        ({"offered_bytes": [-5, 5, 5]}, "numbers below 0"),
        ({"offered_messages": [2**62] * 3}, "4,611,686,018,427,387,904 messages of one namespace in 1000 ms"),
        ({"offered_bytes": [2**62] * 3}, "larger than 68719476736 bytes"),
        ({"batch_time": [None] * 3}, "no event to replay"),
    ],
    ids=["no name", "no size", "below 0", "messages", "bytes", "no time"],
)
def test_row_that_no_job_wrote_is_not_replayed(tmp_path: Path, columns: dict[str, list[Any]], said: str) -> None:
    sums = written(tmp_path, usage(**columns)).sums(**RANGE, interval_ms=1_000)
    with pytest.raises(ConfigurationError, match=said):
        Traffic.of(sums, interval_ms=1_000)


def test_rows_without_a_time_and_without_a_quota_leave_gaps_in_a_chart(tmp_path: Path) -> None:
    times = [None, *usage()["batch_time"].to_pylist()[1:]]
    told = written(tmp_path, usage(batch_time=times, granted_messages=[5.0, float("nan"), 5.0]))
    found = told.history(("namespace", "acme/a"), "messages", **RANGE)
    assert (found.offered, found.quota) == ([5.0], [5.0])


def test_jobs_that_write_one_table_are_told_apart(tmp_path: Path) -> None:
    told = written(tmp_path, usage())
    write_deltalake(str(tmp_path / "usage"), usage(job=["other"] * 3, offered_messages=[7] * 3), mode="append")
    assert told.history(("namespace", "acme/a"), "messages", **RANGE).offered == [5.0, 5.0]
    assert told.sums(**RANGE, interval_ms=1_000)["messages"].to_pylist() == [5] * 3


def test_name_of_1024_bytes_with_markup_and_quotes_is_found(tmp_path: Path) -> None:
    name = ("acme/" + """<b>'";--\\""" * 103)[:1024]
    found = written(tmp_path, usage(scope=[name] * 3)).history(("namespace", name), "messages", **RANGE)
    assert found.offered == [5.0, 5.0]


def test_range_over_a_change_of_schema_has_no_quota_where_none_was_recorded(tmp_path: Path) -> None:
    old = usage().drop_columns(["granted_messages", "granted_bytes"])
    later = usage(batch_time=[datetime.fromtimestamp(AT_MS / 1000 + n, UTC) for n in range(3, 6)])
    told = written(tmp_path, old)
    with pytest.raises(FileUnusableError, match="granted_messages"):
        told.history(("namespace", "acme/a"), "messages", **RANGE)
    write_deltalake(str(tmp_path / "usage"), later, mode="append", schema_mode="merge")
    found = told.history(("namespace", "acme/a"), "messages", **RANGE)
    assert found.offered == [5.0] * 5
    assert found.quota == [None, None, 5.0, 5.0, 5.0]


@pytest.mark.parametrize("table", [
    pa.table({"a": [1]}),
    usage().set_column(1, "batch_time", pa.array([1, 2, 3])),
    usage().set_column(USAGE_SCHEMA.get_field_index("offered_messages"), "offered_messages", pa.array(["x", "y", "z"])),
], ids=["other columns", "number for a time", "text for a number"])  # fmt: skip
def test_foreign_table_is_refused_by_its_name(tmp_path: Path, table: pa.Table) -> None:
    told = written(tmp_path, table)
    with pytest.raises(FileUnusableError, match="usage cannot be used: as a usage table"):
        told.history(("job", "job"), "messages", **RANGE)
    with pytest.raises(FileUnusableError, match="usage cannot be used: as a usage table"):
        told.sums(**RANGE, interval_ms=1_000)
