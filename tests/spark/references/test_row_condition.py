"""Conditions that are computed without Spark keep the rows that Spark keeps."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest

from spark_throttle.spark.references.row_expressions import Kind, RowCondition, both, row_condition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: Final[dict[str, Kind]] = {"name": "text", "other": "text", "small": "number", "n": "number", "value": "binary"}
NAMES: Final = (None, "", "a", "A", "b", "é", "e\u0301", "\U0001f600", "\uffff", "a/b", "zz")
NUMBERS: Final = (None, -(2**63), -129, -1, 0, 1, 2, 127, 2**31, 2**63 - 1)
SMALL: Final = (None, -128, -1, 0, 1, 2, 127)


def table() -> pa.Table:
    draw = random.Random(7)
    rows = [
        {"id": i, "name": draw.choice(NAMES), "other": draw.choice(NAMES), "small": draw.choice(SMALL),
         "n": draw.choice(NUMBERS), "value": draw.choice((None, b"", b"ab"))}
        for i in range(300)
    ]  # fmt: skip
    types = [("id", pa.int64()), ("name", pa.string()), ("other", pa.string()), ("small", pa.int8()),
             ("n", pa.int64()), ("value", pa.binary())]  # fmt: skip
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def drawn_operands(draw: random.Random) -> tuple[str, str]:
    if draw.random() < 0.5:
        texts = [
            "name",
            "other",
            "'a'",
            "''",
            "'é'",
            "'\U0001f600'",
            "'\uffff'",
            "name || other",
            "coalesce(name, 'b')",
        ]
        return draw.choice(texts), draw.choice(texts)
    numbers = ["n", "small", "0", "1", "127", "128", "9223372036854775807", "length(name)", "octet_length(value)"]
    return draw.choice(numbers), draw.choice(numbers)


def drawn_condition(draw: random.Random, depth: int = 3) -> str:
    if depth and draw.random() < 0.6:
        parts = [drawn_condition(draw, depth - 1) for _ in range(2)]
        return draw.choice([f"({parts[0]} AND {parts[1]})", f"({parts[0]} OR {parts[1]})", f"NOT ({parts[0]})"])
    first, second = drawn_operands(draw)
    kind = draw.choice(["compare", "compare", "null", "in", "between"])
    if kind == "null":
        return f"{first} IS {draw.choice(['', 'NOT '])}NULL"
    if kind == "in":
        return f"{first} {draw.choice(['', 'NOT '])}IN ({second}, {first}, {second})"
    if kind == "between":
        return f"{first} {draw.choice(['', 'NOT '])}BETWEEN {second} AND {first}"
    return f"{first} {draw.choice(['=', '==', '<>', '!=', '<', '<=', '>', '>='])} {second}"


def kept(condition: RowCondition, rows: pa.Table) -> list[int]:
    found: list[int] = rows.filter(condition.keeps(rows)).column("id").to_pylist()
    return found


@pytest.mark.jvm
def test_condition_keeps_the_rows_that_spark_keeps(spark: SparkSession) -> None:
    draw, rows = random.Random(11), table()
    conditions = [drawn_condition(draw) for _ in range(150)]
    stored = spark.createDataFrame(rows).persist()
    by_spark = stored.selectExpr("id", *(f"coalesce({text}, false) AS k{at}" for at, text in enumerate(conditions)))
    found = by_spark.orderBy("id").toArrow()
    stored.unpersist()
    for at, text in enumerate(conditions):
        condition = row_condition(text, KINDS)
        assert condition is not None, text
        again = RowCondition.from_fields(condition.to_fields())
        assert again == condition
        assert kept(again, rows) == found.filter(found.column(f"k{at}")).column("id").to_pylist(), text


@pytest.mark.parametrize(
    "text",
    [
        "name LIKE 'a%'", "n > 1.5", "n > '1'", "name = 1", "n + 1 > 2", "n > -1", "value = 'a'", "value IS TRUE", "n",
        "true", "unknown = 1", "t.n = 1", "n <=> 1", "n IN (SELECT 1)", "n IN ()", "rand() > 0", "upper(name) = 'A'",
        "name RLIKE 'a'", "name = 'a' COLLATE UTF8_LCASE", "n = 1 OR name LIKE 'a'", "NOT upper(name) IS NULL", "",
        "exists(array(n), x -> x > 1)", "n BETWEEN 1 AND 'b'", "name = 'a\\\\b'", "n = 1; n = 2", "n >",
    ],
)  # fmt: skip
def test_condition_that_takes_spark_is_left_to_spark(text: str) -> None:
    assert row_condition(text, KINDS) is None


def test_conditions_of_two_steps_hold_together_over_the_columns_of_the_source() -> None:
    first, second = row_condition("n > 0", KINDS), row_condition("size < 2", {"size": "number"})
    assert second is not None
    together = both(first, second.renamed({"size": "small"}))
    assert together is not None
    assert together.columns() == {"n", "small"}
    rows = table()
    expected = [row["id"] for row in rows.to_pylist() if (row["n"] or 0) > 0 and (row["small"] or 0) < 2
                and row["small"] is not None]  # fmt: skip
    assert kept(together, rows) == expected
    assert both(None, None) is None
    assert both(first, None) is first
