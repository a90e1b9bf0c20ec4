"""Files of waiting rows that were staged under other columns than the stream has: read by pyarrow, not by Spark.

Spark reads a file of a wider type, but none of a narrower one, whatever its values are. A start has made sure that the
rows that wait lose nothing (`state_reader.misfit`), so they leave with their values in the new types. What columns a
file was written with is in its footer, as a digest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet as pq
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.definition import digest
from spark_throttle.errors import RESTORE_CHECKPOINT, DamagedError
from spark_throttle.files.storage import file_system
from spark_throttle.spark.move.cutting import FILE, ROW, aligned_table, as_read, with_place
from spark_throttle.spark.move.stager import StagingPlace
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

_COLUMNS: Final = "spark_throttle.columns"


def columns_in_footer(schema: StructType) -> dict[str, str]:
    """Return what the footer of a file says of its columns."""
    return {_COLUMNS: digest(schema.json())}


def is_former(place: StagingPlace, name: str, rows: int | None) -> bool:
    """Return whether a file was written with other columns than the place's.

    Parameters
    ----------
    rows
        How many rows it must have: Spark reads a file to its end, wherever that is. `None` of a copy, of which each
        row is looked for (`upkeep.places_in`).

    Raises
    ------
    DamagedError
        If it is gone, cannot be read, or has another number of rows.
    """
    files, root = file_system(place.root)
    what = f"the file of waiting rows {name}"
    try:
        found = pq.read_metadata(f"{root.rstrip('/')}/{name}", filesystem=files)
    except (pa.ArrowException, OSError) as error:
        raise DamagedError(what, f"it cannot be read ({error})", RESTORE_CHECKPOINT) from error
    if rows is not None and found.num_rows != rows:
        raise DamagedError(what, f"it has {found.num_rows} rows, and had {rows}", RESTORE_CHECKPOINT)
    footer = found.metadata or {}
    return bool(footer.get(_COLUMNS.encode()) != place.form.footer.get(_COLUMNS, "").encode())


@dataclass(frozen=True, slots=True)
class FormerFiles:
    """A function that reads files, with the rows' places; `mapInArrow` runs it with the numbers of the files as ids."""

    place: StagingPlace
    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the columns of the place."""
        set_loaded_aside()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._rows(self.names[number])

    def _rows(self, name: str) -> Iterator[pa.RecordBatch]:
        files, root = file_system(self.place.root)
        with files.open_input_file(f"{root.rstrip('/')}/{name}") as stream:
            yield from rows_with_places(stream, name, self.place)


def rows_with_places(stream: Any, name: str, place: StagingPlace) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - pyarrow's
    """Yield the rows of an open file with the columns of a place, and the place in which each was staged."""
    schema, first = with_place(place.form.schema), 0
    in_file = as_read(schema)
    parquet = pq.ParquetFile(stream)
    for group in range(parquet.num_row_groups):
        rows = parquet.read_row_group(group, use_threads=False)
        if FILE not in rows.column_names:
            rows = rows.append_column(FILE, pa.repeat(name, len(rows)))
            rows = rows.append_column(ROW, pa.array(range(first, first + len(rows)), pa.int64()))
        first += len(rows)
        yield from in_columns(rows, schema, in_file).to_batches()


def in_columns(rows: pa.Table, schema: pa.Schema, in_file: pa.Schema) -> pa.Table:
    """Return rows of a file, of whatever columns it was written with, with the columns of a schema.

    Parameters
    ----------
    in_file
        The same columns as pyarrow reads them (`cutting.as_read`).
    """
    return aligned_table(rows, in_file).cast(schema)
