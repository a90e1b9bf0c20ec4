"""Extreme values of every type, text that is no UTF-8 among them: as payload and as partition."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.spark.columns.payload_columns import RowExpressions, with_helpers
from spark_throttle.spark.rows.frames import SIZE
from spark_throttle.spark.state_reader import read_queued
from spark_throttle.status.status import read_status
from tests.effort import thorough_after
from tests.integration.every_type import exact
from tests.integration.streams import Lake, finish, policies, publish

EXTREMES = {
    "tiny": ("127Y", "-128Y"),
    "n": ("bigint('-9223372036854775808')", "9223372036854775807L"),
    "f": ("float('NaN')", "float('-0.0')", "float('-Infinity')", "float('1.4e-45')", "float('3.4028235e38')"),
    "x": ("double('-0.0')", "double('NaN')", "double('Infinity')", "double('4.9e-324')"),
    "de": ("-99999999999999999999.999999999999999999BD", "99999999999999999999.999999999999999999BD"),
    "s": (
        "''", "'a\\u0000b'", "repeat('é', 16384)", "cast(X'636166E9' as string)", "cast(X'FF' as string)",
        "concat(repeat('z', 32), cast(X'FF' as string))", "repeat('\U0010ffff', 40)", "cast(X'EDA080' as string)",
    ),
    "b": ("X''", "X'00'", "X'FF'"),
    "da": ("date'-5877641-06-23'", "date'+5881580-07-11'", "date'0000-12-31'", "date'10000-01-01'"),
    "t": ("timestamp_micros(-9223372036854775808)", "timestamp_micros(9223372036854775807)"),
    "w": (
        "cast(timestamp_micros(-9223372036854775808) as timestamp_ntz)",
        "cast(timestamp_micros(9223372036854775807) as timestamp_ntz)",
    ),
    "st": (
        "named_struct('s', cast(X'E9' as string), 'x', double('NaN'), 'd', date'-5877641-06-23')",
        "named_struct('s', cast(null as string), 'x', double('-0.0'), 'd', date'+5881580-07-11')",
        "named_struct('s', '', 'x', cast(null as double), 'd', cast(null as date))",
    ),
    "m": ("map(cast(X'E9' as string), float('-0.0'))", "map('', float('NaN'))", "map()"),
    "ar": ("array(cast(X'E9' as string), null)", "array()", "array(cast(null as string))"),
}  # fmt: skip
"""By column: values that some row has each; the other rows have nulls, the first row only nulls."""

ROWS = 9
A_TASK_A_FILE = ("spark.sql.files.openCostInBytes", str(2**27))
NAMES = "case id % 3 when 0 then cast(X'742FE9' as string) when 1 then 't/\\\\xE9' else 't/a' end"
SHOWN = {r"t/\xE9", r"t/\\xE9", "t/a"}


def source(lake: Lake, columns: str) -> DataFrame:
    """Write a source of `ROWS` rows, each in a file of its own, and return it."""
    path = lake.path("source")
    lake.spark.sql(f"select id, {columns} from range(0, {ROWS}, 1, {ROWS})").write.parquet(path)  # noqa: S608
    return lake.spark.read.parquet(path)


def extremes() -> str:
    columns = []
    for name, values in EXTREMES.items():
        cases = " ".join(f"when {place} then {value}" for place, value in enumerate(values, start=1))
        columns.append(f"case id {cases} end {name}")
    return ", ".join(columns)


def run(lake: Lake, offered: DataFrame, limits: Any, *partition: str, **settings: Any) -> None:
    """Run all rows of the source into a Delta table."""
    events = lake.spark.readStream.schema(offered.schema).parquet(lake.path("source"))
    throttle = lake.throttle(limits, **settings)
    stream = throttle.write_stream(events).format("delta").option("checkpointLocation", lake.checkpoint)
    stream = stream.usage(lake.path("usage")).partitionBy(*partition)
    finish(stream.trigger(availableNow=True).start(lake.path("out")))


def read(lake: Lake, name: str = "out") -> DataFrame:
    return lake.spark.read.format("delta").load(lake.path(name))


def dead(lake: Lake) -> list[tuple[Any, ...]]:
    """Return number and reason of the dead letters."""
    folder = lake.control / "rejected"
    if not folder.exists():
        return []
    rows = lake.spark.read.parquet(str(folder)).select("id", "throttle.reason", "throttle.scope")
    return sorted(map(tuple, rows.collect()))


@pytest.mark.parametrize("partition", thorough_after(1, ["", "part"]))
def test_extreme_values_come_out_as_they_went_in_and_no_filter_misses_one(lake: Lake, partition: str) -> None:
    offered = source(lake, f"{NAMES} ns, id part, {extremes()}")
    limits = policies(
        tenants={"t": publish(messages_per_second=1, burst_seconds=5)}, defaults=publish(messages_per_second=1)
    )
    lake.spark.conf.set(*A_TASK_A_FILE)
    try:
        run(lake, offered, limits, *[partition] * bool(partition), size="length(s)", order_by=["s", "x", "st.d"])
    finally:
        lake.spark.conf.unset(A_TASK_A_FILE[0])
    found = read(lake)
    assert dead(lake) == [(id_, "size_missing", None) for id_ in range(ROWS) if not 0 < id_ <= 8]
    offered = offered.where("id between 1 and 8")
    assert exact(found) == exact(offered)
    if not partition:
        assert_no_filter_misses_a_row(offered, found)
    files = DeltaTable(lake.path("out")).get_add_actions(flatten=True).num_rows
    assert (files == len(EXTREMES["s"])) if partition else (files > 1)
    usage = lake.spark.read.format("delta").load(lake.path("usage"))
    assert {row["scope"] for row in usage.where("level = 'namespace'").select("scope").collect()} == SHOWN
    status = read_status(str(lake.control))
    assert set(status.of_level("namespace")) <= SHOWN


def assert_no_filter_misses_a_row(offered: DataFrame, found: DataFrame) -> None:
    """Ask for every extreme value, and for what is beside it; where nothing is skipped is the truth."""
    # Spark puts U+FFFD into a filter of Parquet for what is no UTF-8, and misses its own rows by it: such is not asked.
    asked = [f"{name} = {value}" for name in ("x", "s") for value in EXTREMES[name] if "cast(X" not in value]
    asked += ["x > 1", "f < 0", "s > '\U0010ffff'", "de < 0", "n > 0", "w < timestamp_ntz'0001-01-01 00:00:00'"]
    # Of the first day and the last one themselves Spark makes no filter of Parquet: it fails on them.
    asked += [
        "da < date'0001-01-01'",
        "da > date'9999-12-31'",
        "t < timestamp'0001-01-01 00:00:00'",
        "t > timestamp'2200-01-01'",
    ]
    asked += ["st.d < date'0001-01-01'", "st.d > date'9999-12-31'", "st.s > 'z'", "s > 'b'", "isnan(st.x)"]
    truth = offered.select("id", *(F.expr(question).alias(f"q{n}") for n, question in enumerate(asked))).collect()
    expected = {(n, row["id"]) for row in truth for n in range(len(asked)) if row[f"q{n}"]}
    parts = [found.where(question).select(F.lit(n), "id") for n, question in enumerate(asked)]
    unions = (reduce(DataFrame.union, parts[n : n + 10]) for n in range(0, len(parts), 10))
    answered = {(row[0], row[1]) for union in unions for row in union.collect()}
    assert [(asked[n], id_) for n, id_ in answered ^ expected] == []


PARTITIONS = (
    "a b", "a/b:c%", "..", "_h", "漢" * 60, "é{}[]^'\"#*=?", "", "__HIVE_DEFAULT_PARTITION__", "~`|<>&;,$@!()+-.",
)  # fmt: skip
"""Texts that every writer makes folders of."""

UNWRITABLE = ("'a\\u0000b'", "repeat('a', 300)", "repeat('漢', 85)", "repeat('=', 90)")
DAYS = {
    "date'-0001-02-03'": True, "date'0000-12-31'": True, "date'0001-01-01'": True, "date'9999-12-31'": True,
    "date'+10000-01-01'": True, "date'+262142-12-31'": True, "date'+262143-01-01'": False, "date'-262144-01-01'": False,
}  # fmt: skip


@pytest.mark.thorough
def test_every_text_that_can_be_a_folder_is_a_partition_and_what_cannot_is_a_dead_letter(lake: Lake) -> None:
    texts = [f"cast(X'{text.encode().hex()}' as string)" for text in PARTITIONS]
    texts += [f"cast(X'{text}' as string)" for text in ("636166E9", "EDA08041", "F09F98", "E2")]
    rows = [(text, "null", True) for text in texts] + [(text, "null", False) for text in UNWRITABLE]
    rows += [("'day'", day, is_writable) for day, is_writable in DAYS.items()]
    values = ", ".join(f"({id_}L, {text}, {day})" for id_, (text, day, _) in enumerate(rows))
    lake.spark.sql(f"select id, 't/a' ns, 1L size, p, d from values {values} as (id, p, d)").coalesce(  # noqa: S608
        1
    ).write.parquet(lake.path("source"))
    offered = lake.spark.read.parquet(lake.path("source"))
    run(lake, offered, {}, "p", "d")
    assert [id_ for id_, reason, _ in dead(lake) if reason == "partition_unwritable"] == [
        id_ for id_, (_, _, is_writable) in enumerate(rows) if not is_writable
    ]
    plain = offered.where(F.col("id").isin([id_ for id_, (*_, is_writable) in enumerate(rows) if is_writable]))
    plain.write.format("delta").partitionBy("p", "d").save(lake.path("plain"))
    found, plain = read(lake), read(lake, "plain")
    assert exact(found) == exact(plain)
    # Each alone is answered by leaving out partitions.
    assert of_each_partition(found) == of_each_partition(plain)


def of_each_partition(table: DataFrame) -> list[tuple[int, int]]:
    """Return the ids of the rows of each text's partition, by its place in `PARTITIONS`."""
    parts = [table.where(F.col("p") == text).select(F.lit(n), "id") for n, text in enumerate(PARTITIONS)]
    return sorted(map(tuple, reduce(DataFrame.union, parts).collect()))


@pytest.mark.parametrize(
    ("sizes", "kind", "expected"),
    [
        ("'7', 'abc', '', '1e400', cast(X'E9' as string), null", "string", [7, None, None, None, None, None]),
        ("double('NaN'), double('Infinity'), 1e30D, -0.5D, 7.9D", "double", [None, None, None, 0, 7]),
        ("cast('1e37' as decimal(38, 0)), cast('-3' as decimal(38, 0))", "decimal(38,0)", [None, -3]),
    ],
)
def test_size_that_is_no_number_of_bytes_is_missing(
    spark: SparkSession, sizes: str, kind: str, expected: list[int | None]
) -> None:
    rows = spark.sql(f"select 't/a' ns, size from (select explode(array({sizes})) size)")  # noqa: S608 - our own
    assert rows.schema["size"].dataType.simpleString() == kind
    assert [row[SIZE] for row in with_helpers(rows, RowExpressions("ns", "size", ())).collect()] == expected


def test_rows_that_wait_keep_their_bytes_and_have_a_size(lake: Lake) -> None:
    offered = source(lake, f"{NAMES} ns, 1L size, {extremes()}")
    events = lake.spark.readStream.schema(offered.schema).parquet(lake.path("source"))
    throttle = lake.throttle(policies(job=publish(messages_per_second=0)), size=None, order_by=None)
    writer = throttle.write_stream(events).format("noop").option("checkpointLocation", lake.checkpoint)
    finish(writer.trigger(availableNow=True).start())
    queued = read_queued(lake.spark, lake.checkpoint, schema=offered.schema)
    assert exact(queued.select(offered.columns)) == exact(offered)
    assert queued.where("cast(namespace as binary) <> cast(ns as binary)").count() == 0
