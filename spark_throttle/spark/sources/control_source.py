"""The control source: a streaming source whose rows are control rows and whose offsets name epochs.

Spark runs one reader per query, in a process of its own next to the driver, for as long as the query runs. Before every
batch Spark asks for the newest offset. The reader asks the control plane whether an epoch is due, and the plane writes
the epoch before the reader returns the offset that names it. Spark logs the offset before the batch runs, so a batch
that is run again gets the same epoch. The reader keeps nothing that it could not read again from the epoch that Spark
passes back. Under ``availableNow`` it waits for tokens, and lets the query end when no waiting row can ever leave.

Spark loads this module in several processes, but only the reader's process needs a control plane. So the modules of the
control plane are imported inside the functions that use them.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from spark_throttle.record import pack
from spark_throttle.spark.declared_flow import send_no_empty_profile
from spark_throttle.spark.rows.frames import FRAME_DDL, FrameKind, frame_batch
from spark_throttle.spark.rows.worker_heap import set_loaded_aside
from spark_throttle.spark.spark_version import OffsetBefore, told_of_available_now

if TYPE_CHECKING:
    from types import FrameType

    from pyspark.sql.streaming.datasource import ReadLimit

    from spark_throttle.control.clock import Clock
    from spark_throttle.control.epochs import EpochName
    from spark_throttle.control.plane import ControlPlane

CONTROL_FORMAT = "throttle_control"

_SOURCE_PROCESS: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark runs as the process of a source."""

_LONGEST_WAIT_MS = 1_000
"""Longest time between two looks at the policies while an ``availableNow`` run waits for tokens."""


@dataclass(frozen=True)
class ControlPartition(InputPartition):
    """The control row of an epoch, packed."""

    row: bytes


class ThrottleControlSource(DataSource):
    """The data source ``throttle_control``; used by `Throttle`, not by users."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return CONTROL_FORMAT

    def schema(self) -> str:
        """Return the schema of control rows; called in a worker, when a query is analysed."""
        send_no_empty_profile()
        return FRAME_DDL

    def streamReader(self, schema: StructType) -> ThrottleControlReader:  # noqa: N802, ARG002 - Spark's name
        """Return the reader; called on the driver, once per run of a query, and in a worker that plans its reads."""
        send_no_empty_profile()
        return ThrottleControlReader(dict(self.options))


@told_of_available_now
class ThrottleControlReader(DataSourceStreamReader):
    """The reader of control rows; it lives in one process on the driver's side for a query's whole run.

    Spark calls it from one thread.

    Parameters
    ----------
    clock
        Source of the time; by default the machine's clocks.
    pause
        Function that waits for a number of seconds.
    """

    def __init__(
        self,
        options: dict[str, str],
        *,
        clock: Clock | Callable[[], int] | None = None,
        pause: Callable[[float], object] | None = None,
    ) -> None:
        self._options = options
        self._clock = clock
        self._pause = pause or threading.Event().wait
        self._plane: ControlPlane | None = None
        self._ends_when_drained = False
        self._before = OffsetBefore()

    def plane(self, *, may_begin: bool = False) -> ControlPlane:
        """Return the control plane; the first call creates it, in the process that keeps it.

        Parameters
        ----------
        may_begin
            Whether the query may be new, because no offset names an epoch yet.
        """
        if self._plane is None:
            from spark_throttle.control.clock import Clock
            from spark_throttle.spark.sources.query_plane import open_plane

            self._plane = open_plane(self._options, Clock.of(self._clock or Clock.system()), may_begin=may_begin)
            _on_signal(_leave)
        return self._plane

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the offset before the first epoch; called twice in batch 0, and again when batch 0 is replayed."""
        from spark_throttle.control.epochs import NO_EPOCH

        self.plane(may_begin=True)
        return _offset(NO_EPOCH)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Record that the query ends when its rows have drained; called once, before the first `latestOffset`."""
        self._ends_when_drained = True

    def latestOffset(  # noqa: N802 - Spark's name
        self,
        start: dict[str, Any] | None = None,
        limit: ReadLimit | None = None,  # noqa: ARG002 - Spark's
    ) -> dict[str, Any]:
        """Return the epoch of the next batch; called at every trigger, and every 10 ms while nothing happens.

        Returning `start` means that this source needs no batch. Under ``availableNow`` that would end the query, so
        while rows wait for tokens that will come, the call waits too.
        """
        from spark_throttle.control.epochs import NO_EPOCH

        before = self._before.next(self._options["controlpath"], _offset(NO_EPOCH)) if start is None else start
        while True:
            newest, wait_ms = self.poll(before)
            if newest != before or wait_ms is None:
                self._before.returned(newest)
                return newest
            self.wait(wait_ms)

    def poll(self, start: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """Return the epoch of the next batch, and for how long the query waits for tokens if this source needs none.

        The wait is `None` if the query does not end by itself, or if no row waits for tokens that will come.
        """
        from spark_throttle.control.epochs import NO_EPOCH, EpochName

        name = EpochName.of(start)
        plane = self.plane(may_begin=name == NO_EPOCH)
        newest = plane.next_epoch(name, ends_when_drained=self._ends_when_drained)
        return _offset(newest), plane.wait_ms() if self._ends_when_drained else None

    def wait(self, wait_ms: int) -> None:
        """Wait for tokens, at most for the time between two looks at the policies."""
        self._pause(min(wait_ms, _LONGEST_WAIT_MS) / 1000)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the control rows between two offsets; called on the driver, and again when a batch is replayed."""
        from spark_throttle.control.epochs import NO_EPOCH, EpochName

        self.plane().note_batch()
        before, name = EpochName.of(start), EpochName.of(end)
        if name in (before, NO_EPOCH):
            return []
        plane = self.plane()
        epoch = plane.epochs.load(name)
        policy = plane.epochs.policy_for(before, name)
        packed = None if policy is None else pack(policy)
        row = epoch.control_row(packed, plane.epochs.policy(epoch))
        return [ControlPartition(pack(row))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the control rows; called on an executor, on a copy of the reader that has no control plane."""
        set_loaded_aside()
        assert isinstance(partition, ControlPartition)  # noqa: S101 - `partitions` makes no other
        yield frame_batch(FrameKind.CONTROL, partition.row)

    def commit(self, end: dict[str, Any]) -> None:
        """Delete old epochs; called for a batch when the second batch after it is planned, possibly more than once."""
        from spark_throttle.control.epochs import EpochName

        self.plane().note_batch()
        self.plane().forget_before(EpochName.of(end))

    def stop(self) -> None:
        """Stop the visits to the exchange, and say that the query has ended; called once when it ends."""
        if self._plane is not None:
            _on_signal(signal.SIG_IGN)  # one that comes now would cut off what is said
            self._plane.stop()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return `None`: the newest offset is decided only when a batch is planned."""
        return None

    def __reduce__(self) -> tuple[type[ThrottleControlReader], tuple[dict[str, str]]]:
        return (type(self), (self._options,))


def _on_signal(do: Callable[[int, FrameType | None], object] | signal.Handlers) -> None:
    """Say what SIGTERM does to this process; only in the process of a source.

    A query that ends sends the signal and closes the input. By default the signal ends Python at once.
    """
    main = sys.modules["__main__"].__spec__
    if main is not None and main.name == _SOURCE_PROCESS:
        signal.signal(signal.SIGTERM, do)


def _leave(signum: int, frame: object) -> NoReturn:  # noqa: ARG001 - a handler's
    """End as the end of the input does: with `stop`."""
    raise SystemExit(0)


def _offset(name: EpochName) -> dict[str, Any]:
    return {"epoch": name.number, "file": name.file}
