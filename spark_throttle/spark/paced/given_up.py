"""Rows that are given up because their destination is unavailable, if the policy says so: the way to the dead letters.

They were admitted, and count as such. In the dead letters they look like rows that their resource group rejected, for
the reason `DESTINATION_UNAVAILABLE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_throttle.core.quota import Level, Verdict
from spark_throttle.spark.columns.payload_columns import from_carried
from spark_throttle.spark.paced.sending import Parcel
from spark_throttle.spark.paced.unsent_calls import table_in, tables_with
from spark_throttle.spark.shard.shard_batch import THROTTLE, VERDICT_TYPE

DESTINATION_UNAVAILABLE: Final = "destination_unavailable"


def given_up_tables(parcels: Sequence[Parcel], destination_of: Mapping[str, str]) -> list[bytes]:
    """Return the rows of calls with the ``throttle`` column, as tables of rows with the same columns."""
    return tables_with(parcels, THROTTLE, VERDICT_TYPE, lambda parcel: {
        "verdict": Verdict.REJECT.name,
        "reason": DESTINATION_UNAVAILABLE,
        "level": Level.RESOURCE_GROUP.name.lower(),
        "scope": destination_of[parcel.key.namespace],
    })  # fmt: skip


def given_up_rows(tables: Sequence[bytes], schema: StructType) -> DataFrame | None:
    """Return the rows in tables, in the user's types; `None` if there are none."""
    if not tables:
        return None
    spark = SparkSession.active()
    frames = [spark.createDataFrame(table_in(table)) for table in tables]
    together = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return from_carried(together, schema)
