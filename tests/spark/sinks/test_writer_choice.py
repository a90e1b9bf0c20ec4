"""What the choice of a writer refuses before a query starts, against a session that is made up."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.sinks.batch_sink import Target
from spark_throttle.spark.sinks.writer_choice import (
    WRITER_OPTION,
    WRITERS,
    Targets,
    choose_spark,
    choose_writer,
    parse_option,
)
from tests.spark.delta.delta_tables import make_table

ROWS = StructType().add("id", "long").add("note", "string")


def session(**settings: str) -> Any:
    return SimpleNamespace(conf=settings)


def targets_of(letters: Path, **options: str) -> Targets:
    return Targets(lambda _rows, _batch: None, Target("delta", options, path=str(letters)), None)


def test_word_that_names_no_writer_is_refused_with_the_nearest() -> None:
    assert [parse_option(WRITER_OPTION, word, WRITERS) for word in (None, "Native")] == ["auto", "native"]
    with pytest.raises(
        ConfigurationError, match=r"'sparks'; did you mean spark\? \(use native, spark, staged or auto\)"
    ):
        parse_option(WRITER_OPTION, "sparks", WRITERS)


def test_table_of_dead_letters_without_a_column_is_refused(tmp_path: Path) -> None:
    letters = make_table(tmp_path / "letters", StructType().add("id", "long").add("throttle", "string"))
    targets, refusal = targets_of(letters), r"letters has no column 'note'.*mergeSchema=True"
    with pytest.raises(ConfigurationError, match=refusal):
        choose_writer(session(), "spark", ROWS, str(tmp_path), targets)
    with pytest.raises(ConfigurationError, match=refusal):
        choose_spark(session(), ROWS, targets, "")


def test_table_of_dead_letters_that_is_widened_or_missing_is_not_refused(tmp_path: Path) -> None:
    letters = make_table(tmp_path / "letters", StructType().add("id", "long"))
    merging = session(**{"spark.databricks.delta.schema.autoMerge.enabled": "true"})
    for spark, targets in (
        (session(), targets_of(letters, mergeSchema="true")),
        (merging, targets_of(letters)),
        (session(), targets_of(tmp_path / "none")),
    ):
        assert choose_spark(spark, ROWS, targets, "why").why == "why"
