"""A Delta table takes a batch as files that Spark did not write: named by one commit, once, with the batch's mark.

Files that were staged in the table's directory and of which all rows leave are committed as they lie; of others the
rows that leave were written to new files by executors (`move.cutting`). A table that has the batch does not take it
again (`delta.table_log`), so files of an earlier attempt are never named. A different batch of the same number, as a
checkpoint that was put back plans it, is refused (`checkpoint.batch_mark`). The table is checked again before every
commit, because it may have got a property meanwhile that only Spark's writer knows (`table_features`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyspark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.manifest import Manifest
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import ConfigurationError
from spark_throttle.files.storage import Directory, file_system
from spark_throttle.spark.delta.table_files import FileForm, IndexedColumns, TableFileWriter, WrittenFile
from spark_throttle.spark.delta.table_log import append_to_table
from spark_throttle.spark.metering.charging import decided_policy
from spark_throttle.spark.move.answer import FileAnswer
from spark_throttle.spark.sinks.table_features import check_table

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True, slots=True)
class FileTable:
    """A Delta table that takes files, as it was found when the query started."""

    location: str
    schema_json: str
    """Spark's schema of the rows, as JSON."""

    partition_columns: tuple[str, ...] = ()
    compression: str = "snappy"
    first_indexed: int = 32
    named_indexed: tuple[str, ...] | None = None

    @property
    def schema(self) -> StructType:
        """Spark's schema of the rows."""
        return StructType.fromJson(json.loads(self.schema_json))

    def form(self) -> FileForm:
        """Return the form of the files: the same as Spark's, with the footer entry that Spark's readers look for."""
        footer = {"org.apache.spark.version": pyspark.__version__}  # or Spark cannot tell the calendar of dates
        indexed = IndexedColumns(self.first_indexed, self.named_indexed)
        # A row that waited lacks the columns that the stream got meanwhile, whether or not they may be null there.
        schema = pa.schema([field.with_nullable(True) for field in to_arrow_schema(self.schema, timezone="UTC")])  # noqa: FBT003 - pyarrow's
        return FileForm(schema, footer, self.partition_columns, self.compression, indexed)

    def append(self, mark: BatchMark, written: Callable[[], list[WrittenFile]]) -> None:
        """Append the files that `written` returns, unless the table already has the batch; it has its mark at any rate.

        Raises
        ------
        CheckpointMismatchError
            If the table has a different batch of that number, or a later one.
        ForeignFilesError, ConfigurationError
            If the table was changed so that the files can no longer be appended. Nothing of the batch was committed.
        """
        append_to_table(self.location, mark, self._check_as_found, written)

    def append_staged(self, mark: BatchMark, files: Sequence[FileAnswer], cut: Sequence[WrittenFile]) -> None:
        """Append a batch: the files of which all rows are admitted, and what was written of those that were cut."""
        whole = [
            WrittenFile(file.name, file.size_bytes, (), file.stats)
            for file in files
            if file.is_outside and file.is_admitted_whole
        ]
        self.append(mark, lambda: [*whole, *cut])

    def append_usage(self, directory: Directory, mark: BatchMark, report: UsageReport, manifest: Manifest) -> None:
        """Append the usage report of a batch, once."""
        from spark_throttle.status.shared_status import SHARE_SCHEMA, batch_usage  # slow to load, and rarely needed

        def write() -> list[WrittenFile]:
            files, root = file_system(self.location)
            writer = TableFileWriter(files, root, self.form(), "part-")
            has_shares = set(SHARE_SCHEMA.names) <= set(self.schema.names)
            policy = decided_policy(directory, report)
            usage = batch_usage(directory, report, mark.batch, has_shares=has_shares, manifest=manifest, policy=policy)
            for rows in usage.to_batches():
                writer.add(rows)
            return writer.finish()

        self.append(mark, write)

    def _check_as_found(self, table: DeltaTable) -> None:
        """Refuse a table that can no longer take the files as they are written since the query started."""
        found = tuple(table.metadata().partition_columns)
        if found != self.partition_columns:
            raise ConfigurationError(
                f"{self.location} was partitioned by {list(self.partition_columns)} when the query started, and is now "
                f"by {list(found)}: restart the query, without partitionBy or with what the table has"
            )
        check_table(table, self.location, self.schema, self.partition_columns)
