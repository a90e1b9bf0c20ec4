"""A function for `foreachBatch`, and what becomes of a batch to which one of its destinations says "not now".

A function that raises `Backpressure` says that it has taken no row of its call. What follows depends on whether it had
rows for a destination of the policy that it names, or for any if it names none:

- **It does.** It is called again at once, for the same batch, without the rows for these destinations. They are kept in
  the checkpoint as unsent calls (`checkpoint.unsent`), and offered before other rows by the next batch, which offers
  fewer (`offers`). So nobody else waits.
- **It does not.** Nothing can be set aside. It is called again with all rows, after the time that it asked for, until
  its patience is over. Everybody waits.

Law: each call of a batch has the same rows as the same call of an attempt before a crash. How many rows are offered
depends on what this process was told, so the offers are noted before a call that has not all of the batch's rows
(`checkpoint.offered`), and a later attempt keeps to them. A function that writes by the batch's number, and asks its
destination only for batches that it does not have, so takes every row exactly once.

Surprises: rows that are set aside pass through the driver, at most the burst of their destination and one batch. While
nothing is refused, no row does.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere
from pyspark.sql.types import StructType

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.offered import note_offered, noted_offered
from spark_throttle.checkpoint.told import write_told
from spark_throttle.checkpoint.unsent import UnsentCalls, forget_unsent, read_unsent, write_unsent
from spark_throttle.control.epochs import Epochs
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.shares.destinations import group_names
from spark_throttle.core.usage import UsageReport, admitted_messages
from spark_throttle.errors import Backpressure, DeliveryError, SourceChangedError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.batch_functions.offers import GIVEN_UP, cut, offered_messages, told_of_offer
from spark_throttle.spark.columns.payload_columns import from_carried, to_carried
from spark_throttle.spark.metering.decided_policy import decided_policy
from spark_throttle.spark.metering.metered import Metered
from spark_throttle.spark.metering.running_batch import running_batch
from spark_throttle.spark.metering.task_refusal import take_refusal
from spark_throttle.spark.paced.batch_sending import BatchDestination, destinations_of, heard_of
from spark_throttle.spark.paced.calls import sorted_by_namespace
from spark_throttle.spark.paced.idempotency import IdempotencyKey
from spark_throttle.spark.paced.paced_sink import checkpoint_of, epoch_of, time_of
from spark_throttle.spark.paced.retry_after import (
    FIRST_PAUSE_SECONDS,
    LONGEST_ASKED_SECONDS,
    LONGEST_PAUSE_SECONDS,
    wall_ms,
)
from spark_throttle.spark.paced.sending import Parcel
from spark_throttle.spark.paced.unsent_calls import (
    count_rows,
    given_up_rows,
    given_up_tables,
    parcels_of_table,
    rows_of,
    tables_of,
)
from spark_throttle.spark.rows.frames import NAMESPACE, decode, encode_whole
from spark_throttle.spark.sinks.batch_sink import BatchFunction

_RAW: Final = "__throttle_namespace_bytes"


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


@dataclass(slots=True)
class FunctionSink:
    """What calls a function for each batch; on the driver, in one process for as long as the query runs."""

    function: BatchFunction
    target: str
    """The function, as text."""

    schema: StructType
    """Of the user's rows."""

    namespace: Column
    epochs: Epochs
    """The query's epochs. The control plane has its own, in another process."""

    patience_seconds: float
    clock_seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = _wait
    refusals: Counter[str] = field(default_factory=Counter)
    """The batches that a destination refused since it accepted one."""

    clock_ms: Callable[[], int] = wall_ms
    closed: dict[str, int] = field(default_factory=dict)
    """Until when destinations asked not to be called, by the wall clock, as far as this process was told."""

    nothing_left_of: int = -2
    """The batch that left no row unsent, if this process knows one."""

    def write(
        self,
        rows: Callable[[], DataFrame] | None,
        directory: Directory,
        mark: BatchMark,
        reports: Sequence[UsageReport],
    ) -> DataFrame | None:
        """Call the function with a batch's admitted rows; return those that are given up.

        Raises
        ------
        DeliveryError
            If the function refuses rows that cannot be set aside for longer than its patience.
        SourceChangedError
            If other rows were set aside than the batch admitted.
        """
        assert rows is not None  # noqa: S101 - a function is called for every batch
        batch = None
        if self.nothing_left_of != mark.batch - 1 or _has_destinations(directory, reports):
            batch = self._batch(rows, directory, mark, reports)
        if batch is None:
            self._take(rows(), set(), mark, directory, reports)
            self.nothing_left_of = mark.batch
            return None
        while True:
            asked = {name for name, each in batch.destinations.items() if batch.offered.get(name, each.rows) > 0}
            if batch.offered and batch.offered != batch.noted:
                note_offered(directory, mark.batch, batch.batch_ms, batch.offered)
            refused = self._take(batch.rows(), asked, mark, directory, reports)
            if not refused:
                break
            batch.set_aside(refused)
        return self._keep(batch, asked, directory, mark)

    def _batch(
        self, rows: Callable[[], DataFrame], directory: Directory, mark: BatchMark, reports: Sequence[UsageReport]
    ) -> _Batch | None:
        """Return a batch whose policy has destinations, or to which earlier batches left rows."""
        checkpoint = checkpoint_of(directory)
        before_ms = time_of(checkpoint, mark.batch - 1) if mark.batch else None
        left = read_unsent(directory, mark.batch - 1, before_ms)
        epoch = self.epochs.load(epoch_of(directory, mark.batch))
        if left is None and epoch.destinations is None:
            return None
        names, admitted = admitted_messages(reports)
        kept = [parcel for table in ([] if left is None else left.tables) for parcel in parcels_of_table(table, 0)]
        messages = Counter(dict(zip(shown(names).to_pylist(), admitted.tolist(), strict=True)))
        for parcel in kept:
            messages[parcel.key.namespace] += parcel.rows.num_rows
        policy = self.epochs.policy(epoch)
        if left is not None and left.target != self.target:  # what others asked for says nothing of this one
            self.closed |= dict.fromkeys(group_names(policy), 0)
        heard = heard_of(epoch, policy, self.closed, self.clock_ms())
        found, destination_of = destinations_of(epoch, policy, +messages, heard)
        destinations = {name: each for name, each in found.items() if each.rows}
        batch_ms = time_of(checkpoint, mark.batch)
        elapsed_ms = 0 if before_ms is None else batch_ms - before_ms
        batch = _Batch(
            rows(), self.schema, self.namespace, mark, batch_ms, elapsed_ms, names.filter(pa.array(admitted > 0)), kept,
            destinations, destination_of, noted_offered(directory, mark.batch, batch_ms),
        )  # fmt: skip
        batch.offered = dict(batch.noted) if batch.noted is not None else self._offers(batch)
        return batch

    def _offers(self, batch: _Batch) -> dict[str, int]:
        """Return how many rows are offered to the destinations that are not offered all."""
        offers = {
            name: offered_messages(each, self.refusals[name], batch.elapsed_ms)
            for name, each in batch.destinations.items()
        }
        return {name: offered for name, offered in offers.items() if offered < batch.destinations[name].rows}

    def _take(
        self,
        rows: DataFrame,
        asked: set[str],
        mark: BatchMark,
        directory: Directory,
        reports: Sequence[UsageReport],
    ) -> set[str]:
        """Call the function until it takes the rows, or destinations refuse that can be set aside; return these."""
        until, pause = self.clock_seconds() + self.patience_seconds, FIRST_PAUSE_SECONDS
        attempts = 0
        while (refusal := self._refusal(rows, mark, directory, reports)) is not None:
            attempts += 1
            asks_seconds = refusal.retry_after_seconds
            refused = asked if refusal.scope is None else {refusal.scope} & asked
            if asks_seconds is not None:
                self.closed |= dict.fromkeys(
                    refused, self.clock_ms() + round(1_000 * min(asks_seconds, LONGEST_ASKED_SECONDS))
                )
            if refused:
                return refused
            seconds = pause if asks_seconds is None else asks_seconds
            if self.clock_seconds() + seconds > until:
                key = f"{mark.query}/{mark.batch}"
                raise DeliveryError(self.target, key, _problem(refusal, asked), attempts) from refusal
            self.sleep(seconds)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return set()

    def _refusal(
        self, rows: DataFrame, mark: BatchMark, directory: Directory, reports: Sequence[UsageReport]
    ) -> Backpressure | None:
        """Call the function; return what it or a metered function in a task of its said, `None` if it is done."""
        try:
            with running_batch(directory, mark.batch, reports):
                if isinstance(self.function, Metered):
                    self.function.of_batch(rows, mark.batch, directory)
                else:
                    self.function(rows, mark.batch)
        except Backpressure as refusal:
            return refusal
        except Exception:  # whatever Spark makes of a task that failed
            found = take_refusal(directory, mark.batch)
            if found is None:
                raise
            return found
        return None

    def _keep(self, batch: _Batch, asked: set[str], directory: Directory, mark: BatchMark) -> DataFrame | None:
        """Write what a batch leaves, and what its destinations said; return the rows that are given up."""
        told, left, given_up, now_ms = {}, list[Parcel](), list[Parcel](), self.clock_ms()
        for name, each in sorted(batch.destinations.items()):
            is_accepted = name in asked
            rest = batch.left(name)
            if not is_accepted and each.gives_up and each.is_unavailable and batch.noted is None:
                batch.offered[name] = GIVEN_UP
            is_given_up = batch.offered.get(name) == GIVEN_UP
            (given_up if is_given_up else left).extend(rest)
            closed_until_ms = 0 if is_accepted else self.closed.get(name, each.heard.closed_until_ms)
            self.closed[name] = closed_until_ms if closed_until_ms > now_ms else 0
            told[name] = told_of_offer(
                each, is_accepted=is_accepted, refusals=self.refusals[name], elapsed_ms=batch.elapsed_ms,
                left_messages=0 if is_given_up else sum(parcel.rows.num_rows for parcel in rest),
                closed_until_ms=self.closed[name],
            )  # fmt: skip
            self.refusals[name] = 0 if is_accepted else self.refusals[name] + 1
        if given_up:  # before the dead letters are written
            note_offered(directory, mark.batch, batch.batch_ms, batch.offered)
        tables = tables_of(left)
        write_told(directory, mark.batch, told)
        write_unsent(directory, mark.batch, batch.batch_ms, UnsentCalls(self.target, count_rows(tables), tables))
        forget_unsent(directory, batch=mark.batch, batches_kept=self.epochs.batches_kept)
        self.nothing_left_of = self.nothing_left_of if tables else mark.batch
        return given_up_rows(given_up_tables(given_up, batch.destination_of), self.schema)


@dataclass(slots=True)
class _Batch:
    """A batch with rows for destinations."""

    admitted_rows: DataFrame
    schema: StructType
    namespace: Column
    mark: BatchMark
    batch_ms: int
    elapsed_ms: int
    names: pa.StringArray
    """The namespaces of which the batch admits rows."""

    kept: list[Parcel]
    """The rows that earlier batches left."""

    destinations: Mapping[str, BatchDestination]
    """Those for which there are rows."""

    destination_of: Mapping[str, str]
    noted: Mapping[str, int] | None
    """What an earlier attempt offered, if it came so far as to offer less than all rows."""

    offered: dict[str, int] = field(default_factory=dict)
    """The number of rows that are offered to a destination; one that is not in it is offered all."""

    _admitted_parcels: dict[str, list[Parcel]] = field(default_factory=dict)
    """By destination, the batch's own rows for it, of those that were collected."""

    def set_aside(self, refused: set[str]) -> None:
        """Offer nothing to these destinations."""
        self.offered |= dict.fromkeys(refused, 0)

    def rows(self) -> DataFrame:
        """Return the rows that are offered: those that were left earlier, then the batch's own."""
        first = [parcel for parcel in self.kept if self._destination(parcel) not in self.offered]
        for name, messages in self.offered.items():
            first += cut(self._parcels(name), messages).offered
        rest = self.admitted_rows
        if self.offered:
            rest = rest.join(
                self._names_for(self.offered), self.namespace.cast("string").cast("binary") == F.col(_RAW), "left_anti"
            )
        if not first:
            return rest
        waited = rows_of(first, self.schema, rest.sparkSession)
        return from_carried(waited.union(rest.select(*to_carried(self.schema))), self.schema)

    def left(self, name: str) -> list[Parcel]:
        """Return the rows for a destination that are not offered."""
        return cut(self._parcels(name), self.offered[name]).left if name in self.offered else []

    def _parcels(self, name: str) -> list[Parcel]:
        """Return all rows for a destination, in the order in which they were admitted."""
        own = self._admitted_parcels
        if name not in own:
            missing = [each for each in self.offered if each not in own]
            new = self._collected(missing)
            own |= {each: [parcel for parcel in new if self._destination(parcel) == each] for each in missing}
        return [parcel for parcel in self.kept if self._destination(parcel) == name] + own[name]

    def _collected(self, names: Sequence[str]) -> list[Parcel]:
        """Return the batch's own rows for destinations, those of a namespace as one parcel."""
        due = sum(self._messages_for(name) for name in names)
        if not due:
            return []
        raw = self.namespace.cast("string").alias(NAMESPACE)
        chosen = self.admitted_rows.select(*to_carried(self.schema), raw)
        chosen = chosen.join(self._names_for(names), F.col(NAMESPACE).cast("binary") == F.col(_RAW), "left_semi")
        frames = chosen.mapInArrow(_packed, "frame binary").collect()
        tables = [decode(bytes(row["frame"])) for row in frames]
        found_messages = sum(table.num_rows for table in tables)
        if found_messages != due:
            raise SourceChangedError(
                f"the admitted rows of batch {self.mark.batch}",
                f"{due} rows were admitted for {list(names)}, and {found_messages} were found",
                "start again: the batch is written again",
            )
        table, namespaces = sorted_by_namespace(pa.concat_tables(tables).combine_chunks())
        rows, mark = table.drop_columns([NAMESPACE]), self.mark
        return [
            Parcel(rows.slice(start, end - start), IdempotencyKey(mark.query, mark.batch, mark.identity, name, 0), 0)
            for name, start, end in namespaces
        ]

    def _messages_for(self, name: str) -> int:
        """Return how many rows the batch itself admits for a destination."""
        kept = sum(parcel.rows.num_rows for parcel in self.kept if self._destination(parcel) == name)
        return self.destinations[name].rows - kept

    def _names_for(self, names: Collection[str]) -> DataFrame:
        """Return the bytes of the namespaces whose rows go to destinations."""
        is_for = [self.destination_of.get(name) in names for name in shown(self.names).to_pylist()]
        raw = self.names.view(pa.binary()).filter(pa.array(is_for, pa.bool_()))
        return F.broadcast(self.admitted_rows.sparkSession.createDataFrame(pa.table({_RAW: raw})))

    def _destination(self, parcel: Parcel) -> str | None:
        return self.destination_of.get(parcel.key.namespace)


def _packed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows as frames, one for each batch; none for a task without rows."""
    for batch in batches:
        if batch.num_rows:
            frame = encode_whole(pa.Table.from_batches([batch]))
            yield pa.RecordBatch.from_pydict({"frame": pa.array([frame], pa.binary())})


def _has_destinations(directory: Directory, reports: Sequence[UsageReport]) -> bool:
    """Return whether the policy that decided a batch has destinations."""
    policy = decided_policy(directory, reports)
    return policy is not None and policy.destinations is not None


def _problem(refusal: Backpressure, asked: Collection[str]) -> str:
    if refusal.scope is None:
        return f"{refusal.problem}, and the call had no rows for a destination of the policy"
    had = f"rows for the destinations {sorted(asked)} of the policy" if asked else "no rows for a destination"
    return f"{refusal.problem}; nothing can be set aside for {refusal.scope!r}, for the call had {had}"
