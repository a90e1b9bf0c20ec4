"""Rows that are reserved, through whole batches: replayed, waiting, and coming back from a destination."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.quota import MICRO, Dimension
from spark_throttle.core.reservations import LateCosts
from spark_throttle.core.state import ControlRow, StoredState
from spark_throttle.core.undelivered import Undelivered, UndeliveredCall
from spark_throttle.core.usage import UsageReport, unpack_usage
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.record import pack, unpack
from spark_throttle.spark.columns.late_costs import costs_of
from spark_throttle.spark.move.decider_batch import BatchOutcome, run_batch
from spark_throttle.spark.rows.frames import IDENTITY, UNITS
from spark_throttle.spark.rows.identities import identity_of
from tests.spark.move.played import START_MS, with_helpers

QUOTA = {"units_per_second": 1, "burst_seconds": 1000}
POLICY = compile_policy(PolicyDocument.model_validate({
    "resource_groups": {"api": {"publish": {"messages_per_second": 100}, "destination": {}}},
    "tenants": {"api": {"resource_group": "api", "publish": QUOTA}},
    "job": {"publish": QUOTA},
}), "publish")  # fmt: skip


def rows_of(*rows: tuple[int, int]) -> pa.Table:
    """Return rows of one namespace, each with its identity and its units."""
    table = with_helpers(pa.table({"id": [number for number, _ in rows]}), ["api/a"] * len(rows), [1] * len(rows))
    identities = pa.array([identity_of(number) for number, _ in rows], pa.binary())
    table = table.append_column(UNITS, pa.array([units for _, units in rows], pa.int64()))
    return table.append_column(IDENTITY, identities)


def told(*costs: tuple[int, int]) -> LateCosts:
    """Return costs, each with its identity."""
    identities = pa.array([identity_of(number) for number, _ in costs], pa.binary())
    return costs_of(identities, pa.array([units for _, units in costs], pa.int64()))


class Job:
    """A decider whose rows may come back, and whose costs are told later; a batch passes no time."""

    def __init__(self) -> None:
        self.state: bytes | None = None
        self.left = 0

    def batch(
        self,
        rows: pa.Table | None = None,
        costs: LateCosts | None = None,
        undelivered: tuple[UndeliveredCall, ...] = (),
        pinned: LateCosts | None = None,
    ) -> BatchOutcome:
        """Run a batch; some costs may be pinned in its control row."""
        packed = pack(POLICY) if self.state is None else None
        row = ControlRow(
            1, packed, PayingTime(START_MS, START_MS), undelivered=Undelivered.of(undelivered), costs=pinned
        )  # fmt: skip
        frames = [] if rows is None else [rows]
        found = run_batch(
            self.state, pack(row), frames, now_ms=START_MS, is_explained=False, keeps_left=True, costs=costs
        )
        self.state, self.report = found.state, unpack_usage(found.usage, "the report")
        return found

    @property
    def stored(self) -> StoredState:
        assert self.state is not None
        return unpack(StoredState, self.state, "the state")

    @property
    def spent(self) -> float:
        """The units that are charged to the job."""
        return 1000 - int(self.stored.state.shared.balance_micro[0, Dimension.UNITS]) / MICRO


def test_batch_that_is_run_again_leaves_the_same_bytes_in_whatever_order_costs_come() -> None:
    job = Job()
    job.batch(rows_of((1, 10), (2, 20), (3, 30)))
    before, outcomes = job.state, set()
    for order in itertools.permutations([(1, 7), (3, 90), (9, 1), (3, 80)]):
        for at in range(5):
            job.state = before
            found = job.batch(rows_of((4, 1)), told(*order[:at]), pinned=told(*order[at:]))
            outcomes.add((found.state, found.usage))
    assert len(outcomes) == 1
    assert job.spent == 7 + 20 + 90 + 1


def test_row_that_comes_back_is_reserved_no_more_and_again_when_it_leaves() -> None:
    job = Job()
    job.batch(rows_of((1, 10), (2, 20)))
    job.batch(undelivered=(UndeliveredCall("api/a", 0, 1),), costs=told((1, 500)))
    assert job.report.reservations is not None
    assert job.report.reservations.unknown_costs == 1
    assert job.spent == 30  # it left again in that batch
    assert len(job.stored.state.reservations) == 2
    job.batch(costs=told((1, 5), (2, 25)))
    assert job.spent == 30
    assert len(job.stored.state.reservations) == 0


def test_row_that_was_settled_and_comes_back_stays_charged_for_the_work_that_was_done() -> None:
    job = Job()
    job.batch(rows_of((1, 10)))
    job.batch(undelivered=(UndeliveredCall("api/a", 0, 1, 0, "x", 0),), costs=told((1, 40)))
    assert job.spent == 40
    job.batch(undelivered=(UndeliveredCall("api/a", 0, 1),))
    assert job.spent == 40 + 10
    job.batch(costs=told((1, 0)))
    assert job.spent == 40


def test_reservation_ends_when_the_policy_says() -> None:
    for seconds, is_open in ((0.5, False), (2, True)):
        policy = PolicyDocument.model_validate({"job": {"publish": QUOTA, "reservation_seconds": seconds}})
        packed = pack(compile_policy(policy, "publish"))
        state = None
        for number, now_ms in enumerate((START_MS, START_MS + 1_000)):
            row = pack(ControlRow(number + 1, None if number else packed, PayingTime(now_ms, now_ms)))
            frames = [] if number else [rows_of((1, 10))]
            state = run_batch(state, row, frames, now_ms=now_ms, is_explained=False).state
        assert state is not None
        assert bool(len(unpack(StoredState, state, "the state").state.reservations)) is is_open


def test_report_tells_what_is_reserved_and_what_was_given_back_and_overdrawn() -> None:
    job = Job()
    job.batch(rows_of((1, 10), (2, 20), (3, 30)))
    job.batch(costs=LateCosts.sum_of([told((1, 4), (2, 25)), LateCosts(told().identity, np.zeros(0, np.int64), 6)]))
    report: UsageReport = job.report
    names = ("reserved_messages", "reserved_units", "given_back_units", "overdrawn_units", "unsettled_messages")
    assert [report.number(name).tolist() for name in names] == [[1], [30], [6], [5], [0]]
    assert report.reservations is not None
    assert (report.reservations.open_messages, report.reservations.settled_messages) == (1, 2)
    assert report.reservations.unusable_costs == 6
    assert report.is_active.tolist() == [True]
