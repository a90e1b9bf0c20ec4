"""A task of the paced sink: it reads its part of a batch, and sends it over the time until the next batch.

The rows of a namespace are in one task, in their order. They are all read before the first is sent: a task that reads
as it sends would send its namespaces one after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.spark.paced.calls import calls_of
from spark_throttle.spark.paced.row_costs import RowCost
from spark_throttle.spark.paced.sending import BatchName, Flow, OpenedPerTask, Send, send_flows
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

SENT_DDL: Final = "sent long, used_ns long"
_FREE: Final = RowCost(0, 0)


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

    It yields the number of rows that it sent, and the CPU time that its process used meanwhile.
    """

    send: Send | OpenedPerTask
    name: BatchName
    costs: dict[str, RowCost]
    """The cost of a row, by namespace."""

    window_ns: int
    options: SendOptions

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows of all batches."""
        set_loaded_aside()
        flows = self.flows([batch for batch in batches if batch.num_rows])
        options, began_ns = self.options, time.process_time_ns()
        sent = asyncio.run(
            send_flows(
                flows,
                self.send,
                self.name,
                concurrency=options.concurrency,
                in_order=options.in_order,
                patience_seconds=options.patience_seconds,
            )
        )
        yield pa.RecordBatch.from_pydict({"sent": [sent], "used_ns": [time.process_time_ns() - began_ns]})

    def flows(self, batches: list[pa.RecordBatch]) -> list[Flow]:
        """Return the rows by namespace, each namespace's in their order."""
        if not batches:
            return []
        table = pa.Table.from_batches(batches).combine_chunks()
        coded = table.column(NAMESPACE).combine_chunks().dictionary_encode()
        codes = coded.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        table, ends = table.take(pa.array(order)), np.cumsum(np.bincount(codes))
        rows = table.drop_columns([name for name in (NAMESPACE, SIZE) if name in table.column_names])
        sizes = table.column(SIZE).to_numpy() if SIZE in table.column_names else np.zeros(len(order), dtype=np.int64)
        found = []
        for namespace, start, end in zip(coded.dictionary.to_pylist(), [0, *ends], ends, strict=False):
            costs_ns = self.costs.get(namespace, _FREE).of_rows_ns(sizes[start:end])
            calls = calls_of(costs_ns, self.window_ns, self.options.rows_per_call)
            found.append(Flow(namespace, rows.slice(start, end - start), calls))
        return found
