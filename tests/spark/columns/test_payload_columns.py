"""Columns travel in a type that Arrow holds, or are refused: the parts that need no JVM."""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.columns.payload_columns import (
    SOURCE_ORDERS,
    RowExpressions,
    carried_schema,
    check_amount,
    check_columns,
    derived_columns,
)
from spark_throttle.spark.rows.digest import HelperColumns
from spark_throttle.spark.rows.frames import NAMESPACE, ORDER_PREFIX, SIZE

MONTHS = YearMonthIntervalType()


def schema(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields])


@pytest.mark.parametrize(
    "kind",
    [LongType(), StringType(), VariantType(), DayTimeIntervalType(), MONTHS, ArrayType(LongType()),
     MapType(StringType(), schema(("a", DayTimeIntervalType())))],
)  # fmt: skip
def test_type_that_arrow_carries_is_let_through(kind: DataType) -> None:
    check_columns(schema(("id", LongType()), ("c", kind)))


@pytest.mark.parametrize(
    "kind",
    [CalendarIntervalType(), ArrayType(MONTHS), schema(("a", ArrayType(MONTHS))), MapType(StringType(), MONTHS),
     MapType(MONTHS, StringType()), ArrayType(CalendarIntervalType())],
)  # fmt: skip
def test_interval_that_arrow_does_not_carry_is_refused_with_a_remedy(kind: DataType) -> None:
    with pytest.raises(ConfigurationError, match=r"column 'c' is .* cast its months to int"):
        check_columns(schema(("id", LongType()), ("c", kind)))


def test_names_that_differ_only_in_case_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"several columns named \['id'\]; rename all but one"):
        check_columns(schema(("id", LongType()), ("ID", LongType())))


@pytest.mark.parametrize("name", ["throttle", "Throttle", "__throttle_tie", "__THROTTLE_x"])
def test_names_of_the_throttle_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"\['{name}'\] have names that the throttle uses; rename them"):
        check_columns(schema((name, LongType())))


def test_year_month_intervals_travel_as_a_number_of_months() -> None:
    before = StructType([StructField("i", MONTHS, nullable=False, metadata={"k": 1}), StructField("s", StringType())])
    after = StructType(
        [StructField("i", IntegerType(), nullable=False, metadata={"k": 1}), StructField("s", StringType())]
    )
    assert carried_schema(before) == after
    assert carried_schema(after) == after


KAFKA = schema(
    ("topic", StringType()), ("partition", IntegerType()), ("offset", LongType()), ("value", BinaryType()),
    ("true", StringType()), ("current_date", StringType()), ("a b", StringType()),
)  # fmt: skip


def test_columns_that_are_given_by_name_and_have_the_type_are_the_same() -> None:
    order = {f"{ORDER_PREFIX}000": "partition", f"{ORDER_PREFIX}001": "offset"}
    assert derived_columns(KAFKA, RowExpressions("topic", "offset", None)).same == {
        NAMESPACE: "topic",
        SIZE: "offset",
        **order,
    }
    for name in ("partition", "true", "current_date", "a b", "`a b`", "Topic", "concat(topic, 1)", "missing"):
        assert derived_columns(KAFKA, RowExpressions(name, "partition", ())) == HelperColumns()
    found = derived_columns(KAFKA, RowExpressions("topic", None, ["1", "offset"]))
    assert found == HelperColumns({NAMESPACE: "topic", f"{ORDER_PREFIX}001": "offset"})


@pytest.mark.parametrize("size", ["length(value)", " LENGTH ( value ) ", "char_length(value)", "len(value)"])
def test_length_of_a_text_or_binary_column_is_found_behind_the_jvm(size: str) -> None:
    assert derived_columns(KAFKA, RowExpressions("'a'", size, ())) == HelperColumns(characters_of="value")


def test_length_in_bytes_is_that_of_texts_too() -> None:
    assert derived_columns(KAFKA, RowExpressions("'a'", "octet_length(topic)", ())) == HelperColumns(bytes_of="topic")


@pytest.mark.parametrize(
    "size", ["length(offset)", "length(true)", "length(value) + 1", "bit_length(value)", "length(Value)", "length(no)"]
)
def test_any_other_size_is_the_jvms_to_find(size: str) -> None:
    assert derived_columns(KAFKA, RowExpressions("'a'", size, ())) == HelperColumns()


@pytest.mark.parametrize("marks", SOURCE_ORDERS, ids=lambda marks: "-".join(sorted(marks)))
def test_rows_of_a_known_source_have_its_order_unless_the_user_gives_one(marks: frozenset[str]) -> None:
    stream, order = schema(*((name, StringType()) for name in ("ns", *marks))), list(SOURCE_ORDERS[marks])
    assert set(order) <= marks
    assert list(derived_columns(stream, RowExpressions("ns", None, None)).same.values()) == ["ns", *order]
    assert list(derived_columns(stream, RowExpressions("ns", None, ["ns"])).same.values()) == ["ns", "ns"]
    for name in marks:
        less = schema(*(field for field in (("ns", StringType()), *((m, StringType()) for m in marks - {name}))))
        assert list(derived_columns(less, RowExpressions("ns", None, None)).same.values()) == ["ns"]


def test_two_sources_are_never_told_by_the_same_stream() -> None:
    assert not [(some, other) for some in SOURCE_ORDERS for other in SOURCE_ORDERS if some < other]


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [(StringType(), "octet_length"), (BinaryType(), "octet_length"), (BooleanType(), "an expression that is one")],
)
def test_size_that_is_no_number_is_refused_with_what_to_give(kind: DataType, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"size is {kind.simpleString()}, and no number of bytes: .*{remedy}"):
        check_amount("size", StructField("value", kind))
