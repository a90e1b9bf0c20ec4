"""What a shard reports to the control plane after a batch: the demand and usage of every active flow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from spark_throttle.core.quota import Bools, Dimension, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class UsageReport:
    """One shard's report on one batch; arrays run over the flows whose rows arrived, waited or left, or that are ahead.

    Arrays of shape (n, 2) are by `Dimension`: messages, then bytes.
    """

    shard: int
    epoch: int
    """The epoch whose grants were spent."""

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
    """The messages and bytes that arrived in the batch."""

    admitted: Int64s
    rejected: Int64s
    waiting: Int64s
    """The messages and bytes queued after the batch."""

    demand: Int64s
    """The messages and bytes offered and waiting, as far as the namespace's own buckets would let them pass next;
    buckets that only observe hold nothing back."""

    observed_messages: Int64s
    """The number of admitted rows that an observing scope would have held or refused."""

    delayed_ms: Int64s
    """The sum of the admitted rows' waiting times."""

    expires_ms: int
    """The time at which the first waiting row becomes too old; `NEVER_MS` if none ever does."""

    invalid_messages: int = 0
    """The number of arrivals without a usable namespace or size; they belong to no flow and were rejected."""

    leaves_ms: Int64s | None = None
    """The time at which the flow's first waiting row may leave, as far as the namespace's own limits and rules decide;
    `NEVER_MS` where no row waits, or none will ever leave by itself. `None` in a report of version 1, which has an
    estimate of it in `expires_ms`."""

    paid_ms: int | None = None
    """The batch's paying time (`paying`), the clock of the two times above; `None` where it equals `now_ms`."""

    ahead_milli: Int64s | None = None
    """How far each flow is ahead of its competitors (`fair_queue`), in thousandths of a token; at most a message. A
    flow that is ahead is in the report even if none of its rows arrived, waited or left. `None` in a report of an older
    version."""

    rejected_by_reason: tuple[int, ...] | None = None
    """The number of rejected messages by `Reason`, those of `invalid_messages` included; `None` in a report of an older
    version."""

    rejected_by_shared_messages: Int64s | None = None
    """The number of rejected messages for which a shared scope had no tokens; `None` in an older report."""

    oldest_waiting_ms: int | None = None
    """How long the oldest waiting row has waited; `None` where no row waits, or in a report of an older version."""

    @property
    def is_active(self) -> Bools:
        """Whether a row of the flow arrived, waited or left, or still waits."""
        moved = self.offered + self.admitted + self.rejected + self.waiting
        return moved[:, Dimension.MESSAGES] > 0

    @property
    def as_of_ms(self) -> int:
        """The paying time of the batch."""
        return self.now_ms if self.paid_ms is None else self.paid_ms


def admitted_messages(reports: Sequence[UsageReport]) -> tuple[pa.StringArray, Int64s]:
    """Return the namespaces of reports, and the number of messages that were admitted of each."""
    names = pa.concat_arrays([pa.array([], pa.string()), *(report.names for report in reports)])
    messages = (report.admitted[:, Dimension.MESSAGES] for report in reports)
    return names, np.concatenate([np.zeros(0, dtype=np.int64), *messages])


def rejected_by_reason(reports: Sequence[UsageReport]) -> Int64s:
    """Return the number of rejected messages by `Reason`; empty if all reports are of an older version."""
    found = [report.rejected_by_reason for report in reports if report.rejected_by_reason is not None]
    return np.array([sum(counts) for counts in zip_longest(*found, fillvalue=0)], np.int64)
