"""`throttle_load`: a Python Data Source that offers seeded multi-tenant traffic, as a stream or a table.

::

    spark.dataSource.register(ThrottleLoadSource)
    spark.readStream.format("throttle_load").option("rowsPerSecond", 20000).option("limit", 600000).load()

An offset is `{"rows": n}`: rows 0 to n (excluded) have been offered. Reading the same options as a table
gives the same rows, so the rows that a stream offered can be counted again from its offset alone (`traffic`).

A stream's clock starts when its first batch is done, and starts again after a restart, so neither a slow start of the
session nor a pause is followed by a flood. The first batch carries a tenth of a second of traffic.

================== =========== =========================================================================
option             default     meaning
================== =========== =========================================================================
rowsPerSecond      1000        rate of all namespaces together; not with `groups`
namespaces         100         number of namespaces; not with `groups`
tenants            10          number of tenants of the namespaces; with `groups`, per group (default 1)
zipfExponent       1.0         0 gives every namespace the same rate; a group may set its own
groups             none        JSON list of objects with `prefix`, `namespaces`, `messages_per_second` and,
                               optionally, `tenants`, `zipf_exponent`, `bursts` (true or false)
burstFactor        1           namespaces send in one of this many slots, that much faster; 1 is steady
burstSeconds       5           length of a slot
sizeMedianBytes    1024        median of `size_bytes`, which is nominal: no payload has that size
sizeSigma          1.0         sigma of the lognormal distribution of sizes; with 0 all are equal
payloadBytes       8           length of `payload`, which repeats the row's id in little endian
limit              none        total number of rows that are offered; required for a table
maxRowsPerBatch    200000      maximum number of rows in a batch
partitions         2           number of tasks that read a batch, if it has enough rows
seed               0           seed of the rows; another seed gives other rows
startMs            1767225600000  event time of row 0, in ms since 1970
================== =========== =========================================================================
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError
from spark_throttle.load.traffic import MAX_ROWS, SCHEMA, LoadOptions

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

_MIN_ROWS_A_TASK = 4096


@dataclass
class RowRange(InputPartition):
    """Rows `start` to `end` (excluded), which one task reads."""

    start: int
    end: int


def plan_ranges(start: int, end: int, tasks: int) -> list[RowRange]:
    """Return at most `tasks` ranges of nearly equal length that cover `start` to `end`.

    Examples
    --------
    >>> plan_ranges(10, 20_010, 3)
    [RowRange(start=10, end=6677), RowRange(start=6677, end=13343), RowRange(start=13343, end=20010)]
    >>> plan_ranges(5, 5, 3)
    []
    """
    rows = end - start
    tasks = min(tasks, -(-rows // _MIN_ROWS_A_TASK))
    bounds = [start + (rows * i + tasks // 2) // tasks for i in range(tasks + 1)] if tasks > 0 else []
    return [RowRange(low, high) for low, high in pairwise(bounds)]


class _RangeReader:
    """A reader of row ranges for executors; it holds only the options."""

    def __init__(self, options: LoadOptions) -> None:
        self._options = options

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range; called in every task."""
        rows = cast("RowRange", partition)
        return self._options.traffic.batches(rows.start, rows.end)


class LoadReader(_RangeReader, DataSourceReader):
    """A reader of rows 0 to `limit` (excluded) as a table."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return one range per task; called on the driver, once per query."""
        if self._options.limit is None:
            raise ConfigurationError("throttle_load: a table needs the option limit, the number of its rows")
        return plan_ranges(0, self._options.limit, self._options.partitions)


class LoadStreamReader(_RangeReader, DataSourceStreamReader):
    """A reader that offers rows as they fall due; it lives in one driver-side process for a query's whole run."""

    def __init__(self, options: LoadOptions, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        super().__init__(options)
        self._clock_ns = clock_ns
        self._first_start: int | None = None
        self._started: tuple[int, int] | None = None
        self._offers_all = False

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the offset of a stream that has offered nothing."""
        return {"rows": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the most rows of a batch; called once per run."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self._options.max_rows_per_batch)

    def latestOffset(  # noqa: N802
        self, start: dict[str, int] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, int]:
        """Return the end of the rows that are due, or `start` if none are; called at every trigger.

        Raises
        ------
        ConfigurationError
            If Spark does not say where the batch begins.
        """
        if start is None:
            raise ConfigurationError("throttle_load is a stream on Spark 4.2 or newer only; before, read it as a table")
        offered = start["rows"]
        due = MAX_ROWS if self._offers_all else self._due(offered)
        most = getattr(limit, "max_rows", None)
        if most is not None:
            due = min(due, offered + most)
        if self._options.limit is not None:
            due = min(due, self._options.limit)
        return {"rows": max(due, offered)}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Make all rows up to `limit` due at once, so that `availableNow` ends."""
        if self._options.limit is None:
            raise ConfigurationError("throttle_load: availableNow needs the option limit, or it would never end")
        self._offers_all = True

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return one range per task; called once per batch, and again for the same offsets on replay."""
        return plan_ranges(start["rows"], end["rows"], self._options.partitions)

    def _due(self, offered: int) -> int:
        rate = self._options.traffic.rows_per_second
        if self._started is None:
            if self._first_start in (None, offered):
                self._first_start = offered
                return offered + max(1, rate // 10)
            self._started = (self._clock_ns(), offered)
        started_ns, base = self._started
        return base + (self._clock_ns() - started_ns) * rate // 1_000_000_000


with suppress(ImportError):  # before Spark 4.2
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

    SupportsTriggerAvailableNow.register(LoadStreamReader)


class ThrottleLoadSource(DataSource):
    """The data source `throttle_load`; register it with `spark.dataSource.register(ThrottleLoadSource)`."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Parsed here and not in the readers, so that a wrong option fails load() and not the running query.
        self._parsed = LoadOptions.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "throttle_load"

    def schema(self) -> StructType:
        """Return the columns, which do not depend on the options."""
        return from_arrow_schema(SCHEMA)

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Return a reader of rows 0 to `limit` (excluded)."""
        return LoadReader(self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Return a reader that offers rows by the clock."""
        return LoadStreamReader(self._parsed)
