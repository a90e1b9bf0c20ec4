"""Destinations of the native writer, Delta tables and folders of Parquet files, and the file writers for them.

They are fixed when a query starts, and travel as JSON in the options of the data source and with the operator.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from spark_throttle.files.storage import file_system
from spark_throttle.spark.delta.file_stats import IndexedColumns
from spark_throttle.spark.delta.table_files import FileForm, TableFileWriter
from spark_throttle.spark.metering.running_task import batch_of_task


@dataclass(frozen=True, slots=True)
class Destination:
    """The destination of one kind of rows: a Delta table, or a folder with a subfolder of Parquet files per batch."""

    location: str
    is_table: bool
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
        """Return the form of the files: the same as Spark's, with the footer entries that Spark's readers look for."""
        footer = {"org.apache.spark.version": pyspark.__version__}  # or Spark cannot tell the calendar of dates
        if not self.is_table:
            footer["org.apache.spark.sql.parquet.row.metadata"] = self.schema_json
        indexed = IndexedColumns(self.first_indexed, self.named_indexed)
        # A row that waited lacks the columns that the stream got meanwhile, whether or not they may be null there.
        schema = pa.schema([field.with_nullable(True) for field in to_arrow_schema(self.schema, timezone="UTC")])  # noqa: FBT003 - pyarrow's
        return FileForm(schema, footer, self.partition_columns, self.compression, indexed)


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Everything that the sink's processes need to know; it travels as JSON in the options of the data source."""

    control_path: str
    admitted: Destination
    rejected: Destination
    usage: Destination | None
    definition: str = ""
    """The query's definition, as JSON."""

    def to_json(self) -> str:
        """Return the plan as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> SinkPlan:
        """Return the plan from its JSON."""
        fields = json.loads(text)
        found = {name: _destination(fields[name]) for name in ("admitted", "rejected")}
        usage = _destination(fields["usage"]) if fields["usage"] else None
        return cls(fields["control_path"], **found, usage=usage, definition=fields["definition"])


def _destination(fields: dict[str, object]) -> Destination:
    named = fields.pop("named_indexed")
    columns = fields.pop("partition_columns")
    return Destination(**fields, partition_columns=tuple(columns), named_indexed=named and tuple(named))  # type: ignore[arg-type]


def file_writer(destination: Destination) -> TableFileWriter:
    """Return the writer of this task's rows for a destination."""
    context = TaskContext.get()
    part = part_name(context.partitionId() if context is not None else 0)
    if destination.is_table:
        return table_writer(destination, part)
    files, root = file_system(destination.location)
    # The leading dot hides the files from readers until the commit.
    return TableFileWriter(files, f"{root}/{batch_folder(batch_of_task())}", destination.form(), f".{part}")


def table_writer(destination: Destination, part: str) -> TableFileWriter:
    """Return a writer of rows to files of a table."""
    files, root = file_system(destination.location)
    return TableFileWriter(files, root, destination.form(), part)


def part_name(partition: int) -> str:
    """Return the prefix of the names of a task's files."""
    return f"part-{partition:05d}-"


def batch_folder(batch: int) -> str:
    """Return the name of a batch's folder in a destination that is not a table."""
    return f"batch={batch}"
