"""A query's tables and options are refused before it starts, against a session that is made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.sinks.tables import refuse_lacking_letters
from spark_throttle.spark.sinks.targets import Target
from tests.spark.delta.delta_tables import make_table

ROWS = StructType().add("id", "long").add("note", "string")


def session(**settings: str) -> Any:
    return SimpleNamespace(conf=settings)


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
