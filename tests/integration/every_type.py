"""Rows of every column type that Spark can stream, and the ways that rows take, for any session of Spark.

`run_way` sends all rows through one of `WAYS`. Run as a program on a cluster,
``python -m tests.integration.every_type PLACE``, with the cluster's settings in `PYSPARK_SUBMIT_ARGS`, it goes all ways
and prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import BinaryType, DataType, GeographyType, GeometryType, VariantType

from spark_throttle.spark import Throttle
from spark_throttle.spark.reference_pipeline import REFERENCES, STAGED, way_of
from spark_throttle.spark.spark_version import minor_of
from tests.integration.streams import policies, publish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

VALUES = {
    "a_byte": ("127Y", "-128Y"),
    "a_short": ("32767S", "-32768S"),
    "an_int": ("2147483647", "int(-2147483648)"),
    "a_long": ("9007199254740993L", "bigint('-9223372036854775808')"),
    "a_float": ("float('NaN')", "float('-0.0')"),
    "a_double": ("double('-Infinity')", "double('-0.0')"),
    "a_tiny_double": ("double('4.9e-324')", "double('NaN')"),
    "a_decimal": (
        "cast('12345678901234567890.123456789012345678' as decimal(38, 18))",
        "cast('-99999999999999999999.999999999999999999' as decimal(38, 18))",
    ),
    "a_string": ("''", "'äö\\u0000\U0001f600\\n'"),
    "a_collated": ("'Ab' collate UNICODE_CI", "'aB' collate UNICODE_CI"),
    "a_binary": ("X''", "X'00FF'"),
    "a_boolean": ("true", "false"),
    "a_date": ("date'0001-01-01'", "date'9999-12-31'"),
    "a_timestamp": ("timestamp'0001-01-01 00:00:00'", "timestamp'9999-12-31 23:59:59.999999'"),
    "an_ntz": ("timestamp_ntz'0001-01-01 00:00:00'", "timestamp_ntz'9999-12-31 23:59:59.999999'"),
    "a_time": ("time'23:59:59.999999'", "time'00:00:00'"),
    "a_day_interval": (
        "interval '106751991 04:00:54.775807' day to second",
        "interval '-106751991 04:00:54.775808' day to second",
    ),
    "an_hour_interval": ("interval '05' hour", "interval '-7' hour"),
    "a_month_interval": ("interval '178956970-7' year to month", "interval '-178956970-8' year to month"),
    "a_year_interval": ("interval '5' year", "interval '-5' year"),
    "an_array": ("array(9007199254740993L, null)", "array()"),
    "an_array_of_intervals": ("array(interval '5' day)", "array(null)"),
    "a_map": ("map('', 7, 'k', null)", "map()"),
    "a_deep_map": ("map(named_struct('k', X'01'), array(map(date'9999-12-31', float('NaN'))))", "map()"),
    "a_struct": (
        "named_struct('n', named_struct('l', 7L, 'a', array(named_struct('t', time'01:02:03'))), 'b', X'')",
        "named_struct('n', null, 'b', null)",
    ),
    "a_variant": ("""parse_json('{"a": [1, null, 9007199254740993], "b": 1.50}')""", "parse_json('null')"),
    "variants": ("array(parse_json('\"x\"'), null)", "array()"),
    "a_geometry": ("st_geomfromwkb(X'0101000000000000000000F03F0000000000000040')", "null"),
    "a_geography": ("st_geogfromwkb(X'0101000000000000000000F03F0000000000000040')", "null"),
    "a_void": ("null", "null"),
}  # fmt: skip
"""Two values of every type; a third row has only nulls."""

NAMESPACES = ("t/now", "t/late", "t/never", "t/held")
POLICIES = policies(
    namespaces={
        "t/late": {"write_throttling": "1*delay*100"},
        "t/never": publish(messages_per_second=0, on_excess="reject"),
        "t/held": publish(messages_per_second=0),
    }
)


_NOT_OF_DELTA: Final = (
    "a_collated", "a_time", "an_hour_interval", "a_day_interval", "a_month_interval", "a_year_interval",
    "an_array_of_intervals", "a_struct", "a_geometry", "a_geography", "a_void",
)  # fmt: skip
"""What a Delta table does not keep, here for itself or for something inside."""

_NOT_OF_4_1: Final = ("a_geometry", "a_geography", "a_time", "a_struct")
"""What Spark 4.1 writes neither to Parquet nor as JSON, here for itself or for something inside."""

WAYS: Final[Mapping[str, Sequence[str]]] = {
    "files": (),
    "function": (),
    "references": (),
    "to Delta": (*_NOT_OF_DELTA, "a_variant", "variants"),
    "to Delta, by Spark": _NOT_OF_DELTA,
}
"""The ways that rows take to a sink, and the columns that it refuses by name, or without which it takes files."""


def write_source(spark: SparkSession, path: str) -> None:
    """Write Parquet files: in every namespace, three rows of every type."""
    without = () if minor_of(spark.version) >= (4, 2) else _NOT_OF_4_1
    kept = {name: pair for name, pair in VALUES.items() if name not in without}
    values = ", ".join(f"case row when 0 then {a} when 1 then {b} end {name}" for name, (a, b) in kept.items())
    names = ", ".join(f"'{name}'" for name in NAMESPACES)
    rows = f"(select explode(array(0, 1, 2)) row), (select explode(array({names})) ns)"
    query = f"select int(row) id, ns, {values} from {rows}"  # noqa: S608 - our own values
    spark.sql(query).coalesce(1).write.parquet(path)


def exact(rows: DataFrame) -> list[tuple[Any, ...]]:
    """Return the rows in a form in which equal means the same: text, made by Spark itself."""
    columns = [_as_text(F.col(quoted(field.name)), field.dataType) for field in rows.schema]
    return sorted(map(tuple, rows.select(*columns).collect()), key=repr)


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _as_text(column: Any, data_type: DataType) -> Any:
    if isinstance(data_type, BinaryType):
        return F.hex(column)
    if isinstance(data_type, GeometryType | GeographyType):
        return F.hex(F.st_asbinary(column))
    is_json = isinstance(data_type, VariantType) or "variant" in data_type.simpleString()
    return F.to_json(column) if is_json else column.cast("string")


def texts(rows: list[tuple[Any, ...]], namespace: str) -> list[tuple[Any, ...]]:
    """Return the rows of one namespace."""
    return [row for row in rows if row[1] == namespace]


def passing(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return the rows of the namespaces that are admitted."""
    return [row for row in rows if row[1] in {"t/now", "t/late"}]


def run_way(spark: SparkSession, way: str, source: str, place: str) -> tuple[list[Any], list[Any]]:
    """Send all rows a way, and return those that are to be admitted and those that were, as `exact` tells them."""
    offered = spark.read.parquet(source)
    throttle = Throttle(POLICIES, namespace="ns", size="id", order_by=["id"])
    reader = throttle.read_stream(spark) if way == "references" else spark.readStream
    stream = reader.schema(offered.schema).parquet(source)
    if WAYS[way]:
        offered, stream = offered.drop(*WAYS[way]), stream.drop(*WAYS[way])
    out, kind = f"{place}/admitted", "delta" if WAYS[way] else "parquet"
    writer = throttle.write_stream(stream).option("checkpointLocation", f"{place}/checkpoint")
    if way == "function":

        def write(rows: DataFrame, batch: int) -> None:
            rows.write.mode("overwrite").parquet(f"{out}/batch={batch}")

        started = writer.foreachBatch(write).trigger(availableNow=True).start()
    else:
        started = writer.format(kind).trigger(availableNow=True).start(out)
    started.awaitTermination()
    assert way_of(f"{place}/checkpoint/throttle") in (None, REFERENCES if way == "references" else STAGED)
    admitted = spark.read.format(kind).load(out).select(offered.columns)
    return passing(exact(offered)), exact(admitted)


def run_all(spark: SparkSession, place: str) -> dict[str, str]:
    """Go all ways below a place, and return what became of the rows of each."""
    spark.conf.set("spark.sql.timeType.enabled", "true")
    source = f"{place}/source"
    write_source(spark, source)
    told = {}
    for way in WAYS:
        expected, found = run_way(spark, way, source, f"{place}/{way.replace(' ', '-')}")
        told[way] = f"{len(found)} rows, {'all as they were' if found == expected else 'and others were to come'}"
    return told


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run_all(SparkSession.builder.getOrCreate(), sys.argv[1])) + "\n")
