"""A task of the paced sink: it reads its part of a batch, and sends it over the time until the next batch.

The rows of a namespace are in one task, in their order. They are all read before the first is sent: a task that reads
as it sends would send its namespaces one after the other. Calls that are made again come first, under their keys.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Int64s
from spark_throttle.core.undelivered import UndeliveredCall
from spark_throttle.spark.paced.batch_sending import BatchDestination, RowCost
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
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

SENT_DDL: Final = "rows long, told string, undelivered string, held string, used_ns long"
_SENT: Final = pa.schema([
    ("rows", pa.int64()), ("told", pa.string()), ("undelivered", pa.string()), ("held", pa.string()),
    ("used_ns", pa.int64()),
])  # fmt: skip
_FREE: Final = RowCost(0, 0)
_NS: Final = 1_000_000_000


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
        rows = table.drop_columns([name for name in (NAMESPACE, SIZE) if name in table.column_names])
        sizes = (
            table.column(SIZE).to_numpy() if SIZE in table.column_names else np.zeros(table.num_rows, dtype=np.int64)
        )
        found = []
        for namespace, start, end in namespaces:
            costs_ns = self.costs.get(namespace, _FREE).of_rows_ns(sizes[start:end])
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
