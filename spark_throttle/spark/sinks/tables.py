"""A query's Delta tables take files that Spark did not write, if each is known to be safe (`file_table`).

The sink's table takes staged files as they lie, and the usage table is written without a job of Spark's. Spark first
creates a missing table, empty, so that it is as Spark would have made it; a Spark without Delta creates none, and has a
usage table all the same. All other rows go through Spark's writer, and the log says why. Both mark a batch in the same
way, so a table may change sides at any restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError, ForeignFilesError, NotInstalledError
from spark_throttle.spark.delta.table_log import open_table
from spark_throttle.spark.rows.frames import THROTTLE
from spark_throttle.spark.sinks.file_table import FileTable, check_table, check_types
from spark_throttle.spark.sinks.targets import DELTA, Target, Targets
from spark_throttle.spark.spark_errors import missing_in
from spark_throttle.spark.spark_version import from_arrow
from spark_throttle.spark.start.spark_paths import local_path
from spark_throttle.status.usage_table import FIRST_COLUMNS, SHARE_SCHEMA, USAGE_SCHEMA

if TYPE_CHECKING:
    from deltalake import DeltaTable

_CODEC_CONF: Final = "spark.sql.parquet.compression.codec"
_CODECS: Final = {"none": "none", "uncompressed": "none", "snappy": "snappy", "gzip": "gzip", "zstd": "zstd"}
_MERGE_CONF: Final = "spark.databricks.delta.schema.autoMerge.enabled"
_STATISTICS_CONF: Final = "spark.databricks.delta.stats.collect"


def table_of_files(
    spark: SparkSession, target: Target | Callable[[DataFrame, int], None], schema: StructType
) -> tuple[FileTable | None, str]:
    """Return the sink's table if it takes files that were staged, and why; it is made if it is missing.

    Raises
    ------
    ConfigurationError
        If no writer could append the rows to the table.
    """
    try:
        found = _file_table(spark, "the sink", target, schema)
    except ForeignFilesError as error:
        return None, f"{error.what}: {error.why}"
    if found.partition_columns:
        return None, f"the sink is partitioned by {list(found.partition_columns)}"
    return found, "it takes files as they lie"


def refuse_lacking_letters(spark: SparkSession, target: Target, schema: StructType) -> None:
    """Refuse a Delta table of dead letters without a column of the rows: the first rejected row would end the query.

    A table that is missing, that this process does not see, or that Spark is to widen, lacks no column.

    Raises
    ------
    ConfigurationError
        If the table lacks a column.
    Py4JJavaError
        If the table is missing, and Spark has no Delta to make it.
    """
    is_widened = bool(target.options) or spark.conf.get(_MERGE_CONF, "false") == "true"
    if target.path is None or not target.is_delta:
        return
    try:
        table = open_table(local_path(target.path))
    except (ImportError, ForeignFilesError):
        table = None
    if table is None:
        _ask_for_delta(spark, target.path)
    if table is None or is_widened:
        return
    has = {field.name.lower() for field in table.schema().fields}
    lacks = [name for name in (*schema.names, THROTTLE) if has and name.lower() not in has]
    if lacks:
        raise ConfigurationError(
            f"the table of dead letters {target.path} has no column {lacks[0]!r}, which dead letters have: add it to "
            f"the table, or give rejected('delta', …, mergeSchema=True)"
        )


def _ask_for_delta(spark: SparkSession, path: str) -> None:
    """Look for a Delta table, so that a Spark without Delta says so."""
    try:
        _ = spark.read.format(DELTA).load(path).schema
    except Exception as error:  # Spark 4.3 has no class of its own for a source that it does not find
        if missing_in(str(error)) is not None:
            raise


def sink_partition_columns(
    spark: SparkSession, target: Target | Callable[[DataFrame, int], None], schema: StructType
) -> tuple[str, ...]:
    """Return the sink's partition columns: those that the caller gave, or those of the existing Delta table."""
    if not isinstance(target, Target):
        return ()
    found: Sequence[str] = target.partition_columns
    if not found and target.format in (DELTA, None):
        name = target.table if target.path is None else "delta.`{}`".format(target.path.replace("`", "``"))
        try:
            found = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["partitionColumns"]
        except AnalysisException:  # the table does not exist yet, or is not a Delta table
            return ()
    return _of_schema(found or (), schema)


def _of_schema(columns: Sequence[str], schema: StructType) -> tuple[str, ...]:
    wanted = {column.lower() for column in columns}
    return tuple(name for name in schema.names if name.lower() in wanted)


def usage_table(spark: SparkSession, targets: Targets) -> Target | FileTable | None:
    """Return the usage table; as a `FileTable` if it is written without Spark, which saves a job in every batch."""
    try:
        return _usage_files(spark, targets)
    except ForeignFilesError:
        return targets.usage


def _usage_files(spark: SparkSession, targets: Targets) -> FileTable | None:
    what = "the usage table"
    if targets.usage is None:
        return None
    columns = [*USAGE_SCHEMA, *(SHARE_SCHEMA if targets.has_shares else ())]
    schema = from_arrow(pa.schema(columns))
    try:
        return _file_table(spark, what, targets.usage, schema)
    except ConfigurationError as error:
        if len(columns) == FIRST_COLUMNS:
            raise
        # The table may be older than some of the columns; Spark's writer widens it.
        raise ForeignFilesError(what, str(error)) from error
    except Exception as error:
        if missing_in(str(error)) is None or targets.usage.path is None:
            raise
        # No Delta for this Spark: it writes no row of this table anyway.
        try:
            from deltalake import DeltaTable, Schema
        except ImportError:
            remedy = "install the package 'deltalake', with which the usage table needs no jar"
            raise NotInstalledError("the jar of Delta", "Spark's session", remedy) from None

        made = Schema.from_json(schema.json())
        DeltaTable.create(local_path(targets.usage.path), made, mode="ignore")
        return _file_table(spark, what, targets.usage, schema)


def _file_table(
    spark: SparkSession, what: str, target: Target | Callable[[DataFrame, int], None], schema: StructType
) -> FileTable:
    if not isinstance(target, Target):
        raise ForeignFilesError(what, "it is a foreachBatch function")
    _check(what, target, schema)
    compression = _compression(spark, what)
    if not target.is_delta:
        raise ForeignFilesError(what, f"its format is {target.format!r}, not 'delta'")
    location, table = _table(spark, what, target, schema)
    name = f"{what} {location}"
    check_table(table, name, schema, target.partition_columns)
    if spark.conf.get(_MERGE_CONF, "false") == "true":
        raise ForeignFilesError(name, f"the session merges schemas ({_MERGE_CONF})")
    metadata = table.metadata()
    properties = metadata.configuration
    named = properties.get("delta.dataSkippingStatsColumns")
    return FileTable(
        location,
        schema_json=schema.json(),
        partition_columns=tuple(metadata.partition_columns),
        compression=compression,
        first_indexed=int(properties.get("delta.dataSkippingNumIndexedCols", "32")),
        named_indexed=None if named is None else tuple(part.strip().replace("`", "") for part in named.split(",")),
    )


def _check(what: str, target: Target, schema: StructType) -> None:
    if target.options:
        raise ForeignFilesError(what, f"it has the option {min(target.options)!r}, which only Spark's writer takes")
    check_types(what, schema)


def _compression(spark: SparkSession, what: str) -> str:
    codec = str(spark.conf.get(_CODEC_CONF, "snappy")).lower()
    if codec not in _CODECS:
        raise ForeignFilesError(what, f"the session's compression codec is {codec!r} ({_CODEC_CONF})")
    return _CODECS[codec]


def _table(spark: SparkSession, what: str, target: Target, schema: StructType) -> tuple[str, DeltaTable]:
    """Return a table's location and the table in its current state; create the table if it is missing."""
    try:
        import deltalake  # noqa: F401 - an extra
    except ImportError as error:
        _make(spark, target, schema)  # a Spark without Delta refuses it now, and not in the first batch
        raise ForeignFilesError(what, "the package 'deltalake' is not installed") from error
    path = target.path
    location = _location_of_name(spark, what, target, schema) if path is None else local_path(path)
    table = open_table(location)
    if table is None:
        _make(spark, target, schema)
        table = open_table(location)
    if table is None:
        raise ForeignFilesError(f"{what} {location}", "Spark keeps it on a file system that this process does not see")
    return location, table


def _location_of_name(spark: SparkSession, what: str, target: Target, schema: StructType) -> str:
    if not spark.catalog.tableExists(str(target.table)):
        _make(spark, target, schema)
    details = spark.sql(f"DESCRIBE DETAIL {target.table}").collect()[0]
    if details["format"] != DELTA:
        raise ForeignFilesError(f"{what} {target.table}", f"its format is {details['format']!r}, not 'delta'")
    return str(details["location"])


def _make(spark: SparkSession, target: Target, schema: StructType) -> None:
    writer = spark.createDataFrame([], schema).write.format(DELTA).mode("ignore")
    if target.partition_columns:
        writer = writer.partitionBy(*target.partition_columns)
    # Statistics let Delta see that the file without rows is empty, and leave it out.
    collects = spark.conf.get(_STATISTICS_CONF, None)
    spark.conf.set(_STATISTICS_CONF, "true")
    try:
        if target.path is not None:
            writer.save(target.path)
        else:
            writer.saveAsTable(str(target.table))
    finally:
        if collects is None:
            spark.conf.unset(_STATISTICS_CONF)
        else:
            spark.conf.set(_STATISTICS_CONF, collects)
