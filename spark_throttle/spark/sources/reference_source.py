"""The source of a query that decides on references: the control source's rows, and rows read from files.

An offset names an epoch and an extent. The reader lives in one process on the driver's side, for a query's whole run:
it finds new files, and writes the extent that lists them before it returns the offset that names it. So a batch that
runs again reads the same files under the same epoch.

Executors read the files (`references.reading`). A row of this stream is a frame: a control row, or references.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_throttle.files.storage import Directory
from spark_throttle.spark.references.extents import NO_EXTENT, ExtentName, Extents, NewFiles
from spark_throttle.spark.references.feeds import open_feed
from spark_throttle.spark.references.reading import FilePiece, FirstReading, tasks_of
from spark_throttle.spark.rows.frames import FRAME_DDL
from spark_throttle.spark.rows.worker_heap import set_loaded_aside
from spark_throttle.spark.sources.control_source import ThrottleControlReader
from spark_throttle.spark.spark_version import OffsetBefore, told_of_available_now

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

REFERENCE_FORMAT: Final = "throttle_references"

_LOOK_SECONDS: Final = 0.1
"""Shortest time between two looks for new files."""

_LOOK_SHARE: Final = 5
"""How many times as long as a look took the source waits before the next, as long as it finds no file."""


@dataclass(frozen=True)
class FilePartition(InputPartition):
    """The pieces of files that one task reads."""

    pieces: tuple[FilePiece, ...]


class ThrottleReferenceSource(DataSource):
    """The data source ``throttle_references``; used by `reference_stream`, not by users."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return REFERENCE_FORMAT

    def schema(self) -> str:
        """Return the schema of frames."""
        return FRAME_DDL

    def streamReader(self, schema: StructType) -> ThrottleReferenceReader:  # noqa: N802, ARG002 - Spark's name
        """Return the reader; called on the driver, once per run of a query."""
        return ThrottleReferenceReader(dict(self.options))


@told_of_available_now
class ThrottleReferenceReader(DataSourceStreamReader):
    """The reader of control rows and references; Spark calls it from one thread.

    Parameters
    ----------
    control
        The reader of control rows; by default one for the same options.
    seconds
        Source of the time between two looks for new files.
    """

    def __init__(
        self,
        options: dict[str, str],
        *,
        control: ThrottleControlReader | None = None,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options = options
        self._control = control or ThrottleControlReader(options)
        self._seconds = seconds
        self._extents = Extents(Directory(options["controlpath"]))
        self._files: NewFiles | None = None
        self._next_look = 0.0
        self._before = OffsetBefore()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first epoch and the first file."""
        return _offset(self._control.initialOffset(), NO_EXTENT)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record that the query ends with the files that are there; called once, before the first `latestOffset`."""
        self._control.prepareForTriggerAvailableNow()
        self._new_files().stop_at_newest()

    def latestOffset(  # noqa: N802 - Spark's name
        self,
        start: dict[str, Any] | None = None,
        limit: ReadLimit | None = None,  # noqa: ARG002 - Spark's
    ) -> dict[str, Any]:
        """Return the epoch and the extent of the next batch; called at every trigger, and every 10 ms meanwhile.

        Returning `start` means that no batch is needed. Under ``availableNow`` the call waits, as the control source
        does, while rows wait for tokens that will come.
        """
        from spark_throttle.control.epochs import NO_EPOCH

        if start is None:
            start = self._before.next(
                self._options["controlpath"], _offset({"epoch": NO_EPOCH.number, "file": NO_EPOCH.file}, NO_EXTENT)
            )
        before = _extent_name(start)
        while True:
            epoch, wait_ms = self._control.poll(start["control"])
            extent = self._look(before)
            newest = _offset(epoch, extent)
            if newest != start or wait_ms is None:
                self._before.returned(newest)
                return newest
            self._control.wait(wait_ms)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the control row and the pieces of files between two offsets; also when a batch runs again."""
        files = self._extents.between(_extent_name(start), _extent_name(end))
        tasks = tasks_of(files, int(self._options["tasks"])) if files else []
        return [
            *self._control.partitions(start["control"], end["control"]),
            *(FilePartition(pieces) for pieces in tasks),
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a control row or references; called on an executor, on a copy of the reader."""
        if isinstance(partition, FilePartition):
            set_loaded_aside()
            return FirstReading.from_json(self._options["reading"]).frames(partition.pieces)
        return self._control.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete old epochs; called for a batch when the second batch after it is planned, possibly more than once."""
        self._control.commit(end["control"])

    def stop(self) -> None:
        """End the control plane; called once when the query ends."""
        self._control.stop()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return `None`: the newest offset is decided only when a batch is planned."""
        return None

    def __reduce__(self) -> tuple[type[ThrottleReferenceReader], tuple[dict[str, str]]]:
        return (type(self), (self._options,))

    def _new_files(self) -> NewFiles:
        if self._files is None:
            self._files = NewFiles(self._extents, open_feed(json.loads(self._options["feed"])))
        return self._files

    def _look(self, before: ExtentName) -> ExtentName:
        """Return the extent after `before` if there are new files, and if it is time to look for some."""
        begun = self._seconds()
        if begun < self._next_look:
            return before
        found = self._new_files().after(before)
        ended = self._seconds()
        if found == before:
            self._next_look = ended + max(_LOOK_SECONDS, (ended - begun) * _LOOK_SHARE)
        return found


def _offset(control: dict[str, Any], extent: ExtentName) -> dict[str, Any]:
    return {"control": control, "extent": extent.number, "file": extent.file}


def _extent_name(offset: dict[str, Any]) -> ExtentName:
    return ExtentName(int(offset["extent"]), str(offset["file"]))
