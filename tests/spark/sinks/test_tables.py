"""A query's tables and options are refused before it starts, against a session that is made up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError, NotInstalledError
from spark_throttle.spark.sinks.file_table import FileTable
from spark_throttle.spark.sinks.tables import refuse_lacking_letters, usage_table
from spark_throttle.spark.sinks.targets import Target, Targets
from spark_throttle.status.usage_table import USAGE_SCHEMA
from tests.spark.delta.delta_tables import make_table

ROWS = StructType().add("id", "long").add("note", "string")


def session(**settings: str) -> Any:
    return SimpleNamespace(conf=settings, read=Refusing("[PATH_NOT_FOUND]"))


def letters_in(place: Path, **options: str) -> Target:
    return Target("delta", options, path=str(place))


def test_table_of_dead_letters_without_a_column_is_refused(tmp_path: Path) -> None:
    letters = make_table(tmp_path / "letters", StructType().add("id", "long").add("throttle", "string"))
    with pytest.raises(ConfigurationError, match=r"letters has no column 'note'.*mergeSchema=True"):
        refuse_lacking_letters(session(), letters_in(letters), ROWS)


def test_table_of_dead_letters_that_is_widened_or_missing_is_not_refused(tmp_path: Path) -> None:
    letters = make_table(tmp_path / "letters", StructType().add("id", "long"))
    merging = session(**{"spark.databricks.delta.schema.autoMerge.enabled": "true"})
    refuse_lacking_letters(session(), letters_in(letters, mergeSchema="true"), ROWS)
    refuse_lacking_letters(merging, letters_in(letters), ROWS)
    refuse_lacking_letters(session(), letters_in(tmp_path / "none"), ROWS)


class JavaError(Exception):
    """As Py4J raises it: Spark 4.3 has no class of its own for a source that it does not find."""


class Refusing:
    """The readers and writers of a Spark that can neither read nor write."""

    def __init__(self, said: str) -> None:
        self._said = said

    def __getattr__(self, name: str) -> Any:
        return self

    def __call__(self, *_: Any) -> Any:
        return self

    def save(self, path: str) -> None:
        raise JavaError(f"{self._said} {path}")

    load = save


class Settings(dict[str, str]):
    set, unset = dict.__setitem__, dict.pop


NOT_FOUND = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta."
WITHOUT_DELTA: Any = SimpleNamespace(conf=Settings(), createDataFrame=Refusing(NOT_FOUND), read=Refusing(NOT_FOUND))


def usage_table_in(place: Path) -> Any:
    usage = Target("delta", path=str(place))
    return usage_table(WITHOUT_DELTA, Targets(usage, usage, usage, has_shares=False))


def test_usage_table_is_made_where_spark_has_no_delta(tmp_path: Path) -> None:
    found = usage_table_in(tmp_path / "usage")
    assert isinstance(found, FileTable)
    assert DeltaTable(tmp_path / "usage").schema().to_arrow() is not None
    assert [field.name for field in found.schema.fields] == USAGE_SCHEMA.names


def test_tables_that_nobody_could_write_are_refused_before_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(JavaError, match="data source: delta"):
        refuse_lacking_letters(WITHOUT_DELTA, letters_in(tmp_path / "letters"), ROWS)
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(NotInstalledError, match=r"jar of Delta is missing .*: install the package 'deltalake', with"):
        usage_table_in(tmp_path / "usage")
