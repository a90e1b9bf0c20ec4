"""A batch goes to a function of `foreachBatch` until it takes it: without the rows for destinations that say "not now".

A function that raises `Backpressure` says that it has taken no row of its call. What follows depends on whether it had
rows for a destination of the policy that it names, or for any if it names none:

- **It does.** It is called again at once, for the same batch, without the rows for these destinations. They were not
  delivered, so they go back to the head of their queues (`checkpoint.delivery`), and less is admitted for that
  destination from now on. So nobody else waits.
- **It does not.** Nothing can be set aside. It is called again with all rows, after the time that it asked for, until
  its patience is over. Everybody waits.

Law: each call of a batch has the same rows as the same call of an attempt before a crash, because the destinations that
are offered none any more are written down before the call that leaves them out. A function that writes by the batch's
number, and asks its destination only for batches that it does not have, so takes every row exactly once.

A function takes all rows of a call or none, so a destination says no more than yes or no: each refusal takes a quarter
of its rate, and it is not asked for a second, or for as long as it asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.checkpoint.delivery import Delivery, read_delivery, write_delivery
from spark_throttle.control.epochs import Epochs
from spark_throttle.core.shares.destinations import WHOLE, Told, group_names
from spark_throttle.core.undelivered import Undelivered, UndeliveredCall
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import Backpressure, DeliveryError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.metering.charging import decided_policy, running_batch, take_refusal
from spark_throttle.spark.metering.metered import Metered
from spark_throttle.spark.paced.batch_sending import Departure, epoch_of
from spark_throttle.spark.paced.gate import (
    FIRST_PAUSE_SECONDS,
    LONGEST_ASKED_SECONDS,
    LONGEST_PAUSE_SECONDS,
    wall_ms,
)
from spark_throttle.spark.sinks.targets import BatchFunction

_RAW: Final = "__throttle_namespace_bytes"
_PART: Final = WHOLE - WHOLE // 4
"""What a refusal leaves of the rate."""

_PAUSE_SECONDS: Final = 1.0
"""For so long a destination is not asked that did not say for how long."""

_LONGEST_STEP_MS: Final = 2_000
"""The rate grows as if a batch took so long at most: a step that is too large costs the offer of a whole batch."""


def _wait(seconds: float) -> None:
    threading.Event().wait(seconds)


@dataclass(slots=True)
class FunctionSink:
    """What calls a function for each batch; on the driver, in one process for as long as the query runs."""

    function: BatchFunction
    target: str
    """The function, as text."""

    namespace: Column
    epochs: Epochs
    """The query's epochs. The control plane has its own, in another process."""

    patience_seconds: float
    clock_seconds: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = _wait
    clock_ms: Callable[[], int] = wall_ms
    _accepted_at: dict[str, float] = field(default_factory=dict)
    """When each destination accepted rows last."""

    def write(
        self,
        rows: Callable[[], DataFrame] | None,
        directory: Directory,
        mark: BatchMark,
        report: UsageReport | None,
        *,
        is_again: bool,  # noqa: ARG002 - the record of an earlier attempt says it
    ) -> None:
        """Call the function with a batch's admitted rows, until it takes those that it is offered.

        Raises
        ------
        DeliveryError
            If the function refuses rows that cannot be set aside for longer than its patience.
        """
        assert rows is not None  # noqa: S101 - a function is called for every batch
        given, policy = rows(), decided_policy(directory, report)
        if report is None or policy is None or policy.destinations is None:
            self._take(given, set(), mark, directory, report)
            if report is not None and report.left_messages:
                write_delivery(directory, mark.batch, report.now_ms, Delivery())
            return
        epoch = self.epochs.load(epoch_of(directory, mark.batch))
        left, batch_ms = Departure.of(report, epoch, policy), report.now_ms
        names = group_names(policy)
        of_destination = {name: left.where(left.destination == at) for at, name in enumerate(names)}
        offered = {name for name, each in of_destination.items() if len(each.names)}
        noted = read_delivery(directory, mark.batch, batch_ms) or Delivery()
        withheld, told = set(noted.withheld), {name: noted.told[name] for name in noted.withheld}

        def note() -> None:
            undelivered = [of_destination[name] for name in sorted(withheld & offered)]
            write_delivery(
                directory, mark.batch, batch_ms,
                Delivery(told, _all_of(undelivered), tuple(sorted(withheld))),
            )  # fmt: skip

        while refused := self._take(
            self._without(given, [of_destination[name].names for name in sorted(withheld & offered)]),
            offered - withheld, mark, directory, report,
        ):  # fmt: skip
            withheld |= refused.keys()
            told |= {
                name: Told(0, 1, _PART, 0, 0, self.clock_ms() + round(1_000 * seconds), slows=1)
                for name, seconds in refused.items()
            }
            note()
        now = self.clock_seconds()
        for at, name in enumerate(names):
            if name in offered and name not in withheld and epoch.destinations is not None:
                elapsed_ms = round(1_000 * (now - self._accepted_at.get(name, now)))
                quiet = epoch.destinations.aimd(at).after_quiet(min(elapsed_ms, _LONGEST_STEP_MS))
                told[name], self._accepted_at[name] = Told(1, 0, WHOLE, quiet.quiet_ms, 0), now
        note()

    def _take(
        self,
        rows: DataFrame,
        asked: set[str],
        mark: BatchMark,
        directory: Directory,
        report: UsageReport | None,
    ) -> dict[str, float]:
        """Call the function until it takes the rows, or destinations refuse that can be set aside.

        Returns for how many seconds each of these asks to wait.
        """
        until, pause = self.clock_seconds() + self.patience_seconds, FIRST_PAUSE_SECONDS
        attempts = 0
        while (refusal := self._refusal(rows, mark, directory, report)) is not None:
            attempts += 1
            asks_seconds = refusal.retry_after_seconds
            refused = asked if refusal.scope is None else {refusal.scope} & asked
            if refused:
                waits = min(asks_seconds or _PAUSE_SECONDS, LONGEST_ASKED_SECONDS)
                return dict.fromkeys(refused, waits)
            seconds = pause if asks_seconds is None else asks_seconds
            if self.clock_seconds() + seconds > until:
                key = f"{mark.query}/{mark.batch}"
                raise DeliveryError(self.target, key, _problem(refusal, asked), attempts) from refusal
            self.sleep(seconds)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return {}

    def _refusal(
        self, rows: DataFrame, mark: BatchMark, directory: Directory, report: UsageReport | None
    ) -> Backpressure | None:
        """Call the function; return what it or a metered function in a task of its said, `None` if it is done."""
        try:
            with running_batch(directory, mark.batch, report):
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

    def _without(self, rows: DataFrame, names: Sequence[pa.StringArray]) -> DataFrame:
        """Return the rows of other namespaces."""
        if not names:
            return rows
        raw = pa.concat_arrays(names).view(pa.binary())
        theirs = F.broadcast(rows.sparkSession.createDataFrame(pa.table({_RAW: raw})))
        return rows.join(theirs, self.namespace.cast("string").cast("binary") == F.col(_RAW), "left_anti")


def _all_of(parts: Sequence[Departure]) -> Undelivered:
    """Return all rows of namespaces as what was not delivered."""
    if not parts:
        return Undelivered.of([])
    calls = [UndeliveredCall("", 0, int(messages)) for part in parts for messages in part.messages]
    return Undelivered.of(calls, pa.concat_arrays([part.names for part in parts]))


def _problem(refusal: Backpressure, asked: Collection[str]) -> str:
    if refusal.scope is None:
        return f"{refusal.problem}, and the call had no rows for a destination of the policy"
    had = f"rows for the destinations {sorted(asked)} of the policy" if asked else "no rows for a destination"
    return f"{refusal.problem}; nothing can be set aside for {refusal.scope!r}, for the call had {had}"
