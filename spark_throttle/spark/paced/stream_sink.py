"""The sink ``throttle_paced`` as Spark's own streaming sink, behind `Throttle.apply`: a pipeline names it in a sink.

::

    dp.create_sink("api", "throttle_paced", {"url": …, "controlPath": …, "namespace": "tenant"})

`apply` registers it with the session. A task gets its rows, and with the last of them the batch's report is there:
`DecidedRows` writes it behind the last row. So the task knows what the batch may send, as the driver does in
`paced_sink`, and makes the same calls with the same keys when the batch is run again.

Nothing comes back here: rows that `apply` has returned have left. A call that is refused is made again until the
patience is over, then the flow ends. Destinations of the policy are paced at their quotas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_throttle.errors import ConfigurationError, SourceChangedError
from spark_throttle.spark.declared_flow import send_no_empty_profile
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, THROTTLE, UNITS
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

if TYPE_CHECKING:
    from spark_throttle.spark.paced.paced_sink import PacedTask

PACED_FORMAT: Final = "throttle_paced"

_CONTROL: Final = "controlPath"
_SPARKS: Final = ("path", "checkpointlocation", "queryname")


class ThrottlePacedSink(DataSource):
    """The data source ``throttle_paced``."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        send_no_empty_profile()  # made in each worker that learns of the sink
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return PACED_FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> PacedStreamWriter:  # noqa: FBT001, N802 - Spark's
        """Return the writer; called in a worker when a query begins, and again for each batch.

        Raises
        ------
        ConfigurationError
            If an option is missing, unknown or wrong, or a column is not there.
        """
        from spark_throttle.spark.paced.paced_options import http_sender

        if overwrite:
            raise ConfigurationError(f"{PACED_FORMAT} sends rows once; use outputMode append")
        given = {name: value for name, value in self.options.items() if name.lower() not in _SPARKS}
        control, namespace = (_taken(given, name) for name in (_CONTROL, "namespace"))
        size, units = (_taken(given, name) for name in ("size", "units"))
        if control is None or namespace is None:
            raise ConfigurationError(
                f"{PACED_FORMAT} needs the option {_CONTROL}, the control_path of the apply that decided its rows, and "
                f"the option namespace, the column that has their namespaces"
            )
        for name in (namespace, size, units):
            if name is not None and name not in schema.names:
                raise ConfigurationError(f"the rows have no column {name!r}; they have {', '.join(schema.names)}")
        if THROTTLE in schema.names:
            raise ConfigurationError(
                "send only the admitted rows: where(\"throttle.verdict = 'ADMIT'\").drop('throttle')"
            )
        http_sender(given)
        return PacedStreamWriter(control, namespace, size, units, given)


def _taken(options: dict[str, str], name: str) -> str | None:
    """Return an option, and leave the others; Spark may give names in lower case."""
    found = next((each for each in options if each.lower() == name.lower()), None)
    return None if found is None else options.pop(found)


@dataclass(frozen=True)
class PacedStreamWriter(DataSourceStreamArrowWriter):
    """The writer of a query's batches; `write` runs on an executor, once per attempt at a task."""

    control_path: str
    namespace: str
    size: str | None
    units: str | None
    options: Mapping[str, str]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Send the rows of a task.

        Raises
        ------
        SourceChangedError
            If the batch has no report: its rows were not decided in that control directory.
        ConfigurationError
            If a row has no namespace, or a quota is in bytes or units and no column has them.
        DeliveryError
            If a call was refused for too long.
        """
        set_loaded_aside()
        batches = [batch for batch in iterator if batch.num_rows]
        if batches:
            task = self._task()
            for _ in task([self._with_task_columns(batch, task) for batch in batches]):
                pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Do nothing: what was sent was sent. Called in a worker, as `abort` is."""
        send_no_empty_profile()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's
        """Do nothing: the batch is sent again under the same keys."""
        send_no_empty_profile()

    def _task(self) -> PacedTask:
        from spark_throttle.checkpoint.batch_mark import mark_of
        from spark_throttle.checkpoint.manifest import bound_manifest
        from spark_throttle.control.epochs import newest_epoch, policy_of_epoch
        from spark_throttle.control.reports import report_of
        from spark_throttle.files.storage import Directory
        from spark_throttle.spark.metering.charging import batch_of_task
        from spark_throttle.spark.paced.batch_sending import BatchSending
        from spark_throttle.spark.paced.paced_options import http_sender
        from spark_throttle.spark.paced.paced_sink import PacedTask

        directory, batch = Directory(self.control_path), batch_of_task()
        report, epoch = report_of(directory, batch), newest_epoch(directory)
        if report is None or epoch is None:
            raise SourceChangedError(
                f"the rows of batch {batch}",
                f"they come to the sink {PACED_FORMAT} without a report in {self.control_path}",
                f"give its option {_CONTROL} the control_path of the apply of the same flow",
            )
        policy = policy_of_epoch(directory, report.epoch, report.revision)
        sending = BatchSending.of(epoch, policy, mark_of(bound_manifest(directory), batch, report), report)
        send, how = http_sender(self.options)
        return PacedTask(send, sending.name, sending.costs, 0, 0, how)

    def _with_task_columns(self, batch: pa.RecordBatch, task: PacedTask) -> pa.RecordBatch:
        """Return rows with the columns by which a task tells and measures them."""
        names = batch.column(self.namespace).cast(pa.string())
        if names.null_count:
            raise ConfigurationError("a row has no namespace, so it was rejected: send only the admitted rows")
        costs = task.costs.values()
        carried = {NAMESPACE: names}
        for helper, column, option, quantity, is_limited in (
            (SIZE, self.size, "size", "bytes", any(cost.byte_ps for cost in costs)),
            (UNITS, self.units, "units", "units", any(cost.unit_ps for cost in costs)),
        ):
            if column is not None:
                carried[helper] = batch.column(column).cast(pa.int64()).fill_null(0)
            elif is_limited:
                raise ConfigurationError(
                    f"a quota is in {quantity}: give the option {option}, the column that has the rows' {quantity}"
                )
        for helper, values in carried.items():
            batch = batch.append_column(helper, values)
        return batch
