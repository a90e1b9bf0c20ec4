"""What the reader of waiting rows knows before Spark reads a state, and of the schemas that it finds there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, LongType, StringType, StructType

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.state_reader import _newest_schema, _operator


def newest(*schemas: pa.Schema) -> StructType:
    """Return the newest schema of blocks whose frames have these."""
    found = [{"schema": schema.serialize().to_pybytes()} for schema in schemas]
    collected = SimpleNamespace(collect=lambda: found)
    return _newest_schema(cast("Any", SimpleNamespace(mapInArrow=lambda *_: collected)), cast("Any", None))


def test_checkpoint_whose_path_spark_misreads_is_refused_before_spark_reads_it() -> None:
    for path in ("/lake/my orders", "/lake/a%b", "/lake/[x]", "/lake/a#b"):
        with pytest.raises(ConfigurationError, match="move it to a path without"):
            _operator(cast("Any", None), path)


def test_rows_that_wait_have_the_widest_of_their_types_and_all_of_their_columns() -> None:
    narrow, wide = pa.schema([("id", pa.int32())]), pa.schema([("id", pa.int64()), ("note", pa.string())])
    for schemas in ((narrow, wide), (wide, narrow), (narrow, wide, wide)):
        assert newest(*schemas) == StructType().add("id", LongType()).add("note", StringType())
    assert newest(narrow) == StructType().add("id", IntegerType())
    assert newest() == StructType()


def test_rows_whose_types_have_none_in_common_are_read_with_the_most_columns() -> None:
    """Spark casts one to the other: a start has made sure that it does."""
    text, number = pa.schema([("id", pa.string())]), pa.schema([("id", pa.int64()), ("note", pa.string())])
    assert newest(text, number) == StructType().add("id", LongType()).add("note", StringType())
