"""The paced sink plans each batch on the driver, and tasks send their parts of it over the time until the next batch.

How fast namespaces may go is a function of the batch's report and of its epoch, which Spark's offset log names: so it
is the same when the batch is run again. Until when they have time is read from the wall clock, by which Spark starts
batches at multiples of the trigger's interval. No key and no call depends on it.

The rows of a namespace are in one task, in their order. They are all read before the first is sent: a task that reads
as it sends would send its namespaces one after the other. Calls that are made again come first, under their keys.

The batch ends when all its calls have ended. Rows for a destination of the policy that were not taken until then go
back to their queues, by the record of the batch (`checkpoint.delivery`), which is written before the dead letters, the
usage and the feedback. A crash before it sends the batch again, with the same keys; after it, nothing is sent again.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.delivery import Delivery, read_delivery, write_delivery
from spark_throttle.control.epochs import Epochs
from spark_throttle.core.quota import Int64s
from spark_throttle.core.shares.destinations import Told
from spark_throttle.core.undelivered import UndeliveredCall
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.columns.payload_columns import to_carried
from spark_throttle.spark.metering.charging import charge_sink, is_metered
from spark_throttle.spark.paced.batch_sending import BatchDestination, BatchSending, RowCost, epoch_of
from spark_throttle.spark.paced.calls import HASTE, IdempotencyKey, calls_of, sorted_by_namespace
from spark_throttle.spark.paced.gate import Terms, wall_ms
from spark_throttle.spark.paced.sending import (
    BatchName,
    Flow,
    Held,
    OpenedPerTask,
    Parcel,
    Send,
    Sent,
    parcels_of,
    send_flows,
)
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, UNITS
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

_NS_PER_MS: Final = 1_000_000

SENT_DDL: Final = "rows long, told string, undelivered string, held string, used_ns long"
_SENT: Final = pa.schema([
    ("rows", pa.int64()), ("told", pa.string()), ("undelivered", pa.string()), ("held", pa.string()),
    ("used_ns", pa.int64()),
])  # fmt: skip
_FREE: Final = RowCost(0, 0, 0)
_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class PacedSink:
    """What sends the admitted rows of each batch."""

    send: Send | OpenedPerTask
    options: SendOptions
    namespace: Column
    size: Column
    units: Column | None
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
        costs = task.costs.values()
        for name, column, is_limited in (
            (SIZE, self.size, any(cost.byte_ps for cost in costs)),
            (UNITS, self.units, any(cost.unit_ps for cost in costs)),
        ):
            if is_limited and column is not None:
                helpers.append(F.coalesce(column.try_cast("bigint"), F.lit(0)).alias(name))
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


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How calls are made; `ThrottledStreamWriter.paced` documents them."""

    concurrency: int = 16
    rows_per_call: int = 100
    in_order: bool = True
    patience_seconds: float = 60.0


@dataclass(frozen=True, slots=True)
class PacedTask:
    """A function that `mapInArrow` runs on the executors, once per task.

    It yields the number of its rows, what destinations said, what was not delivered (`core.undelivered`), in whose
    names that was refused, and the CPU time that its process used meanwhile.
    """

    send: Send | OpenedPerTask
    name: BatchName
    costs: dict[str, RowCost]
    """The cost of a row of the batch, by namespace."""

    window_ns: int
    others_ns: int
    """The time that the batch takes in any case: the longest that a namespace without a destination sends."""

    options: SendOptions
    destinations: Mapping[str, BatchDestination] = field(default_factory=dict)
    destination_of: Mapping[str, str] = field(default_factory=dict)
    """By namespace."""

    again: Mapping[str, Sequence[UndeliveredCall]] = field(default_factory=dict)
    """The calls that are made again, by namespace: its first rows."""

    held: Mapping[str, Held] = field(default_factory=dict)
    """In whose names the last batch was refused, if not in the destinations', by namespace."""

    is_again: bool = False
    """Whether an earlier attempt at the batch may have sent any of it."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows of all batches."""
        set_loaded_aside()
        given = [batch for batch in batches if batch.num_rows]
        flows, began_ns = self.flows(given), time.process_time_ns()
        sent = self.sent(flows)
        answer = {
            "rows": sum(batch.num_rows for batch in given),
            "told": json.dumps({name: asdict(each) for name, each in sent.told.items()}),
            "undelivered": json.dumps(self.undelivered(sent)),
            "held": json.dumps({name: asdict(each) for name, each in sent.held.items()}),
            "used_ns": time.process_time_ns() - began_ns,
        }
        yield pa.RecordBatch.from_pylist([answer], schema=_SENT)

    def sent(self, flows: list[Flow]) -> Sent:
        """Send flows as `send_flows` does, and return what became of them.

        Each batch lets another namespace begin: so one whose calls are never taken does not always ask for all.
        """
        options = self.options
        return asyncio.run(
            send_flows(
                flows,
                self.send,
                concurrency=options.concurrency,
                in_order=options.in_order,
                patience_seconds=options.patience_seconds,
                terms=self.terms(flows),
                began_ms=wall_ms(),
                first=self.name.batch % max(1, len(flows)),
            )
        )

    def undelivered(self, sent: Sent) -> list[UndeliveredCall]:
        """Return what was not delivered: calls that may have been taken with their keys, other rows together."""
        found = list[UndeliveredCall]()
        for parcel in sent.undelivered:
            key, rows, last = parcel.key, parcel.rows.num_rows, found[-1] if found else None
            if parcel.may_be_taken or self.is_again:
                found.append(UndeliveredCall(key.namespace, parcel.place, rows, key.batch, key.identity, key.place))
            elif last is not None and last.key_batch < 0 and last.ends_at(key.namespace, parcel.place):
                found[-1] = last._replace(rows=last.rows + rows)
            else:
                found.append(UndeliveredCall(key.namespace, parcel.place, rows))
        return found

    def flows(self, batches: list[pa.RecordBatch]) -> list[Flow]:
        """Return the rows by namespace, each namespace's in their order."""
        if not batches:
            return []
        table, namespaces = sorted_by_namespace(pa.Table.from_batches(batches).combine_chunks())
        helpers = [name for name in (NAMESPACE, SIZE, UNITS) if name in table.column_names]
        rows, nothing = table.drop_columns(helpers), np.zeros(table.num_rows, dtype=np.int64)
        sizes, units = (table.column(name).to_numpy() if name in helpers else nothing for name in (SIZE, UNITS))
        found = []
        for namespace, start, end in namespaces:
            costs_ns = self.costs.get(namespace, _FREE).of_rows_ns(sizes[start:end], units[start:end])
            own = rows.slice(start, end - start)
            parcels = self._again(namespace, own, costs_ns)
            first = sum(parcel.rows.num_rows for parcel in parcels)
            calls = calls_of(costs_ns[first:], self.window_ns, self.options.rows_per_call)
            parcels += parcels_of(namespace, own, calls, self.name, first)
            found.append(Flow(namespace, parcels, self.destination_of.get(namespace), self.held.get(namespace)))
        return found

    def terms(self, flows: list[Flow]) -> dict[str, Terms]:
        """Return how this task sends to its destinations: at its part of their rates, by what it has to send."""
        rows, seconds = Counter[str](), max(self.window_ns, self.others_ns, _NS) / _NS
        for flow in flows:
            if not self.window_ns:
                seconds = max(seconds, sum(parcel.takes_ns for parcel in flow.parcels) / _NS)
            if flow.destination is not None:
                rows[flow.destination] += sum(parcel.rows.num_rows for parcel in flow.parcels)
        return {
            name: self.destinations[name].terms(count, seconds, is_timed=self.window_ns > 0)
            for name, count in rows.items()
        }

    def _again(self, namespace: str, rows: pa.Table, costs_ns: Int64s) -> list[Parcel]:
        """Return the calls of a namespace that are made again."""
        found, place = list[Parcel](), 0
        for call in self.again.get(namespace, ()):
            end = place + call.rows
            key = IdempotencyKey(self.name.query, call.key_batch, call.key_identity, namespace, call.key_place)
            takes_ns = int(costs_ns[place:end].sum()) * HASTE[0] // HASTE[1]
            found.append(Parcel(rows.slice(place, call.rows), key, takes_ns, place, may_be_taken=True))
            place = end
        return found
