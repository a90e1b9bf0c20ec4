"""The crash program's sink that merges: a Delta table with a row a namespace, to which each batch adds what it brings.

A batch that is merged twice is seen, for a row keeps each message that it was merged from, in their order. The
protocol of the sink is that of docs/sending.md.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MERGE: Final = "merge"
MESSAGES: Final = "messages"
_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS delta.`{table}` (
        namespace string, {messages} array<struct<batch: long, id: long, size: long, note: string, part: string>>
    ) USING delta TBLPROPERTIES (delta.enableDeletionVectors = false)
"""
_MERGE: Final = """
    MERGE INTO delta.`{table}` AS total USING merged_batch AS more ON total.namespace = more.namespace
    WHEN MATCHED THEN UPDATE SET {messages} = concat(total.{messages}, more.{messages})
    WHEN NOT MATCHED THEN INSERT *
"""


class Totals:
    """A Delta table to which batches are merged, each with its mark."""

    def __init__(self, spark: SparkSession, table: str) -> None:
        self.spark = spark
        self.table = table
        spark.sql(_TABLE.format(table=table, messages=MESSAGES))

    def newest_mark(self, query: str) -> str | None:
        """Return the mark of the newest merge."""
        history = self.spark.sql(f"DESCRIBE HISTORY delta.`{self.table}` LIMIT 100")
        marked = history.where(F.get_json_object("userMetadata", "$.throttle.query") == query)
        found = marked.orderBy(F.desc("version")).select("userMetadata").first()
        return None if found is None else str(found[0])

    def commit(self, rows: DataFrame, query: str, mark: str) -> None:
        """Merge a batch."""
        session, batch = rows.sparkSession, json.loads(mark)["throttle"]["batch"]
        message = F.struct(F.lit(batch).cast("long").alias("batch"), "id", "size", "note", "part")
        merged = rows.groupBy("namespace").agg(F.array_sort(F.collect_list(message)).alias(MESSAGES))
        merged.createOrReplaceTempView("merged_batch")
        settings = {
            "spark.databricks.delta.commitInfo.userMetadata": mark,
            "spark.databricks.delta.write.txnAppId": query,
            "spark.databricks.delta.write.txnVersion": str(batch),
        }
        try:
            for key, value in settings.items():
                session.conf.set(key, value)
            session.sql(_MERGE.format(table=self.table, messages=MESSAGES))
        finally:
            for key in settings:
                session.conf.unset(key)


def is_merged(rows: pa.Table) -> bool:
    """Return whether a file is one of such a table."""
    return MESSAGES in rows.column_names


def messages_of(rows: pa.Table) -> pa.Table:
    """Return the messages that a file has, as often as it has them, each with its batch."""
    found = rows[MESSAGES].combine_chunks()
    messages = pa.table(dict(zip(found.type.value_type.names, found.flatten().flatten(), strict=True)))
    return messages.append_column("namespace", rows["namespace"].take(found.value_parent_indices()))
