"""The definition of a query, read from expressions as Spark prints them, with Spark Connect or without it.

Spark prints an expression in the name of the column that it selects. On Spark Connect the server chooses that name, so
the text is the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.definition import Definition, digest
from spark_throttle.spark.columns.payload_columns import ColumnLike, check_size, deciding_columns, row_columns
from spark_throttle.spark.rows.row_digests import VERSION

_SETTINGS: Final = ("spark.sql.session.timeZone", "spark.sql.ansi.enabled")
"""Settings of the session on which casts, times in JSON and arithmetic depend."""

_NAMED: Final = re.compile(r" AS \w+$")

_JSON_LENGTH: Final = "the length of the row as JSON"


def stream_definition(
    events: DataFrame,
    namespace: ColumnLike,
    size: ColumnLike | None,
    order_by: Sequence[ColumnLike] | None,
    volatile: Collection[str],
    targets: Mapping[str, str],
    partition_columns: Sequence[str] = (),
) -> Definition:
    """Return the definition of a query over a stream.

    The sink's partition columns are part of it: a row for which they give no folder is rejected.
    """
    schema, session = events.schema, events.sparkSession
    given = deciding_columns(schema, namespace, size, order_by)
    length, tie = row_columns(schema, size, volatile)
    check_size(events.select(length).schema[0])
    *texts, length_text, tie_text = _printed(events, [*given.values(), length, tie])
    expressions = dict(zip(given, texts, strict=True))
    columns = tuple((field.name, field.dataType.simpleString()) for field in schema)
    if size is None:
        expressions["size"] = _JSON_LENGTH
        tie_text = f"{length_text}, {tie_text}"
    if partition_columns:
        expressions["partitionBy"] = ", ".join(partition_columns)
    settings = {name: str(session.conf.get(name, None)) for name in _SETTINGS}
    ties = digest(f"{tie_text}, digests {VERSION}")
    return Definition(expressions, columns, ties, settings, dict(targets))


def _printed(events: DataFrame, expressions: Sequence[Column]) -> list[str]:
    """Return expressions as Spark prints them, without their aliases."""
    names = events.select(*map(F.isnull, expressions)).columns
    return [_NAMED.sub("", name.removeprefix("(").removesuffix(" IS NULL)")) for name in names]
