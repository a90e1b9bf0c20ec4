"""A table that asks for more than rows is left to Spark's writer, by the name of what it asks for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from spark_throttle.errors import ConfigurationError, ForeignFilesError
from spark_throttle.spark.sinks.table_features import check_table, check_types
from tests.spark.delta.delta_tables import make_table

ROWS = StructType().add("id", "long").add("s", "string")
INNER = StructType().add("a", "integer").add("b", "string", nullable=False)


def features(*names: str, reader: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return a protocol that lists features."""
    found: dict[str, Any] = {"minReaderVersion": 3 if reader else 1, "minWriterVersion": 7}
    return found | {"writerFeatures": [*names, *reader]} | ({"readerFeatures": list(reader)} if reader else {})


def check(path: Path, rows: StructType = ROWS, asked: tuple[str, ...] = (), **table: Any) -> None:
    """Make a table and ask whether rows may be appended."""
    made = make_table(path / "t", table.pop("schema", rows), **table)
    check_table(DeltaTable(made), "the sink", rows, asked)


def with_metadata(**metadata: Any) -> StructType:
    return StructType(
        [ROWS[0], StructField("s", StringType(), metadata={k.replace("__dot__", "."): v for k, v in metadata.items()})]
    )


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 4}},
        {"properties": {"delta.appendOnly": "true"}},
        {
            "properties": {"delta.columnMapping.mode": "none"},
            "protocol": features("columnMapping") | {"minReaderVersion": 2},
        },
        {"properties": {"delta.enableChangeDataFeed": "true"}, "protocol": features("changeDataFeed")},
        {"protocol": features("generatedColumns", "checkConstraints", "invariants")},
        {"protocol": features(reader=("deletionVectors", "timestampNtz"))},
        {"properties": {"delta.autoOptimize.optimizeWrite": "false"}},
        {"partition_columns": ("s",)},
        {"schema": StructType([*ROWS, StructField("more", IntegerType())])},
    ],
    ids=str,
)
def test_table_that_asks_for_rows_alone_takes_them(tmp_path: Path, table: dict[str, Any]) -> None:
    check(tmp_path, **table)


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, "it needs a writer of version 5"),
        ({"protocol": features("rowTracking", "domainMetadata")}, "the table feature domainMetadata, rowTracking"),
        ({"protocol": features("clustering")}, "the table feature clustering"),
        ({"protocol": features(reader=("v2Checkpoint",))}, "the table feature v2Checkpoint"),
        ({"protocol": features("somethingNew")}, "the table feature somethingNew"),
        ({"properties": {"delta.columnMapping.mode": "name"}}, r"uses column mapping .*mode is 'name'"),
        ({"properties": {"delta.constraints.pos": "id > 0"}}, r"it has a constraint \(pos: id > 0\)"),
        ({"properties": {"delta.autoOptimize.autoCompact": "auto"}}, "optimize .*autoCompact is auto"),
        ({"schema": with_metadata(delta__dot__generationExpression="id")}, "its column 's' is generated"),
        ({"schema": with_metadata(delta__dot__invariants="s > 1")}, "its column 's' has an invariant"),
        ({"schema": with_metadata(CURRENT_DEFAULT="'x'")}, "its column 's' has a default"),
        ({"schema": with_metadata(__CHAR_VARCHAR_TYPE_STRING="varchar(3)")}, "its column 's' has a bounded length"),
        ({"schema": StructType([StructField("id", LongType(), nullable=False), ROWS[1]])}, "'id' takes no null"),
        ({"schema": StructType([*ROWS, StructField("z", LongType(), nullable=False)])}, "'z' takes no null"),
        ({"schema": StructType([StructField("ID", LongType()), ROWS[1]])}, "'id' is spelled 'ID' in the table"),
        ({"schema": StructType([StructField("id", IntegerType()), ROWS[1]])}, "is long, and in the table integer"),
        ({"partition_columns": ("id", "s")}, "the rows have no column except"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_table_that_asks_for_more_is_left_to_spark(tmp_path: Path, table: dict[str, Any], why: str) -> None:
    with pytest.raises(ForeignFilesError, match=f"^the sink takes no files .*: .*{why}.*use Spark's writer"):
        check(tmp_path, **table)


def test_fields_of_structs_are_looked_at_too(tmp_path: Path) -> None:
    strict = StructType().add("id", "long").add("s", MapType(StringType(), INNER))
    loose = json.loads(strict.json())
    loose["fields"][1]["type"]["valueType"]["fields"][1]["nullable"] = True
    with pytest.raises(ForeignFilesError, match="its column 's' takes no null inside"):
        check(tmp_path / "strict", StructType.fromJson(loose), schema=strict)
    check(tmp_path / "loose", strict, schema=json.dumps(loose))
    loose["fields"][1]["type"]["valueType"]["fields"][0]["metadata"] = {"delta.typeChanges": []}
    with pytest.raises(ForeignFilesError, match=r"its column 's\.a' has a widened type"):
        check(tmp_path / "widened", strict, schema=json.dumps(loose))


@pytest.mark.parametrize("name", ["timestamp", "double", "decimal(10,2)"])
def test_partition_column_whose_text_depends_on_the_writer_is_left_to_spark(tmp_path: Path, name: str) -> None:
    rows = StructType().add("id", "long").add("p", name)
    with pytest.raises(ForeignFilesError, match=r"partitioned by 'p', which is"):
        check(tmp_path, rows, partition_columns=("p",))


@pytest.mark.parametrize(
    ("table", "asked", "message"),
    [
        ({"schema": StructType([ROWS[0]])}, (), r"has no column 's', which the rows have: .*mergeSchema"),
        ({"schema": StructType([ROWS[0], StructField("s", LongType())])}, (), "long and the rows .* as string: cast"),
        ({"partition_columns": ("s",)}, ("id",), r"is partitioned by \['s'\] and partitionBy says \['id'\]"),
        ({}, ("s",), r"is partitioned by \[\] and partitionBy says \['s'\]"),
    ],
)  # fmt: skip
def test_rows_that_no_writer_could_append_are_refused(
    tmp_path: Path, table: dict[str, Any], asked: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        check(tmp_path, ROWS, asked, **table)
    assert not isinstance(refused.value, ForeignFilesError)


@pytest.mark.parametrize(
    "data_type",
    [
        YearMonthIntervalType(),
        DayTimeIntervalType(),
        VariantType(),
        VarcharType(3),
        StringType("UNICODE"),
        StructType(),
    ],
    ids=str,
)
def test_types_that_parquet_keeps_in_sparks_own_way_are_left_to_spark(data_type: Any) -> None:
    for nested in (data_type, ArrayType(data_type), MapType(StringType(), data_type), StructType().add("a", data_type)):
        with pytest.raises(ForeignFilesError, match=r"^the sink takes no files .*: the column 'x' is "):
            check_types("the sink", StructType().add("x", nested))
