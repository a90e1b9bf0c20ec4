"""The files of waiting rows, as Spark reads them for an audit or a drain: with each row's place.

The decider's state names the files (`move.held_files`) and their numbers. A file that lies as it was staged has a row's
position as Spark tells it; a rest or a pack has the places as columns. All have rows that do not wait any more.
"""

from __future__ import annotations

from functools import partial, reduce
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from spark_throttle.spark.columns.payload_columns import from_staged, staged_schema
from spark_throttle.spark.delta.table_files import FileForm
from spark_throttle.spark.move.cutting import FILE, ROW
from spark_throttle.spark.move.held_files import HeldFiles
from spark_throttle.spark.move.stager import STAGED, StagingPlace, nullable
from spark_throttle.spark.move.waiting_files import StoredInlineRows, inline_files_of

_NUMBER, _NAME = "__throttle_number", "__throttle_name"
_PLACE: Final = StructType().add(FILE, "long").add(ROW, "long")
_joined = partial(DataFrame.unionByName, allowMissingColumns=True)


def staged_copies(
    spark: SparkSession, control_path: str, held: HeldFiles, inline: DataFrame, schema: StructType | None
) -> DataFrame:
    """Return the rows of the files of which rows wait, with the number of their file and their position in it.

    Parameters
    ----------
    inline
        What the state has in its column of that name.
    schema
        The user's columns; by default those of the files.
    """
    reader, root = spark.read.option("mergeSchema", "true"), f"{control_path}/{STAGED}"
    lies = [not is_inline for is_inline in held.inline.tolist()]
    as_staged = [
        f"{root}/{name}" for name, copy, is_mine in zip(held.name, held.copy, lies, strict=True) if is_mine and not copy
    ]
    copies = sorted({f"{root}/{copy}" for copy, is_mine in zip(held.copy, lies, strict=True) if is_mine and copy})
    columns = None if schema is None else staged_schema(schema)
    numbers = pa.table({_NAME: list(held.name), _NUMBER: held.number.astype(np.int64)})
    found = []
    if held.in_state():
        found.append(_of_state(inline, columns).withColumnRenamed(FILE, _NAME))
    if as_staged:
        rows = (reader if columns is None else reader.schema(columns)).parquet(*as_staged)
        place = f"_metadata.file_name AS {_NAME}", f"_metadata.row_index AS {ROW}"
        found.append(rows.selectExpr("*", *place))
    if copies:
        with_names = None if columns is None else StructType([*columns, *_place_of_copy()])
        rows = (reader if with_names is None else reader.schema(with_names)).parquet(*copies)
        found.append(rows.withColumnRenamed(FILE, _NAME))
    if not found:
        return spark.createDataFrame([], StructType([*(columns or ()), *_PLACE]))
    rows = reduce(_joined, found).join(F.broadcast(spark.createDataFrame(numbers)), _NAME).drop(_NAME)
    rows = rows.withColumnRenamed(_NUMBER, FILE)
    return rows if schema is None else from_staged(rows, schema)


def _of_state(inline: DataFrame, columns: StructType | None) -> DataFrame:
    """Return the rows of the files that the state holds, with their places."""
    if columns is None:
        (stored,) = inline.collect()
        columns = from_arrow_schema(inline_files_of(stored["inline"]).schema())
    form = FileForm(nullable(to_arrow_schema(columns, timezone="UTC")))
    read = StoredInlineRows(StagingPlace("", form, in_table=False))
    return inline.mapInArrow(read, StructType([*columns, *_place_of_copy()]))


def _place_of_copy() -> StructType:
    return StructType().add(FILE, "string").add(ROW, "long")
