"""Staged rows in a Delta table: files that leave whole are committed as they lie, with the query's transaction.

They were staged in the table's directory, in the form of its files and with statistics. Of all other files the rows
that leave were written to new files by executors (`move.cutting`). One commit names them all, so a batch is in the
table whole or not at all, and a table that has the batch does not take it again (`delta.kept_tables`). A table takes
no foreign file that `table_features` does not know to be safe; nor is one staged in a table that is partitioned, for a
file of it has rows of one partition alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.spark.delta.table_files import WrittenFile
from spark_throttle.spark.move.answer import FileAnswer
from spark_throttle.spark.sinks.delta_sink import append_once
from spark_throttle.spark.sinks.destination import Destination


def append_as_they_lie(
    table: Destination, mark: BatchMark, files: Sequence[FileAnswer], written: Sequence[WrittenFile]
) -> None:
    """Append a batch: those of the files all of whose rows are admitted, and what was written of others."""
    whole = [
        WrittenFile(file.name, file.size_bytes, (), file.stats)
        for file in files
        if file.in_table and file.is_admitted_whole
    ]
    append_once(table, mark, lambda: [*whole, *written])
