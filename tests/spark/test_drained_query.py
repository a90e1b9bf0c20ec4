"""A drain names its rows only if there are any, and leaves the checkpoint open where Spark takes none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException

from spark_throttle.checkpoint.manifest import Drained, read_drained, write_drained
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.drained_query import DrainedQuery, _write


class RefusedRows:
    """Rows whose write Spark refuses: each call on their writer returns it, and the last one fails."""

    def __getattr__(self, name: str) -> Any:
        if name == "write":
            return self
        if name in ("save", "parquet"):
            return self._refused
        return lambda *_: self

    def _refused(self, _: str) -> None:
        raise AnalysisException("[DELTA_FAILED_TO_MERGE_FIELDS] id is int\nin the plan")


def test_drain_names_the_place_of_the_rows_only_if_there_are_any() -> None:
    assert str(DrainedQuery(12, 200, "/lake/waiting", ())) == "200 rows that waited after batch 12 are in /lake/waiting"
    assert str(DrainedQuery(12, 0, "/lake/waiting", ())) == (
        "no row waited after batch 12, so none was written, and the checkpoint is as it was"
    )


@pytest.mark.parametrize(("kind", "remedy"), [("delta", "a table of their own"), ("parquet", "a Delta table")])
@pytest.mark.parametrize("may_reopen", [True, False])
def test_drain_into_a_place_that_does_not_take_the_rows_leaves_the_checkpoint_as_it_found_it(
    tmp_path: Path, kind: Any, remedy: str, *, may_reopen: bool
) -> None:
    directory, note = Directory(str(tmp_path)), Drained(12, "/lake/waiting", kind, "attempt")
    write_drained(directory, note)
    query = SimpleNamespace(directory=directory, manifest=SimpleNamespace(query="q"))
    with pytest.raises(ConfigurationError, match=rf"^/lake/waiting does not take .* so none was written.*{remedy}"):
        _write(cast("Any", RefusedRows()), note, cast("Any", query), may_reopen=may_reopen)
    assert (read_drained(directory) is None) == may_reopen, "an earlier attempt may have written some"
