"""What a shard tells the control plane after a batch: demand and usage of every active flow."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from spark_throttle.core.quota import Bools, Dimension, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class UsageReport:
    """One shard's account of one batch; arrays run over the flows that offered, waited or left, or are ahead.

    Arrays of shape (n, 2) are by `Dimension`: messages, then bytes.
    """

    shard: int
    epoch: int
    """The epoch whose grants were spent."""

    revision: str
    """The policy revision that the indices below belong to."""

    now_ms: int
    """Spark's time of the batch."""

    names: pa.StringArray
    tenant: Int64s
    """Position in `tenant_names`, -1 where the policy does not name the tenant."""

    group: Int64s
    """Position in `group_names`, -1 for none."""

    weight: Int64s
    """Claim in the division of what is shared; 0 for an exempt namespace, which takes nothing of it."""

    offered: Int64s
    """What arrived in the batch."""

    admitted: Int64s
    rejected: Int64s
    waiting: Int64s
    """What is queued after the batch."""

    demand: Int64s
    """Offered and waiting, as far as the namespace's own buckets, unless they only observe, would let it pass next."""

    observed_messages: Int64s
    """Admitted rows that an observing scope would have held or refused."""

    delayed_ms: Int64s
    """Sum over the admitted rows of the time they waited."""

    expires_ms: int
    """When the first waiting row is too old; `NEVER_MS` if none ever is."""

    invalid_messages: int = 0
    """Arrivals that had no usable namespace or size; they belong to no flow and were rejected."""

    leaves_ms: Int64s | None = None
    """When the first waiting row of the flow may leave, as far as the namespace's own limits and rules say; `NEVER_MS`
    where none waits, or ever will by itself. A report of version 1 has none, and a guess at it in `expires_ms`."""

    paid_ms: int | None = None
    """The batch's paying time (`paying`), which the two times above are of; `None` where it is `now_ms`."""

    ahead_milli: Int64s | None = None
    """Shape (n, 2): thousandths of a token by which each flow is ahead of those that it competes with (`fair_queue`), a
    message at most. A flow that is ahead is in the report even if nothing of it came, waited or left. `None` in a
    report of an older version."""

    @property
    def is_active(self) -> Bools:
        """Whether a row of the flow came, waited, left or waits."""
        moved = self.offered + self.admitted + self.rejected + self.waiting
        return moved[:, Dimension.MESSAGES] > 0

    @property
    def as_of_ms(self) -> int:
        """The paying time of the batch."""
        return self.now_ms if self.paid_ms is None else self.paid_ms
