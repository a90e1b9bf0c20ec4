"""Rows that wait are copied out of the files of a stream's source, as Spark reads them: once, a rest for each file.

A rest of a source's file is a rest like any other (`cutting`), so nothing but this module knows where its rows came
from. Its name and its rows are the same at every attempt at a batch, because a file of a source is: unlike a staged one
it has no zombie's twin.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.spark.move.cutting import FILE, ROW, RestWriter, with_place
from spark_throttle.spark.move.stager import StagingPlace, as_nullable
from spark_throttle.spark.rows.frames import aligned
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

RESTS_DDL: Final = "rest string, messages long, positions long"
_GATHERED_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class SourceRests:
    """A function from rows of files to their rests; `mapInArrow` runs it on rows in the order of their files.

    All rows of a file are in one task.
    """

    place: StagingPlace
    names: tuple[str, ...]
    """Names of the columns in order: PySpark's `mapInArrow` rejects names with a backtick."""

    rests: Mapping[str, str]
    """The name of the rest of each file."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the name of each rest, the number of its rows, and the sum of their positions."""
        set_loaded_aside()
        schema, open_rest = with_place(self.place.form.schema), None
        for batch in batches:
            rows = as_nullable(batch).rename_columns(list(self.names)).select(schema.names)
            for file, part in _by_file(aligned(rows, schema)):
                if open_rest is None or open_rest.file != file:
                    if open_rest is not None:
                        yield open_rest.finish()
                    open_rest = _OpenRest(self.place, file, self.rests[file])
                open_rest.add(part)
        if open_rest is not None:
            yield open_rest.finish()


class _OpenRest:
    """A rest that is not yet whole."""

    def __init__(self, place: StagingPlace, file: str, rest: str) -> None:
        self.file, self._rest = file, rest
        self._writer = RestWriter(place, rest, is_read=False)
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = self._messages = self._positions = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._messages += rows.num_rows
        self._positions += pc.sum(rows.column(ROW)).as_py() or 0
        self._gathered.append(rows)
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes >= _GATHERED_BYTES:
            self._write()

    def finish(self) -> pa.RecordBatch:
        if self._gathered:
            self._write()
        self._writer.finish()
        return pa.RecordBatch.from_pydict(
            {"rest": [self._rest], "messages": [self._messages], "positions": [self._positions]}
        )

    def _write(self) -> None:
        rows = pa.Table.from_batches(self._gathered).combine_chunks()
        position = rows.column(ROW)
        self._writer.add(rows.drop_columns([FILE, ROW]), self.file, position)
        self._gathered, self._gathered_bytes = [], 0


def _by_file(rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each file, which follow one another."""
    if not rows.num_rows:
        return
    coded = rows.column(FILE).dictionary_encode()
    code = coded.indices.to_numpy()
    ends = [0, *(np.flatnonzero(np.diff(code)) + 1).tolist(), rows.num_rows]
    for first, end in pairwise(ends):
        yield coded.dictionary[int(code[first])].as_py(), rows.slice(first, end - first)
