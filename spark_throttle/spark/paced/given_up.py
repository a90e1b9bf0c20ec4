"""Rows that are given up because their destination is unavailable, if the policy says so: the way to the dead letters.

They were admitted, and count as such. In the dead letters they look like rows that their resource group rejected, for
the reason `DESTINATION_UNAVAILABLE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import groupby
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_throttle.core.quota import Level, Verdict
from spark_throttle.spark.columns.payload_columns import from_carried
from spark_throttle.spark.paced.sending import Parcel
from spark_throttle.spark.shard.shard_batch import THROTTLE, VERDICT_TYPE

DESTINATION_UNAVAILABLE: Final = "destination_unavailable"


def given_up_tables(parcels: Sequence[Parcel], destination_of: Mapping[str, str]) -> list[bytes]:
    """Return the rows of calls with the ``throttle`` column, as tables of rows with the same columns."""
    found = list[bytes]()
    for _, alike in groupby(parcels, key=lambda parcel: parcel.rows.schema):
        together = list(alike)
        rows = pa.concat_tables([parcel.rows for parcel in together])
        said = [
            {
                "verdict": Verdict.REJECT.name,
                "reason": DESTINATION_UNAVAILABLE,
                "level": Level.RESOURCE_GROUP.name.lower(),
                "scope": destination_of[parcel.key.namespace],
            }
            for parcel in together
            for _ in range(parcel.rows.num_rows)
        ]
        table = rows.append_column(THROTTLE, pa.array(said, VERDICT_TYPE))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        found.append(bytes(sink.getvalue()))
    return found


def given_up_rows(tables: Sequence[bytes], schema: StructType) -> DataFrame | None:
    """Return the rows in tables, in the user's types; `None` if there are none."""
    if not tables:
        return None
    spark = SparkSession.active()
    frames = [spark.createDataFrame(pa.ipc.open_stream(table).read_all()) for table in tables]
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return from_carried(together, schema)
