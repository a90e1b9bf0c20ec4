"""Every column type that Spark can stream comes out as it went in, whatever way a row takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from spark_throttle.errors import Backpressure, ConfigurationError
from spark_throttle.spark import Throttle
from spark_throttle.spark.columns.payload_columns import RowExpressions, with_helpers
from spark_throttle.spark.rows.frames import TIE
from spark_throttle.spark.rows.row_digests import row_digests
from spark_throttle.spark.spark_version import to_arrow
from spark_throttle.spark.state_reader import read_queued
from tests.effort import thorough_after
from tests.integration.every_type import POLICIES, WAYS, exact, passing, quoted, run_way, texts, write_source
from tests.integration.streams import Lake, finish, policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture(scope="module")
def every_type(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield a directory of Parquet files: in every namespace, three rows of every type."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    path = str(tmp_path_factory.mktemp("types") / "source")
    write_source(spark, path)
    yield path
    spark.conf.unset("spark.sql.timeType.enabled")


def start_every_type(lake: Lake, source: str, throttle: Throttle) -> DataFrame:
    """Run all types through a throttle, Parquet to Parquet, and return the rows that went in."""
    offered = lake.spark.read.parquet(source)
    events = lake.spark.readStream.schema(offered.schema).parquet(source)
    writer = throttle.write_stream(events).format("parquet").option("checkpointLocation", lake.checkpoint)
    writer = writer.rejected("parquet", path=lake.path("rejected")).trigger(availableNow=True)
    query = finish(writer.start(lake.path("admitted")))
    assert len(query.recentProgress) > 1, "nothing waited"
    return offered


def test_all_types_pass_the_writer_and_wait_in_the_state_unharmed(lake: Lake, every_type: str) -> None:
    offered = start_every_type(lake, every_type, lake.throttle(POLICIES, size=None))
    admitted = lake.spark.read.parquet(lake.path("admitted"))
    rejected = lake.spark.read.parquet(lake.path("rejected"))
    plain = offered.schema
    assert admitted.schema == plain
    assert rejected.select(offered.columns).schema == plain
    before, after = exact(offered), exact(admitted)
    assert after == passing(before)
    assert exact(rejected.select(offered.columns)) == texts(before, "t/never")
    reasons = {row["reason"] for row in rejected.select("throttle.reason").collect()}
    assert reasons == {"quota"}
    queued = read_queued(lake.spark, lake.checkpoint, schema=plain)
    assert queued.schema.fields[: len(offered.columns)] == plain.fields
    assert exact(queued.select(offered.columns)) == texts(before, "t/held")
    assert {row["namespace"] for row in queued.select("namespace").collect()} == {"t/held"}


@pytest.mark.thorough
def test_all_types_pass_in_another_time_zone_and_in_large_arrays(lake: Lake, every_type: str) -> None:
    settings = {
        "spark.sql.session.timeZone": "America/New_York",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
    }
    before = {key: str(lake.spark.conf.get(key)) for key in settings}
    try:
        for key, value in settings.items():
            lake.spark.conf.set(key, value)
        offered = start_every_type(lake, every_type, lake.throttle(POLICIES, size=None))
        admitted = lake.spark.read.parquet(lake.path("admitted"))
        assert exact(admitted) == passing(exact(offered))
    finally:
        for key, old in before.items():
            lake.spark.conf.set(key, old)


def test_all_types_pass_apply_unharmed(lake: Lake, every_type: str) -> None:
    offered = lake.spark.read.parquet(every_type)
    events = lake.spark.readStream.schema(offered.schema).parquet(every_type)
    decided = lake.throttle(POLICIES, size=None).apply(events, control_path=str(lake.control))
    writer = decided.writeStream.format("parquet").option("checkpointLocation", lake.checkpoint)
    finish(writer.trigger(availableNow=True).start(lake.path("decided")))
    found = lake.spark.read.parquet(lake.path("decided"))
    assert decided.schema.fields[:-1] == events.schema.fields
    before = exact(offered)
    assert exact(found.select(offered.columns)) == sorted([*passing(before), *texts(before, "t/never")], key=repr)
    verdicts = found.groupBy("ns", "throttle.verdict").count().collect()
    assert sorted(map(tuple, verdicts)) == [("t/late", "ADMIT", 3), ("t/never", "REJECT", 3), ("t/now", "ADMIT", 3)]


@pytest.mark.parametrize("way", thorough_after(1, ["references", *(way for way in WAYS if way != "references")]))
def test_all_types_pass_every_way_unharmed(lake: Lake, every_type: str, way: str) -> None:
    expected, found = run_way(lake.spark, way, every_type, lake.path("way"))
    assert found == expected


@pytest.mark.thorough
def test_all_types_are_copied_out_of_a_staged_file_unharmed(lake: Lake, every_type: str) -> None:
    """So few rows wait of so many that they get a file of their own."""
    offered = lake.spark.read.parquet(every_type)
    many = offered
    for _ in range(20):
        many = many.unionAll(offered.where("ns = 't/now'"))
    many.coalesce(1).write.parquet(lake.path("many"))
    events = lake.spark.readStream.schema(offered.schema).parquet(lake.path("many"))
    writer = lake.throttle(POLICIES, size="1").write_stream(events)
    writer = writer.format("parquet").option("checkpointLocation", lake.checkpoint).trigger(availableNow=True)
    finish(writer.start(lake.path("out")))
    assert [path for path in (lake.control / "staged").iterdir() if "-rest-" in path.name]
    late = lake.spark.read.parquet(lake.path("out")).where("ns = 't/late'")
    assert exact(late.select(offered.columns)) == exact(offered.where("ns = 't/late'"))


@pytest.mark.thorough
def test_all_types_wait_for_a_destination_unharmed(lake: Lake, every_type: str) -> None:
    """A function refuses a whole batch, which it gets back from the checkpoint, or from the dead letters."""
    limits = {
        "resource_groups": {
            "api": {**publish(messages_per_second=1000), "destination": {"open_after_seconds": 0.001}},
            "dead": {
                **publish(messages_per_second=1000),
                "destination": {"open_after_seconds": 0.001, "on_unavailable": "dead_letters"},
            },
        },
        "tenants": {"t": {"resource_group": "api"}},
    }
    offered = lake.spark.read.parquet(every_type)
    refusals, taken = [Backpressure()] * 2, []

    def write(rows: DataFrame, batch: int) -> None:
        if refusals and not rows.isEmpty():
            raise refusals.pop()
        taken.extend(exact(rows.select(offered.columns)))

    for _ in range(4):
        events = lake.spark.readStream.schema(offered.schema).parquet(every_type)
        writer = lake.throttle(policies(**limits), size=None).write_stream(events).foreachBatch(write)
        finish(writer.option("checkpointLocation", lake.checkpoint).trigger(availableNow=True).start())
    assert sorted(taken, key=repr) == exact(offered)
    refusals += [Backpressure()] * 100
    limits["tenants"]["t"]["resource_group"] = "dead"
    for _ in range(4):
        events = lake.spark.readStream.schema(offered.schema).parquet(every_type)
        writer = lake.throttle(policies(**limits), size=None).write_stream(events).foreachBatch(write)
        writer = writer.rejected("parquet", path=lake.path("dead")).option(
            "checkpointLocation", lake.path("checkpoint2")
        )
        finish(writer.trigger(availableNow=True).start())
    dead = lake.spark.read.parquet(lake.path("dead"))
    assert exact(dead.select(offered.columns)) == exact(offered)


def test_rows_travel_without_a_conversion(spark: SparkSession, every_type: str) -> None:
    """Frames hold what Spark hands over in the schema that it takes back: nothing is cast on the way."""
    offered = spark.read.parquet(every_type).drop("a_month_interval", "a_year_interval")

    def schemas(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"schema": [batch.schema.serialize().to_pybytes()]})

    (row,) = offered.mapInArrow(schemas, "schema binary").collect()
    handed_over = pa.ipc.read_schema(pa.py_buffer(bytes(row["schema"])))
    taken_back = to_arrow(offered.schema)
    assert [f for f, g in zip(handed_over, taken_back, strict=True) if not f.equals(g)] == []


def test_rows_that_differ_have_different_ties(spark: SparkSession, every_type: str) -> None:
    """The order of rows is a function of the rows only if no two that differ are taken for the same."""
    zeros = "select double('0.0') a, double('-0.0') b, 1 c union all select double('-0.0'), double('0.0'), 1"
    gaps = "select double('0.0') a, null b, 1 c union all select null, double('0.0'), 1"
    for rows in (spark.read.parquet(every_type), spark.sql(zeros), spark.sql(gaps)):
        ties = with_helpers(rows, RowExpressions("'t/n'")).select(TIE).collect()
        assert len(set(ties)) == rows.count() > 1


DEEP = {
    "nulls in arrays": ("array()", "array(null)", "array(null, null)", "array(1, null)", "array(null, 1)", "array(1)"),
    "bounds of arrays": ("array(array(1), array(2, 3))", "array(array(1, 2), array(3))", "array(array(1, 2, 3))"),
    "nulls in structs": (
        "named_struct('a', cast(null as int), 'b', 1)", "named_struct('a', 1, 'b', cast(null as int))",
        "named_struct('a', cast(null as int), 'b', cast(null as int))",
    ),
    "zeros in structs": ("named_struct('x', double('-0.0'))", "named_struct('x', 0D)", "named_struct('x', null)"),
    "zeros in arrays": ("array(float('-0.0'))", "array(float('0.0'))", "array(float('0.0'), null)"),
    "zeros in maps": ("map(1, array(double('-0.0')))", "map(1, array(0D))", "map(1, array())", "map()", "map(1, null)"),
    "times in maps": ("map(1, timestamp_micros(1))", "map(1, timestamp_micros(2))", "map(1, timestamp_micros(1000))"),
    "texts in maps": (
        "map(1, cast(X'E9' as string))", "map(1, cast(X'FF' as string))", "map(1, '\ufffd')", "map(1, 'a\\u0000')",
    ),
    "entries of maps": ("map('a', 1, 'b', 2)", "map('b', 2, 'a', 1)", "map('a', 2, 'b', 1)"),
    "variants": (
        "parse_json('1.5')", "parse_json('1.50')", "cast(1.5D as variant)", "cast(1 as variant)",
        "parse_json('\"1.5\"')", "parse_json('null')", "parse_json('[1.5]')", "parse_json('[1.50]')",
    ),
    "variants inside": ("array(parse_json('[1.5]'))", "array(parse_json('[1.50]'))", "array(null)", "array()"),
    "collated": ("'ab' collate UNICODE_CI", "'AB' collate UNICODE_CI", "'aB' collate UNICODE_CI"),
    "deep": (
        "array(map('k', named_struct('v', array(null, 1))))", "array(map('k', named_struct('v', array(1, null))))",
        "array(map('k', named_struct('v', array(1))))", "array(map('k', null))", "array(null)",
    ),
    "shapes": (
        "st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')",
        "st_geomfromwkb(X'0101000000000000000000F03F0000000000000041')",
    ),
}  # fmt: skip
"""Values that differ only below the surface, and a null of each."""


def test_values_that_differ_at_any_depth_are_told_apart(spark: SparkSession) -> None:
    """The operator orders rows by the digest of what travels, so that must differ."""
    cases = [
        f"case row {' '.join(f'when {n} then {value}' for n, value in enumerate(values))} end c{place}"
        for place, values in enumerate(DEEP.values())
    ]
    most = max(map(len, DEEP.values()))
    rows = spark.sql(f"select {', '.join(cases)} from range(0, {most + 1}, 1, 1) as (row)")  # noqa: S608 - our own

    def digests(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            columns = [pa.array(row_digests(pa.table({"c": column})).view("int64")) for column in batch.columns]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    found = rows.mapInArrow(digests, ", ".join(f"c{place} long" for place in range(len(DEEP)))).toArrow()
    for column, (name, values) in zip(found.columns, DEEP.items(), strict=True):
        assert len(set(column.to_pylist())) == len(values) + 1, name


@pytest.mark.thorough
def test_char_varchar_and_comments_are_kept_in_a_delta_table(lake: Lake) -> None:
    columns = "id int, ns string, c char(5), v varchar(6) comment 'six', d decimal(38, 18), va variant, n int not null"
    lake.spark.sql(f"create table typed ({columns}) using delta")
    lake.spark.sql("insert into typed values (1, 't/now', 'ab', 'x', 1.5, parse_json('{}'), 3)")
    lake.spark.sql("insert into typed values (2, 't/now', null, '', null, null, 4)")
    try:
        events = lake.spark.readStream.table("typed")
        for name, writer in (
            ("plain", events.writeStream),
            ("throttled", lake.throttle({}, size=None).write_stream(events)),
        ):
            started = writer.format("delta").option("checkpointLocation", lake.path(f"{name}-checkpoint"))
            finish(started.trigger(availableNow=True).start(lake.path(name)))
        plain, throttled = (lake.spark.read.format("delta").load(lake.path(name)) for name in ("plain", "throttled"))
        assert throttled.schema == plain.schema
        assert [field.metadata for field in throttled.schema] == [field.metadata for field in plain.schema]
        assert exact(throttled) == exact(plain)
    finally:
        lake.spark.sql("drop table typed")


def test_odd_column_names_are_kept(lake: Lake) -> None:
    kinds = {"ns": "string", "a.b": "int", "ä `x`": "int", "Namespace": "string", "n space": "int", "select": "int"}
    schema = ", ".join(f"{quoted(name)} {kind}" for name, kind in kinds.items())
    source = lake.spark.createDataFrame([("t/n", 1, 2, "N", 4, 5)], schema)
    source.write.json(lake.path("odd"))
    events = lake.spark.readStream.schema(source.schema).json(lake.path("odd"))
    writer = lake.throttle({}, order_by=["`a.b`"], size=None).write_stream(events)
    writer = writer.option("checkpointLocation", lake.checkpoint)
    finish(writer.format("json").trigger(availableNow=True).start(lake.path("out")))
    assert exact(lake.spark.read.schema(source.schema).json(lake.path("out"))) == exact(source)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("make_interval(1, 2) x", "column 'x' is interval, an interval that Arrow does not carry"),
        ("array(interval '1' year) x", "column 'x' is array<interval year>"),
        ("named_struct('a', map(1, interval '1' month)) x", "cast its months to int"),
        ("array(st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')) x", "st_asbinary"),
        ("1 `Throttle`", r"\['Throttle'\] have names that the throttle uses"),
        ("1 __throttle_x", "names that the throttle uses"),
        ("2 NS", r"several columns named \['ns'\]"),
    ],
)  # fmt: skip
def test_column_that_cannot_travel_is_refused(lake: Lake, expression: str, message: str) -> None:
    events = lake.spark.readStream.format("rate").load().selectExpr("'t/n' ns", "1 id", expression)
    with pytest.raises(ConfigurationError, match=message):
        lake.throttle({}, size=None).apply(events, control_path=lake.path("control"))


def test_text_as_a_size_is_refused_at_the_start(lake: Lake) -> None:
    events = lake.spark.readStream.format("rate").load().selectExpr("'t/n' ns", "1 id", "'x' value")
    throttle = lake.throttle({}, size="value")
    said = r"size is string, .* give octet_length\(…\) of it"
    with pytest.raises(ConfigurationError, match=said):
        throttle.apply(events, control_path=lake.path("control"))
    writer = throttle.write_stream(events).format("parquet").option("checkpointLocation", lake.checkpoint)
    with pytest.raises(ConfigurationError, match=said):
        writer.start(lake.path("admitted"))


def test_order_by_something_without_order_is_refused(lake: Lake) -> None:
    events = lake.spark.readStream.format("rate").load().selectExpr("'t/n' ns", "map(1, 2) id")
    with pytest.raises(ConfigurationError, match=r"order_by\[0\] is map<int,int>, which has no order"):
        lake.throttle({}, size=None).apply(events, control_path=lake.path("control"))
