"""The paced sink on the driver: for each batch, how fast its namespaces may go, and until when they have time.

How fast is a function of the batch's report and of its epoch, which Spark's offset log names: so it is the same when
the batch is run again. Until when is read from the wall clock, by which Spark starts batches at multiples of the
trigger's interval. No key and no call depends on it.

The batch ends when all its calls have ended. Rows for a destination of the policy that were not taken until then go
back to their queues, by the record of the batch (`checkpoint.delivery`), which is written before the dead letters, the
usage and the feedback. A crash before it sends the batch again, with the same keys; after it, nothing is sent again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.delivery import Delivery, read_delivery, write_delivery
from spark_throttle.control.epochs import Epochs
from spark_throttle.core.shares.destinations import Told
from spark_throttle.core.undelivered import UndeliveredCall
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.columns.payload_columns import to_carried
from spark_throttle.spark.metering.charging import charge_sink, is_metered
from spark_throttle.spark.paced.batch_sending import BatchSending, epoch_of
from spark_throttle.spark.paced.gate import wall_ms
from spark_throttle.spark.paced.paced_task import SENT_DDL, PacedTask, SendOptions
from spark_throttle.spark.paced.sending import Held, OpenedPerTask, Send
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE

_NS_PER_MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class PacedSink:
    """What sends the admitted rows of each batch."""

    send: Send | OpenedPerTask
    options: SendOptions
    namespace: Column
    size: Column
    interval_ms: int | None
    """The trigger's interval; `None` if batches follow one another without one."""

    tasks: int
    """The number of tasks that send at the same time."""

    epochs: Epochs
    """The query's epochs. The control plane has its own, in another process."""

    clock_ms: Callable[[], int] = wall_ms
    held: dict[str, Held] = field(default_factory=dict)
    """In whose names the last batch's calls were refused, if not in their destinations', by namespace."""

    def write(
        self,
        rows: Callable[[], DataFrame] | None,
        directory: Directory,
        mark: BatchMark,
        report: UsageReport | None,
        *,
        is_again: bool,
    ) -> None:
        """Send the rows of a batch, and write down what was not delivered.

        Raises
        ------
        SourceChangedError
            If other rows were sent than leave in the batch.
        """
        if report is None:
            return
        batch_ms = report.now_ms
        if read_delivery(directory, mark.batch, batch_ms) is not None:  # of an earlier attempt, which has sent all
            return
        epoch = self.epochs.load(epoch_of(directory, mark.batch))
        says = epoch.may_return
        if rows is None:
            if says:
                write_delivery(directory, mark.batch, batch_ms, Delivery())
            return
        policy = self.epochs.policy(epoch)
        batch = BatchSending.of(epoch, policy, mark, report)
        task = PacedTask(
            self.send, batch.name, batch.costs, self._window_ns(), batch.others_ns, self.options, batch.destinations,
            batch.destination_of, batch.again, dict(self.held), is_again,
        )  # fmt: skip
        answers = self._send(rows, task)
        due, taken = int(batch.left.messages.sum()), sum(answer["rows"] for answer in answers)
        if taken != due:
            raise SourceChangedError(
                f"the admitted rows of batch {mark.batch}",
                f"{due} rows leave, and {taken} were taken to be sent",
                "start again: the batch is sent again, with the same keys",
            )
        calls = [UndeliveredCall(*call) for answer in answers for call in json.loads(answer["undelivered"])]
        if is_metered(directory, report):
            charge_sink(directory, mark.batch, report, sum(answer["used_ns"] for answer in answers))
        if says:
            delivery = Delivery(told_in(answers), batch.undelivered(calls))
            write_delivery(directory, mark.batch, batch_ms, delivery)
        self.held.clear()
        self.held.update(held_in(answers))

    def _send(self, rows: Callable[[], DataFrame], task: PacedTask) -> list[Row]:
        """Send, and return what the tasks say."""
        helpers = [self.namespace.cast("string").alias(NAMESPACE)]
        if any(cost.byte_ps for cost in task.costs.values()):
            helpers.append(F.coalesce(self.size.try_cast("bigint"), F.lit(0)).alias(SIZE))
        given = rows()
        chosen = given.select(*to_carried(given.schema), *helpers).coalesce(max(1, self.tasks))
        return chosen.mapInArrow(task, SENT_DDL).collect()

    def _window_ns(self) -> int:
        """Return the time until the next batch: Spark starts one at each multiple of the interval."""
        if self.interval_ms is None:
            return 0
        return (self.interval_ms - self.clock_ms() % self.interval_ms) * _NS_PER_MS


def told_in(answers: Sequence[Row]) -> dict[str, Told]:
    """Return what destinations said by what tasks say, by destination."""
    told: dict[str, list[Told]] = {}
    for answer in answers:
        for name, each in json.loads(answer["told"]).items():
            told.setdefault(name, []).append(Told(**each))
    return {name: Told.together(parts) for name, parts in sorted(told.items())}


def held_in(answers: Sequence[Row]) -> dict[str, Held]:
    """Return in whose names calls are refused by what tasks say, by namespace."""
    return {name: Held(**each) for answer in answers for name, each in json.loads(answer["held"]).items()}
