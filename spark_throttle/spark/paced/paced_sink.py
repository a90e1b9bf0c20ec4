"""The paced sink on the driver: for each batch, how fast its namespaces may go, and until when they have time.

How fast is a function of the batch's reports and of its epoch, which Spark's offset log names: so it is the same when
the batch is run again. Until when is read from the wall clock, by which Spark starts batches at multiples of the
trigger's interval. No key and no call depends on it.

The batch ends when all its rows were sent. Then the dead letters, the usage and the feedback are written, and Spark
commits it: a crash before that sends the batch again, with the same keys.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.offset_log import batch_time_ms
from spark_throttle.checkpoint.told import write_told
from spark_throttle.checkpoint.unsent import (
    UnsentCalls,
    forget_unsent,
    note_given_up,
    noted_given_up,
    read_unsent,
    write_unsent,
)
from spark_throttle.control.epochs import EpochName, Epochs, logged_epoch
from spark_throttle.core.codec import Epoch
from spark_throttle.core.lending.destinations import WHOLE, Told, group_names
from spark_throttle.core.names.matching import match
from spark_throttle.core.quota import CompiledPolicy, Dimension
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import EpochMissingError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.columns.payload_columns import to_carried
from spark_throttle.spark.metering.sink_meter import charge_sink, is_metered
from spark_throttle.spark.paced.given_up import given_up_rows
from spark_throttle.spark.paced.paced_task import SENT_DDL, BatchDestination, PacedTask, SendOptions
from spark_throttle.spark.paced.row_costs import RowCost, row_costs
from spark_throttle.spark.paced.sending import BatchName, OpenedPerTask, Send
from spark_throttle.spark.paced.unsent_calls import by_namespace, count_rows
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE

_NS_PER_MS = 1_000_000
_PS_PER_NS = 1_000
_NS_MILLI: Final = 10**12 * 100 // 108
"""Nanoseconds in which a rate of one micro-token per millisecond adds a token, by the haste of `calls`."""


def _wall_ms() -> int:
    return time.time_ns() // _NS_PER_MS  # noqa: TID251 - Spark's triggers go by it, and no decision does


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

    clock_ms: Callable[[], int] = _wall_ms

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
        left = unsent_before(directory, checkpoint, mark.batch)
        resumed = 0 if left is None else left.messages
        unsent = {} if left is None else by_namespace(left.tables)
        task = None if rows is None and not unsent else self._task(directory, mark, reports, unsent, batch_ms)
        answers = [] if task is None else self._send(rows, task, unsent)
        admitted = sum(int(report.admitted[:, Dimension.MESSAGES].sum()) for report in reports)
        taken = [sum(answer[name] for answer in answers) for name in ("rows", "resumed")]
        if taken != [admitted, resumed]:
            raise SourceChangedError(
                f"the admitted rows of batch {mark.batch}",
                f"{admitted} rows were admitted, and {taken[0]} were taken to be sent; of {resumed} unsent rows, "
                f"{taken[1]} were",
                "start again: the batch is sent again, with the same keys",
            )
        told: dict[str, list[Told]] = {}
        for answer in answers:
            for name, each in json.loads(answer["told"]).items():
                told.setdefault(name, []).append(Told(**each))
        write_told(directory, mark.batch, {name: Told.together(parts) for name, parts in sorted(told.items())})
        tables = [bytes(table) for answer in answers for table in answer["unsent"]]
        calls = UnsentCalls(self.target, count_rows(tables), tables)
        write_unsent(directory, mark.batch, batch_ms, calls)
        forget_unsent(directory, batch=mark.batch, batches_kept=self.epochs.batches_kept)
        if is_metered(directory, reports):
            charge_sink(directory, mark.batch, reports, sum(answer["used_ns"] for answer in answers))
        given_up = [bytes(table) for answer in answers for table in answer["given_up"]]
        if task is not None and task.may_give_up:  # before the dead letters are written
            keys = [key for answer in answers for key in answer["given_up_keys"]]
            note_given_up(directory, mark.batch, batch_ms, keys)
        return given_up_rows(given_up, self.schema)

    def _task(
        self,
        directory: Directory,
        mark: BatchMark,
        reports: Sequence[UsageReport],
        unsent: Mapping[str, Sequence[bytes]],
        batch_ms: int,
    ) -> PacedTask:
        """Return the task that sends a part of a batch, with the unsent calls of the namespaces that the batch has."""
        epoch = self.epochs.load(epoch_of(directory, mark.batch))
        policy = self.epochs.policy(epoch)
        costs = costs_of(epoch, policy, reports)
        moved = {name: int(count) for report in reports for name, count in _admitted(report)}
        messages = Counter(moved) + Counter({name: count_rows(tables) for name, tables in unsent.items()})
        destinations, destination_of = destinations_of(epoch, policy, messages)
        task = PacedTask(
            self.send, BatchName(mark.query, mark.batch, mark.identity), costs, self._window_ns(),
            longest_ns(reports, costs, destination_of), self.options, destinations, destination_of,
            {name: tables for name, tables in unsent.items() if name in moved},
        )  # fmt: skip
        return replace(task, given_up=noted_given_up(directory, mark.batch, batch_ms)) if task.may_give_up else task

    def _send(
        self, rows: Callable[[], DataFrame] | None, task: PacedTask, unsent: Mapping[str, Sequence[bytes]]
    ) -> list[Row]:
        """Send, and return what the tasks say."""
        alone = {name: tables for name, tables in unsent.items() if name not in task.unsent}
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
            resuming = spark.range(0, 1, 1, 1).mapInArrow(replace(task, unsent=alone, takes_all_unsent=True), SENT_DDL)
            sending = resuming if sending is None else resuming.union(sending)
        return [] if sending is None else sending.collect()

    def _window_ns(self) -> int:
        """Return the time until the next batch: Spark starts one at each multiple of the interval."""
        if self.interval_ms is None:
            return 0
        return (self.interval_ms - self.clock_ms() % self.interval_ms) * _NS_PER_MS


def costs_of(epoch: Epoch, policy: CompiledPolicy, reports: Sequence[UsageReport]) -> dict[str, RowCost]:
    """Return the cost of a row of each namespace of which a batch admitted rows."""
    moved = [report.admitted[:, Dimension.MESSAGES] > 0 for report in reports]
    names = pa.chunked_array(
        [report.names.filter(pa.array(is_moved)) for report, is_moved in zip(reports, moved, strict=True)], pa.string()
    ).combine_chunks()
    admitted = [report.admitted[is_moved] for report, is_moved in zip(reports, moved, strict=True)]
    return row_costs(names, np.concatenate([np.zeros((0, 2), np.int64), *admitted]), policy, epoch.share_in_force)


def longest_ns(reports: Sequence[UsageReport], costs: Mapping[str, RowCost], destination_of: Mapping[str, str]) -> int:
    """Return the longest time for which a namespace without a destination sends."""
    admitted = (
        (costs[name], int(messages), int(size_bytes))
        for report in reports
        for name, (messages, size_bytes) in zip(report.names.to_pylist(), report.admitted.tolist(), strict=True)
        if messages and name not in destination_of
    )
    times_ps = (max(cost.message_ps * messages, cost.byte_ps * size_bytes) for cost, messages, size_bytes in admitted)
    return max(times_ps, default=0) // _PS_PER_NS


def destinations_of(
    epoch: Epoch, policy: CompiledPolicy, messages: Mapping[str, int]
) -> tuple[dict[str, BatchDestination], dict[str, str]]:
    """Return the destinations of a batch, and the destination of each namespace that has one.

    Parameters
    ----------
    messages
        How many rows there are to send, by namespace.
    """
    rates, destinations = epoch.destinations, policy.destinations
    if rates is None or destinations is None or not messages:
        return {}, {}
    names = group_names(policy)
    first_group = 1 + len(policy.tenant_names)
    at_group = {int(scope) - first_group: at for at, scope in enumerate(rates.scope)}
    groups = match(pa.array(list(messages), pa.string()), policy).group.tolist()
    destination_of = {
        name: names[at_group[group]] for name, group in zip(messages, groups, strict=True) if group in at_group
    }
    rows = Counter[str]()
    for name, destination in destination_of.items():
        rows[destination] += messages[name]
    found = {}
    for at, name in enumerate(names):
        if rows[name]:
            floor = int(destinations.floor_micro_per_ms[at])
            ceiling = int(policy.shared.rate_micro_per_ms[rates.scope[at], Dimension.MESSAGES])
            rate = rates.sending_micro_per_ms(at, floor=floor, ceiling=ceiling)
            floor_part = floor * WHOLE // rate
            found[name] = BatchDestination(
                _NS_MILLI // rate, rows[name], max(1, floor_part), bool(rates.is_open[at]),
                bool(destinations.gives_up[at]),
            )  # fmt: skip
    return found, destination_of


def _admitted(report: UsageReport) -> Iterator[tuple[str, int]]:
    counts = report.admitted[:, Dimension.MESSAGES]
    yield from ((name, count) for name, count in zip(report.names.to_pylist(), counts.tolist(), strict=True) if count)


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
