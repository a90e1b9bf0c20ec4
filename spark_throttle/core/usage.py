"""The decider's report to the control plane after a batch: the demand and usage of every active flow.

A stored report is two blocks: its head, which tells all that most epochs are made from, and the whole report. The
control plane reads the head alone, which is as long with a million namespaces as with one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.limits.budgets import UsedBudgets
from spark_throttle.core.quota import Bools, Dimension, Int64s
from spark_throttle.core.waiting_times import WaitingTimes
from spark_throttle.record import first_block_bytes, pack, unpack


@dataclass(frozen=True, slots=True, eq=False)
class ReportHead:
    """What can be told of a report without its namespaces; fields that it has too are described there."""

    epoch: int
    revision: str
    now_ms: int
    as_of_ms: int
    shared_micro: Int64s
    due_ms: int
    due_with_quotas_ms: int
    filled_ms: int

    admitted_messages: int
    rejected_messages: int
    """The messages that were rejected, `UsageReport.invalid_messages` included."""

    has_moved: bool
    """Whether the batch brought or moved a row, or sent one again."""

    is_waiting: bool
    """Whether a row waits after the batch."""

    left_messages: int = 0


@dataclass(frozen=True, slots=True)
class ReservationCounts:
    """What became of the rows that left for an estimate (`reservations`), in messages."""

    open_messages: int = 0
    oldest_ms: int = 0
    """For how long the oldest open one has been; 0 if none is."""

    ended_messages: int = 0
    """Those that ended in the batch without a cost: the estimate stands."""

    settled_messages: int = 0
    unknown_costs: int = 0
    """The costs that the batch brought of rows that were never reserved, or whose reservation was settled or ended."""

    unusable_costs: int = 0
    """Those without an identity, or that no row can have."""


@dataclass(frozen=True, slots=True, eq=False)
class UsageReport:
    """The report on one batch; arrays run over the flows whose rows arrived, waited or left.

    Arrays of shape (n, 4) are by `Dimension`: messages, bytes, units, which are 0 where the query states none, and the
    nanoseconds that they were estimated to take, which are 0 where no scope of the policy limits time.
    """

    epoch: int
    """The epoch in force."""

    revision: str
    """The policy revision that the indices below belong to."""

    now_ms: int
    """Spark's timestamp of the batch."""

    names: pa.StringArray
    tenant: Int64s
    """The position in `tenant_names`, -1 where the policy does not name the tenant."""

    group: Int64s
    """The position in `group_names`, -1 for none."""

    weight: Int64s
    """The weight in the division of shared tokens; 0 for an exempt namespace, which takes none of them."""

    offered: Int64s
    """What arrived in the batch."""

    admitted: Int64s
    rejected: Int64s
    waiting: Int64s
    """What is queued after the batch."""

    demand: Int64s
    """What is offered and waiting, as far as the namespace's own buckets would let them pass next;
    buckets that only observe hold nothing back."""

    observed_messages: Int64s
    """The number of admitted rows that an observing scope would have held or refused."""

    delayed_ms: Int64s
    """The sum of the admitted rows' waiting times."""

    shared_micro: Int64s
    """Shape (scopes, 4): the balances of the shared buckets after the batch, at its paying time."""

    due_ms: int
    """The paying time at which the first waiting row can leave or expire; `NEVER_MS` if none ever does by itself."""

    due_with_quotas_ms: int
    """The same if the job had the whole quotas of which it has no share now."""

    filled_ms: int
    """The paying time at which the first bucket that stopped a waiting row is full or has enough for all of them, or a
    row expires; at most a minute after the batch, but for a row that can leave only later. Until then a batch can wait,
    and no token is lost. A row that a spent budget holds counts for nothing: it would have to wait for the calendar."""

    invalid_messages: int = 0
    """The number of arrivals without a usable namespace, size or units; they belong to no flow and were rejected."""

    paid_ms: int | None = None
    """The batch's paying time (`token_bucket`); `None` where it equals `now_ms`."""

    rejected_by_reason: tuple[int, ...] = ()
    """The number of rejected messages by `Reason`, those of `invalid_messages` included."""

    oldest_ms: Int64s | None = None
    """How long the oldest waiting row of each namespace has waited, -1 where none waits; `None` if none waits at all.
    """

    waited: WaitingTimes | None = None
    """The waiting times of the admitted messages, by the position of their namespace; `None` if none had waited."""

    held_by: Int64s | None = None
    """Shape (n, 2): the `Level` of the quota that stopped the first row of each that did not go, and what it counts, as
    `Causes.dimension`; -1 where no quota did. `None` if none did so to anybody."""

    granted_micro: Int64s | None = None
    """Shape (n, 4): what the namespace's own quotas earned since the batch before, `UNLIMITED` without one; `None` if
    no namespace of the batch has any."""

    shared_granted_micro: Int64s | None = None
    """Shape (scopes, 4): the same of the job's shares of the shared quotas."""

    own_time_ns: Int64s | None = None
    """What is left of each namespace's own quota on processing time, 0 without one; `None` if no scope limits time."""

    returned: Int64s | None = None
    """Shape (n, 3), in the dimensions that are `KNOWN`: what was admitted before and not delivered, and waits again
    (`left_rows`). `None` if there is none."""

    left_messages: int = 0
    """The messages that may come back after the batch, those that were sent again included."""

    own_micro: Int64s | None = None
    """Shape (n, 3), in the dimensions that are `KNOWN`: what the namespace's own buckets hold after the batch, 0
    without one; `None` if no namespace of the batch has any."""

    budgets: UsedBudgets | None = None
    """What is used of budgets after the batch; `None` if the policy has none."""

    reserved_messages: Int64s | None = None
    """The rows that left for an estimate and whose costs are not known yet; `None` if there are none, as below."""

    reserved_units: Int64s | None = None
    """Their estimates."""

    given_back_units: Int64s | None = None
    """By how much the costs that the batch brought are less than the estimates."""

    overdrawn_units: Int64s | None = None
    """By how much they are more."""

    unsettled_messages: Int64s | None = None
    """The rows whose reservation ended in the batch without a cost: the estimate stands."""

    reservations: ReservationCounts | None = None

    def number(self, name: str) -> Int64s:
        """Return a number of `ScopeUsage` for each namespace: 0 where the report has none."""
        column, _, unit = name.rpartition("_")
        found = getattr(self, name if hasattr(self, name) else column)
        if found is None:
            return np.zeros(len(self.names), dtype=np.int64)
        return np.asarray(found if found.ndim == 1 else found[:, Dimension[unit.upper()]])

    @property
    def is_active(self) -> Bools:
        """Whether a row of the flow arrived, waited or left, or still waits, or is reserved or was settled."""
        moved = self.offered + self.admitted + self.rejected + self.waiting
        found: Bools = moved[:, Dimension.MESSAGES] > 0
        for each in (
            self.reserved_messages, self.given_back_units, self.overdrawn_units, self.unsettled_messages,
        ):  # fmt: skip
            found |= False if each is None else each > 0
        return found

    @property
    def unknown_costs(self) -> Int64s:
        """Those that each namespace told in vain: none, as nobody knows whose a cost is that finds no reservation."""
        return np.zeros(len(self.names), dtype=np.int64)

    @property
    def as_of_ms(self) -> int:
        """The paying time of the batch."""
        return self.now_ms if self.paid_ms is None else self.paid_ms

    @property
    def head(self) -> ReportHead:
        """Return the head of the report."""
        offered, admitted, rejected, waiting = (
            int(each[:, Dimension.MESSAGES].sum())
            for each in (self.offered, self.admitted, self.rejected, self.waiting)
        )
        rejected += self.invalid_messages
        has_moved = offered + admitted + rejected + self.left_messages > 0
        return ReportHead(
            self.epoch, self.revision, self.now_ms, self.as_of_ms, self.shared_micro, self.due_ms,
            self.due_with_quotas_ms, self.filled_ms, admitted, rejected, has_moved, waiting > 0, self.left_messages,
        )  # fmt: skip


def _counted(text: str) -> Any:  # noqa: ANN401 - what stands for a default
    """Return the field of a number whose sum is a Prometheus counter with this text."""
    return field(default=0, metadata={"counter": text})


@dataclass(frozen=True, slots=True)
class ScopeUsage:
    """One scope's numbers of a batch, each the sum over its namespaces of what `UsageReport` has by its name.

    They are columns of the usage table and fields of `status`. New ones go at the end.
    """

    level: str
    scope: str
    offered_messages: int = _counted("Messages that arrived")
    offered_bytes: int = _counted("Bytes that arrived")
    offered_units: int = _counted("Units that arrived")
    admitted_messages: int = _counted("Messages that were admitted")
    admitted_bytes: int = _counted("Bytes that were admitted")
    admitted_units: int = _counted("Units that were admitted")
    rejected_messages: int = _counted("Messages that were rejected")
    rejected_bytes: int = _counted("Bytes that were rejected")
    rejected_units: int = _counted("Units that were rejected")
    waiting_messages: int = 0
    waiting_bytes: int = 0
    waiting_units: int = 0
    observed_messages: int = 0
    delayed_ms: int = 0
    """The sum of the admitted messages' waiting times."""

    returned_messages: int = _counted("Messages that were admitted, not delivered, and wait again")
    returned_bytes: int = _counted("Bytes that were admitted, not delivered, and wait again")
    returned_units: int = _counted("Units that were admitted, not delivered, and wait again")
    reserved_messages: int = 0
    """Messages that left for an estimate, and whose costs are not known yet."""

    reserved_units: int = 0
    """What these were estimated to cost."""

    given_back_units: int = _counted("Units by which messages cost less than was estimated")
    overdrawn_units: int = _counted("Units by which messages cost more than was estimated")
    unsettled_messages: int = _counted("Messages whose estimate stands, as nobody told in time what they cost")
    unknown_costs: int = _counted("Costs that found no reservation, or are unusable")
    """The job's alone: nobody knows whose they are."""


def pack_usage(report: UsageReport) -> bytes:
    """Return a report as it is stored."""
    return pack(report.head) + pack(report, is_compressed=True)


def unpack_usage(stored: bytes | memoryview, what: str) -> UsageReport:
    """Return the report that `pack_usage` packed; the errors are those of `record.unpack`."""
    unpack_head(stored, what)
    return unpack(UsageReport, memoryview(stored)[first_block_bytes(stored) :], what)


def unpack_head(stored: bytes | memoryview, what: str) -> ReportHead:
    """Return the head of the report that `pack_usage` packed, or of the part of it that has the head."""
    return unpack(ReportHead, memoryview(stored)[: first_block_bytes(stored)], what)


def by_scope(shared_scope: Int64s, amount: Int64s, scopes: int) -> Int64s:
    """Return the sums, over the flows of every scope, of an amount of shape (n, 4)."""
    total = np.zeros((scopes + 1, amount.shape[1]), dtype=np.int64)  # with one more position for no scope
    for scope in shared_scope.T:
        if scope.max(initial=-1) >= 0:
            total += sums(scope, amount, scopes + 1)
    return total[:-1]


def admitted_messages(reports: Sequence[UsageReport]) -> tuple[pa.StringArray, Int64s]:
    """Return the namespaces of reports, and the number of messages that were admitted of each."""
    names = pa.concat_arrays([pa.array([], pa.string()), *(report.names for report in reports)])
    messages = (report.admitted[:, Dimension.MESSAGES] for report in reports)
    return names, np.concatenate([np.zeros(0, dtype=np.int64), *messages])
