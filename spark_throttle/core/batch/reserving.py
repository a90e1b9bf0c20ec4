"""The rows of a batch that leave for an estimate are reserved, and the report says what became of reservations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.quota import AMOUNTS, Bools, Int64s
from spark_throttle.core.reservations import Reservations, SettledCosts, has_identity, no_identities
from spark_throttle.core.usage import ReservationCounts

if TYPE_CHECKING:
    from spark_throttle.core.batch.arrivals import Arrivals, MicroBatch
    from spark_throttle.core.batch.flow_plan import FlowPlan
    from spark_throttle.core.fair.layout import Candidates
    from spark_throttle.core.state import DeciderState, Queue


def identities(queue: Queue, arrivals: Arrivals) -> Int64s | None:
    """Return the identities of the rows of a batch, the queued ones first; `None` if no row can have any."""
    if queue.identity is None and arrivals.identity is None:
        return None
    before = no_identities(len(queue)) if queue.identity is None else queue.identity
    return np.concatenate([before, no_identities(len(arrivals)) if arrivals.identity is None else arrivals.identity])


def of_rows(identity: Int64s | None, at: Int64s) -> Int64s | None:
    """Return the identities of the rows at `at`; `None` if none of them has any."""
    if identity is None:
        return None
    found = identity.take(at, axis=0)
    return found if found.any() else None


@dataclass(frozen=True, slots=True, eq=False)
class ReservedBatch:
    """The reservations after a batch, by the positions of the flows that were known in it."""

    opened: Reservations
    ended: Reservations
    """Those that ended in it."""

    settled: SettledCosts | None
    """What the costs have settled that came with it."""

    @classmethod
    def of(
        cls,
        state: DeciderState,
        rows: Candidates,
        identity: Int64s | None,
        is_admitted: Bools,
        batch: MicroBatch,
        plan: FlowPlan,
        settled: SettledCosts | None,
    ) -> ReservedBatch:
        """Return the reservations with those of the rows that leave, and without those that end."""
        opened = state.reservations
        if identity is not None:
            at = np.flatnonzero(is_admitted & has_identity(identity))
            units = rows.amounts[-1][at] if len(rows.amounts) == len(AMOUNTS) else np.zeros_like(at)
            flow = rows.flow[at]
            beside = plan.beside_units(flow, rows.size_bytes[at])
            opened = opened.with_rows(identity[at], batch.entered.at[flow], units, beside, now_ms=batch.now_ms)
        goes_on = opened.goes_on(now_ms=batch.now_ms, after_ms=batch.policy.reservation_ms)
        if goes_on.all():
            return cls(opened, Reservations.none(), settled)
        return cls(opened.take(goes_on), opened.take(~goes_on), settled)

    def told(self, known: int) -> dict[str, Int64s]:
        """Return the numbers of a report that tell of reservations, by known flow; those that are 0 may be absent."""
        opened, ended, settled = self.opened, self.ended, self.settled
        found = {}
        if len(opened) or len(ended):
            found["reserved_messages"] = sums(opened.flow, opened.rows, known)
            found["reserved_units"] = sums(opened.flow, opened.units, known)
            found["unsettled_messages"] = sums(ended.flow, ended.rows, known)
        if settled is not None and len(settled.flows):
            new = np.zeros(known - len(settled.given_back), dtype=np.int64)
            found["given_back_units"] = np.concatenate([settled.given_back, new])
            found["overdrawn_units"] = np.concatenate([settled.overdrawn, new])
        return found

    def counts(self, *, now_ms: int) -> ReservationCounts | None:
        """Return how many reservations are open, and what became of others; `None` if there are and were none."""
        settled, opened = self.settled, self.opened
        found = ReservationCounts(
            int(opened.rows.sum()),
            int(now_ms - opened.reserved_ms.min()) if len(opened) else 0,
            int(self.ended.rows.sum()),
            *((settled.settled_messages, settled.unknown, settled.unusable) if settled is not None else ()),
        )
        return found if found != ReservationCounts() else None
