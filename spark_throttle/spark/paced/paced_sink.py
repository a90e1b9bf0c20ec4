"""The paced sink on the driver: for each batch, how fast its namespaces may go, and until when they have time.

How fast is a function of the batch's reports and of its epoch, which Spark's offset log names: so it is the same when
the batch is run again. Until when is read from the wall clock, by which Spark starts batches at multiples of the
trigger's interval. No key and no call depends on it.

The batch ends when all its rows were sent, or are kept for a later one. Then the dead letters, the usage and the
feedback are written, and Spark commits it: a crash before that sends the batch again, with the same keys. What goes to
destinations is kept at once, where it is not too much, and sent from here meanwhile (`kept_sender`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.offset_log import batch_time_ms
from spark_throttle.checkpoint.told import read_told, write_told
from spark_throttle.checkpoint.unsent import (
    Held,
    UnsentCalls,
    forget_unsent,
    note_given_up,
    noted_given_up,
    read_unsent,
    write_unsent,
)
from spark_throttle.control.epochs import EpochName, Epochs, logged_epoch
from spark_throttle.core.quota import Dimension
from spark_throttle.core.shares.destinations import Told, group_names
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import EpochMissingError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.columns.payload_columns import to_carried
from spark_throttle.spark.metering.sink_meter import charge_sink, is_metered
from spark_throttle.spark.paced.batch_sending import BatchSending
from spark_throttle.spark.paced.in_flight import NONE_IN_FLIGHT, InFlight, Stop
from spark_throttle.spark.paced.kept_sender import KeptSender, Sending, SentMeanwhile
from spark_throttle.spark.paced.paced_task import SENT_DDL, PacedTask, SendOptions
from spark_throttle.spark.paced.retry_after import wall_ms
from spark_throttle.spark.paced.sending import OpenedPerTask, Send, Sent
from spark_throttle.spark.paced.unsent_calls import (
    by_namespace,
    count_rows,
    given_up_rows,
    rows_by_namespace,
    tables_of,
)
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE

_NS_PER_MS = 1_000_000
_PS_PER_NS = 1_000
_NO_END_NS: Final = 10**15
"""Until it is stopped."""

_MOST_MICRO_PER_MS: Final = 500_000
"""500 messages a second: so many calls one process can make, whatever their rows."""


@dataclass(frozen=True, slots=True)
class PacedSink:
    """What sends the admitted rows of each batch."""

    send: Send | OpenedPerTask
    target: str
    """What sends, as text."""

    options: SendOptions
    schema: StructType
    """Of the user's rows."""

    namespace: Column
    size: Column
    interval_ms: int | None
    """The trigger's interval; `None` if batches follow one another without one."""

    tasks: int
    """The number of tasks that send at the same time."""

    epochs: Epochs
    """The query's epochs. The control plane has its own, in another process."""

    clock_ms: Callable[[], int] = wall_ms
    kept: KeptSender = field(default_factory=KeptSender)
    """What sends calls for destinations while batches come and go."""

    closed: dict[str, int] = field(default_factory=dict)
    """Until when destinations asked not to be called, by the wall clock, as far as this process was told."""

    def write(
        self,
        rows: Callable[[], DataFrame] | None,
        directory: Directory,
        mark: BatchMark,
        reports: Sequence[UsageReport],
    ) -> DataFrame | None:
        """Send the admitted rows of a batch, after those that earlier batches left unsent; return those given up.

        Raises
        ------
        SourceChangedError
            If other rows were sent than the batch admitted.
        """
        checkpoint = checkpoint_of(directory)
        batch_ms = time_of(checkpoint, mark.batch)
        left = unsent_before(directory, checkpoint, mark.batch) or UnsentCalls(self.target, 0, [])
        kept, held = left.tables, left.held if left.target == self.target else {}
        batch = self._batch(directory, mark, reports, left) if rows is not None or kept else None
        keeps = batch is not None and self._keeps(batch, kept)
        if batch is not None and keeps and kept and not self.kept.goes_on(mark.batch - 1):
            self.kept.begin(mark.batch - 1, self._sending(batch.left(batch.heard, kept), kept, held))
        meanwhile = None if keeps else self.kept.end()
        if batch is not None and meanwhile is not None:
            kept, held = meanwhile.unsent, meanwhile.held
            batch = batch.after(meanwhile, kept)
        unsent = {} if keeps else by_namespace(kept)
        task = None
        if batch is not None and (rows is not None or unsent):
            task = self._task(directory, batch, unsent, batch_ms, held, keeps=keeps)
        answers = [] if task is None else self._send(rows, task, unsent)
        admitted = sum(int(report.admitted[:, Dimension.MESSAGES].sum()) for report in reports)
        taken = [sum(answer[name] for answer in answers) for name in ("rows", "resumed")]
        due = [admitted, 0 if keeps else count_rows(kept)]
        if taken != due:
            raise SourceChangedError(
                f"the admitted rows of batch {mark.batch}",
                f"{admitted} rows were admitted, and {taken[0]} were taken to be sent; of {due[1]} unsent rows, "
                f"{taken[1]} were",
                "start again: the batch is sent again, with the same keys",
            )
        meanwhile = self.kept.end(hands_over=True) if keeps else meanwhile
        tables = [] if meanwhile is None or not keeps else list(meanwhile.unsent)
        tables += [bytes(table) for answer in answers for table in answer["unsent"]]
        held = held_in(answers) if meanwhile is None or not keeps else meanwhile.held
        told = told_in(answers) if batch is None else batch.told_with(told_in(answers), meanwhile)
        if batch is not None and keeps:
            told = batch.told_of_kept(told, tables)
        self.closed.update(_closed_by(told))
        write_told(directory, mark.batch, told)
        write_unsent(directory, mark.batch, batch_ms, UnsentCalls(self.target, count_rows(tables), tables, held))
        forget_unsent(directory, batch=mark.batch, batches_kept=self.epochs.batches_kept)
        if is_metered(directory, reports):
            used_ns = sum(answer["used_ns"] for answer in answers) + (0 if meanwhile is None else meanwhile.used_ns)
            charge_sink(directory, mark.batch, reports, used_ns)
        given_up = [bytes(table) for answer in answers for table in answer["given_up"]]
        if task is not None and task.may_give_up:  # before the dead letters are written
            keys = [key for answer in answers for key in answer["given_up_keys"]]
            note_given_up(directory, mark.batch, batch_ms, keys)
        if batch is not None and keeps and tables:
            heard, in_flight = batch.heard, NONE_IN_FLIGHT
            if meanwhile is not None:
                heard, in_flight = {**heard, **meanwhile.heard}, meanwhile.in_flight
            self.kept.begin(mark.batch, self._sending(batch.left(heard, tables), tables, held, in_flight))
        return given_up_rows(given_up, self.schema)

    def _batch(
        self, directory: Directory, mark: BatchMark, reports: Sequence[UsageReport], left: UnsentCalls
    ) -> BatchSending:
        """Return what a batch has to send, with what is left of the batch before."""
        epoch = self.epochs.load(epoch_of(directory, mark.batch))
        policy = self.epochs.policy(epoch)
        if not self.closed and epoch.destinations is not None:
            # An earlier attempt at this batch may have been told, and not have come to its end.
            self.closed.update(zip(group_names(policy), epoch.destinations.closed_until_ms.tolist(), strict=True))
            for batch in range(max(0, mark.batch - 1), mark.batch + 1):
                self.closed.update(_closed_by(read_told(directory, batch)))
        if left.target != self.target:  # what others asked for says nothing of this one
            self.closed.update(dict.fromkeys(group_names(policy), 0))
        return BatchSending.of(epoch, policy, mark, reports, left.tables, self.closed, now_ms=self.clock_ms())

    def _keeps(self, batch: BatchSending, kept: Sequence[bytes]) -> bool:
        """Return whether the driver sends a batch's rows for destinations, and those that earlier ones left unsent.

        It is one process: where much is to be sent the tasks do it. And it sends what may wait: not what is given up,
        or goes to no destination since the policy changed.
        """
        most = sum(each.ceiling_micro_per_ms for each in batch.destinations.values())
        is_little = 0 < most <= _MOST_MICRO_PER_MS
        may_wait = all(name in batch.destination_of for name in rows_by_namespace(kept)) and not batch.may_give_up
        return self.interval_ms is not None and is_little and may_wait

    def _task(
        self,
        directory: Directory,
        batch: BatchSending,
        unsent: Mapping[str, Sequence[bytes]],
        batch_ms: int,
        held: Mapping[str, Held],
        *,
        keeps: bool,
    ) -> PacedTask:
        """Return the task that sends a part of a batch, with the unsent calls of the namespaces that the batch has."""
        task = PacedTask(
            self.send, batch.name, batch.costs, self._window_ns(), batch.others_ns, self.options, batch.destinations,
            batch.destination_of, {name: tables for name, tables in unsent.items() if name in batch.moved},
            unsent_costs=batch.unsent_costs, held=held, keeps=keeps,
        )  # fmt: skip
        given_up = noted_given_up(directory, batch.name.batch, batch_ms) if task.may_give_up else None
        return replace(task, given_up=given_up)

    def _send(
        self, rows: Callable[[], DataFrame] | None, task: PacedTask, unsent: Mapping[str, Sequence[bytes]]
    ) -> list[Row]:
        """Send, and return what the tasks say."""
        alone = [table for name, tables in unsent.items() if name not in task.unsent for table in tables]
        sending = None
        if rows is not None:
            helpers = [self.namespace.cast("string").alias(NAMESPACE)]
            if any(cost.byte_ps for cost in task.costs.values()):
                helpers.append(F.coalesce(self.size.try_cast("bigint"), F.lit(0)).alias(SIZE))
            given = rows()
            chosen = given.select(*to_carried(given.schema), *helpers).coalesce(max(1, self.tasks - bool(alone)))
            sending = chosen.mapInArrow(task, SENT_DDL)
        if alone:
            spark = SparkSession.active()
            resuming = spark.range(0, 1, 1, 1).mapInArrow(replace(task, unsent={}, alone=alone), SENT_DDL)
            sending = resuming if sending is None else resuming.union(sending)
        return [] if sending is None else sending.collect()

    def _sending(
        self,
        batch: BatchSending,
        tables: Sequence[bytes],
        held: Mapping[str, Held],
        in_flight: InFlight = NONE_IN_FLIGHT,
    ) -> Sending:
        """Return what sends kept calls from the driver, of which some may be on their way."""
        task = PacedTask(
            self.send, batch.name, {}, _NO_END_NS, 0, self.options, batch.destinations, batch.destination_of,
            unsent_costs=batch.unsent_costs, held=held, alone=tables,
        )  # fmt: skip

        def send(stop: Stop, tell: Callable[[SentMeanwhile], None]) -> None:
            began_ns = time.thread_time_ns()

            def stopped(sent: Sent) -> None:
                heard = {name: each.after(sent.told[name]) for name, each in task.destinations.items()}
                used_ns = time.thread_time_ns() - began_ns
                tell(SentMeanwhile(
                    tables_of(sent.unsent), sent.told, {**batch.heard, **heard}, used_ns, sent.held, sent.in_flight
                ))  # fmt: skip

            task.sent(task.left_flows(), stop, in_flight, stopped)

        return send

    def _window_ns(self) -> int:
        """Return the time until the next batch: Spark starts one at each multiple of the interval."""
        if self.interval_ms is None:
            return 0
        return (self.interval_ms - self.clock_ms() % self.interval_ms) * _NS_PER_MS


def _closed_by(told: Mapping[str, Told]) -> dict[str, int]:
    return {name: each.closed_until_ms for name, each in told.items()}


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


def checkpoint_of(control: Directory) -> Directory:
    """Return the checkpoint in which a control directory is."""
    return Directory(control.location.rstrip("/").rpartition("/")[0])


def unsent_before(control: Directory, checkpoint: Directory, batch: int) -> UnsentCalls | None:
    """Return what the batch before a batch left unsent.

    Raises
    ------
    EpochMissingError
        If the offsets of the batch before are gone.
    """
    return read_unsent(control, batch - 1, time_of(checkpoint, batch - 1)) if batch else None


def time_of(checkpoint: Directory, batch: int) -> int:
    """Return the time of a batch by Spark's log.

    Raises
    ------
    EpochMissingError
        If its offsets are gone.
    """
    found = batch_time_ms(checkpoint, batch)
    if found is None:
        raise EpochMissingError(-1, checkpoint.path(f"offsets/{batch}"))
    return found


def epoch_of(directory: Directory, batch: int) -> EpochName:
    """Return the name of the epoch that a batch's offsets name.

    Raises
    ------
    EpochMissingError
        If the offsets are gone.
    """
    checkpoint = checkpoint_of(directory)
    found = logged_epoch(checkpoint, batch)
    if found is None:
        raise EpochMissingError(-1, checkpoint.path(f"offsets/{batch}"))
    return found
