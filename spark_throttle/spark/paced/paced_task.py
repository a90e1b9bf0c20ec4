"""A task of the paced sink: it reads its part of a batch, and sends it over the time until the next batch.

The rows of a namespace are in one task, in their order. They are all read before the first is sent: a task that reads
as it sends would send its namespaces one after the other. Calls that earlier batches left unsent come first.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import compress
from operator import not_
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.checkpoint.unsent import Held
from spark_throttle.core.shares.destinations import Told
from spark_throttle.spark.paced.batch_sending import BatchDestination
from spark_throttle.spark.paced.calls import HASTE, calls_of, sorted_by_namespace
from spark_throttle.spark.paced.gate import Terms
from spark_throttle.spark.paced.in_flight import NONE_IN_FLIGHT, InFlight, Stop
from spark_throttle.spark.paced.retry_after import wall_ms
from spark_throttle.spark.paced.row_costs import RowCost
from spark_throttle.spark.paced.sending import (
    BatchName,
    Flow,
    OpenedPerTask,
    Parcel,
    Send,
    Sent,
    parcels_of,
    send_flows,
)
from spark_throttle.spark.paced.unsent_calls import given_up_tables, parcels_of_table, tables_of
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE
from spark_throttle.spark.rows.worker_heap import set_loaded_aside

SENT_DDL: Final = (
    "rows long, resumed long, told string, unsent array<binary>, held string, given_up array<binary>, "
    "given_up_keys array<string>, used_ns long"
)
_SENT: Final = pa.schema([
    ("rows", pa.int64()), ("resumed", pa.int64()), ("told", pa.string()), ("unsent", pa.list_(pa.binary())),
    ("held", pa.string()), ("given_up", pa.list_(pa.binary())), ("given_up_keys", pa.list_(pa.string())),
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

    It yields the numbers of rows that it took from the batch and of earlier ones, what destinations said, the calls
    that are unsent and those that are given up, and the CPU time that its process used meanwhile.
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

    unsent: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """Calls of earlier batches (`unsent_calls`), by namespace; a task has those of the namespaces that it has."""

    given_up: frozenset[str] | None = None
    """The keys of the calls that an earlier attempt at the batch gave up: they are not made, and no other is given up.

    `None` where no attempt came so far.
    """

    unsent_costs: Mapping[str, RowCost] = field(default_factory=dict)
    """The cost of a row of these calls, by namespace."""

    held: Mapping[str, Held] = field(default_factory=dict)
    """In whose names earlier batches were refused, if not in the destinations', by namespace."""

    alone: Sequence[bytes] | None = None
    """Other calls of earlier batches, if the task takes these in place of rows of the batch."""

    keeps: bool = False
    """Whether calls for destinations are returned as unsent, for the driver to send."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the rows of all batches."""
        set_loaded_aside()
        given = [batch for batch in batches if batch.num_rows]
        flows = self.flows(given) if self.alone is None else self.left_flows()
        count = sum(parcel.rows.num_rows for flow in flows for parcel in flow.parcels)
        flows, spared = self._spared(flows)
        kept = [parcel for flow in flows if self._is_kept(flow) for parcel in flow.parcels]
        began_ns = time.process_time_ns()
        sent = self.sent([flow for flow in flows if not self._is_kept(flow)])
        rows = sum(batch.num_rows for batch in given) if self.alone is None else 0
        closed = {name for name, each in sent.told.items() if self._gives_up(name, each)}
        is_over = [self.destination_of.get(parcel.key.namespace) in closed for parcel in sent.unsent]
        given_up = [*spared, *compress(sent.unsent, is_over)]
        told = {
            name: asdict(replace(each, unsent_messages=0) if name in closed else each)
            for name, each in sent.told.items()
        }
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "rows": rows,
                    "resumed": count - rows,
                    "told": json.dumps(told),
                    "unsent": tables_of([*kept, *compress(sent.unsent, map(not_, is_over))]),
                    "held": json.dumps({name: asdict(each) for name, each in sent.held.items()}),
                    "given_up": given_up_tables(given_up, self.destination_of),
                    "given_up_keys": [parcel.key.text for parcel in given_up],
                    "used_ns": time.process_time_ns() - began_ns,
                }
            ],
            schema=_SENT,
        )

    def sent(
        self,
        flows: list[Flow],
        stop: Stop | None = None,
        in_flight: InFlight = NONE_IN_FLIGHT,
        stopped: Callable[[Sent], None] | None = None,
    ) -> Sent:
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
                stop=stop,
                in_flight=in_flight,
                stopped=stopped,
            )
        )

    def _is_kept(self, flow: Flow) -> bool:
        return self.keeps and flow.destination is not None

    @property
    def may_give_up(self) -> bool:
        """Whether the batch decides which calls are given up."""
        closed = (each.gives_up and each.is_unavailable for each in self.destinations.values())
        return self.given_up is None and any(closed)

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
            calls = calls_of(costs_ns, self.window_ns, self.options.rows_per_call)
            parcels = parcels_of(namespace, rows.slice(start, end - start), calls, self.name)
            found.append(self._flow(namespace, [*self._left(namespace), *parcels]))
        return found

    def left_flows(self) -> list[Flow]:
        """Return the calls of earlier batches that the task takes alone."""
        found, takes_ns = dict[str, list[Parcel]](), dict[str, int]()
        for parcel in (parcel for table in self.alone or () for parcel in parcels_of_table(table, 1)):
            name = parcel.key.namespace
            if name not in found:
                found[name], takes_ns[name] = [], self._row_takes_ns(name)
            found[name].append(replace(parcel, takes_ns=parcel.takes_ns * takes_ns[name]))
        return [self._flow(name, parcels) for name, parcels in found.items()]

    def terms(self, flows: list[Flow]) -> dict[str, Terms]:
        """Return how this task sends to its destinations: at its part of their rates, by what it has to send."""
        rows, seconds = Counter[str](), max(self.window_ns, self.others_ns, _NS) / _NS
        for flow in flows:
            if not self.window_ns:
                own = [parcel for parcel in flow.parcels if parcel.key.batch == self.name.batch]
                seconds = max(seconds, sum(parcel.takes_ns for parcel in own) / _NS)
            if flow.destination is not None:
                rows[flow.destination] += sum(parcel.rows.num_rows for parcel in flow.parcels)
        return {
            name: self.destinations[name].terms(count, seconds, is_timed=self.window_ns > 0)
            for name, count in rows.items()
        }

    def _gives_up(self, name: str, told: Told) -> bool:
        """Return whether what a destination did not take is given up: it is unavailable, and says so."""
        destination = self.destinations[name]
        is_closed = destination.gives_up and destination.is_unavailable and self.given_up is None
        return is_closed and bool(told.refused or told.closed_until_ms) and not told.accepted

    def _spared(self, flows: list[Flow]) -> tuple[list[Flow], list[Parcel]]:
        """Return the flows without the calls that an earlier attempt gave up, and these calls."""
        if not self.given_up:
            return flows, []
        spared = [parcel for flow in flows for parcel in flow.parcels if parcel.key.text in self.given_up]
        kept = [
            replace(flow, parcels=[parcel for parcel in flow.parcels if parcel.key.text not in self.given_up])
            for flow in flows
        ]
        return [flow for flow in kept if flow.parcels], spared

    def _flow(self, namespace: str, parcels: list[Parcel]) -> Flow:
        return Flow(namespace, parcels, self.destination_of.get(namespace), self.held.get(namespace))

    def _left(self, namespace: str) -> list[Parcel]:
        takes_ns = self._row_takes_ns(namespace)
        return [parcel for table in self.unsent.get(namespace, ()) for parcel in parcels_of_table(table, takes_ns)]

    def _row_takes_ns(self, namespace: str) -> int:
        """Return the time that a row of an unsent call takes."""
        cost_ns = int(self.unsent_costs.get(namespace, _FREE).of_rows_ns(np.zeros(1, dtype=np.int64))[0])
        return cost_ns * HASTE[0] // HASTE[1]
