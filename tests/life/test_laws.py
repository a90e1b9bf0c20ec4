"""Each law finds a fault that is put into the job, in a few steps: a law that never speaks is no law."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.control import plane, reports
from spark_throttle.control.clock import Clock, Moment, moment_after
from spark_throttle.control.run_fence import RunFence
from spark_throttle.core import measured_time, shared_buckets
from spark_throttle.core.batch import queue_bounds
from spark_throttle.core.epoch import Epoch
from spark_throttle.core.fair import contenders, work
from spark_throttle.core.fair.layout import Layout
from spark_throttle.core.fair.work import MESSAGE
from spark_throttle.core.limits import size_bounds, token_bucket
from spark_throttle.core.quota import Bools, CompiledPolicy, Int64s, Limits
from spark_throttle.core.shared_buckets import SharedBuckets
from spark_throttle.core.usage import UsageReport
from spark_throttle.core.usage import pack_usage as pack_as_it_is
from spark_throttle.files.storage import Directory
from spark_throttle.sharing.lease_keeper import Clocks, LeaseKeeper
from spark_throttle.sharing.register import ShareRegister
from spark_throttle.sharing.report import ShareReport
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.spark.move import decider_batch
from spark_throttle.testing.simulation import query as simulated_query
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.query import FollowedPolicies
from spark_throttle.testing.simulation.rows import TransactionalTable
from tests.life.drawing import Step
from tests.life.laws import Violation
from tests.life.life import ISOLATION, Birth, Life

Fault: TypeAlias = Callable[[pytest.MonkeyPatch], None]

GROUP = {
    "version": 1,
    "resource_groups": {"gold": {"publish": {"messages_per_second": 5, "burst_seconds": 1}}},
    "defaults": {"resource_group": "gold"},
}
BOUNDED = {
    "version": 1,
    "resource_groups": {"gold": {"publish": {"bytes_per_second": 100, "burst_seconds": 1, "max_message_bytes": 200}}},
    "defaults": {"resource_group": "gold"},
}
STRICT = {
    "version": 1,
    "resource_groups": {"gold": {"publish": {"messages_per_second": 5, "burst_seconds": 1, "on_excess": "reject"}}},
    "defaults": {"resource_group": "gold"},
}
FULL = GROUP | {"queue": {"messages": 20}}
FILLS = Step("run", {"rows": [("acme/a", 1, 60)], "triggers": 1, "after_ms": 1_000})
OTHERS = Step("run", {"rows": [("acme/b", 1, 8), ("blue/a", 1, 8)], "triggers": 1, "after_ms": 1_000})
PATIENT = {
    "version": 1,
    "resource_groups": {"gold": {"publish": {"messages_per_second": 1, "burst_seconds": 60}}},
    "defaults": {"resource_group": "gold"},
}
COSTLY = Step("run", {"rows": [("acme/a", 1, 100)], "triggers": 1, "after_ms": 1_000})
TIMED = {
    "version": 1,
    "resource_groups": {"gold": {"publish": {"request_percentage": 50, "burst_seconds": 2}}},
    "defaults": {"resource_group": "gold"},
}
CONTEST = Step("contest_for_time", {
    "document": TIMED, "heavy": ("acme/a", "blue/a"), "light": "cora/ü", "triggers": 15, "every": 5,
    "row_ns": (("acme", 10_000_000), ("blue", 100_000_000), ("cora", 10_000_000)),
})  # fmt: skip
ROOM_FOR_TIME = {
    "version": 1,
    "resource_groups": {"gold": {"publish": {"request_percentage": 50, "burst_seconds": 10}}},
    "defaults": {"resource_group": "gold"},
}
OF_EQUALS = Step("contest_for_time", {
    "document": ROOM_FOR_TIME, "heavy": ("acme/a", "acme/b", "acme/c"), "light": "cora/ü", "triggers": 60, "every": 25,
    "row_ns": (("acme", 5_000_000), ("blue", 0), ("cora", 60_000_000_000)),
})  # fmt: skip
GIANT = Step("run", {"rows": [("acme/a", 60_000, 1)], "triggers": 1, "after_ms": 1_000})
SMALL = Step("flood", {"rows": [("blue/a", 10, 150)], "triggers": 12, "after_ms": 1_000})
TWIN = Step("twin", {"is_other_query": False, "at": None, "rows": [("acme/a", 1, 5)]})
OTHER_QUERY = Step("twin", {"is_other_query": True, "at": None, "rows": [("acme/a", 1, 5)]})
PEER = Step("peer", {"name": "one", "percent": 100, "after_ms": 5_000})
SETTLE = Step("settle", {"rows": [("acme/a", 1, 30)], "triggers": 25})
SOON = Step("settle", {"rows": [("acme/a", 1, 30)], "triggers": 8})
SEAT = Step("seat", {"files": ["incarnation"], "is_register_gone": True})
COPY = Step("copy", {"is_elsewhere": False, "rows": [("acme/a", 1, 30)], "triggers": 10})
AGAIN = Step("restart", {"down_ms": 0, "jump_ms": 0})
AHEAD = Step("jump", {"by_ms": 86_400_000})
MANY = Step("burst", {"rows": [("acme/a", 1, 500)]})
MACHINES = [
    {"boot": "one", "ahead_ms": 0, "up_ms": 0}, {"boot": "two", "ahead_ms": 3_600_000, "up_ms": 10**9},
]  # fmt: skip
FAIL_OVER = Step("move", {"machines": MACHINES, "rows": [], "triggers": 3, "down_ms": 1_000})
FLOOD = Step("flood", {"rows": [("acme/a", 1, 100), ("blue/a", 1, 100)], "triggers": 12, "after_ms": 1_000})
CRASH = Step(
    "crash", {"at": "after table", "rows": [("acme/a", 1, 9)], "after_ms": 1_000, "down_ms": 0, "document": None}
)
POLICY = Step("policy", {"document": {"version": 1}})


def takes_a_batch_again(patch: pytest.MonkeyPatch) -> None:
    def append(self: TransactionalTable[Any], mark: BatchMark, rows: list[Any]) -> bool:
        self.rows += rows
        return True

    patch.setattr(TransactionalTable, "append", append)


def loses_the_last_row(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(simulated_query, "ids_of", lambda tables: [row for t in tables for row in t["id"].to_pylist()[:-1]])


def takes_no_lease_for_no_quota(patch: pytest.MonkeyPatch) -> None:
    def is_unleased(_: SharedBuckets, policy: CompiledPolicy) -> Bools:
        return np.zeros(len(policy.shared), dtype=np.bool_)

    patch.setattr(SharedBuckets, "is_unleased", is_unleased)


def pays(times: float) -> Fault:
    def fault(patch: pytest.MonkeyPatch) -> None:
        def refill(balance: Int64s, rate: Int64s, burst: Int64s, elapsed_ms: int) -> Int64s:
            return token_bucket.refill(balance, rate, burst, int(elapsed_ms * times))

        patch.setattr(shared_buckets, "refill", refill)

    return fault


def pays_at_every_failover(patch: pytest.MonkeyPatch) -> None:
    def moment(epoch: Epoch | None, clock: Clock, *known: Any) -> Moment:
        found = moment_after(epoch, clock, *known)
        return replace(found, reading=replace(found.reading, latest_wall_ms=found.reading.wall_ms))

    patch.setattr(plane, "moment_after", moment)


def serves_by_name(patch: pytest.MonkeyPatch) -> None:
    def weights(scope: Int64s, _: Limits) -> Int64s:
        return np.where(np.arange(len(scope)), 1, 1_000)

    patch.setattr(contenders, "_weights", weights)


def turns_the_order_round(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(simulated_query, "ids_of", lambda tables: [row for t in tables for row in t["id"].to_pylist()][::-1])


def trusts_the_shuffle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(decider_batch, "arranged", pa.concat_tables)


def follows_nothing(patch: pytest.MonkeyPatch) -> None:
    first: dict[int, Any] = {}

    def current(self: FollowedPolicies) -> Any:
        return first.setdefault(id(self), self.snapshot)

    patch.setattr(FollowedPolicies, "current", current)


def charges_twice(patch: pytest.MonkeyPatch) -> None:
    def pack_usage(usage: UsageReport) -> bytes:
        return pack_as_it_is(replace(usage, admitted=2 * usage.admitted))

    patch.setattr(decider_batch, "pack_usage", pack_usage)


def passes_any_size(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(size_bounds, "_bounds", lambda *_, **__: None)


def keeps_who_came_first(patch: pytest.MonkeyPatch) -> None:
    def overflowing(rows: queue_bounds.WaitingRows, *rest: Any, **_: Any) -> Int64s:
        return np.arange(rest[2].messages, len(rows))

    patch.setattr(queue_bounds, "overflowing", overflowing)


def leaves_half_of_the_queue_empty(patch: pytest.MonkeyPatch) -> None:
    def level(self: Any, queues: Layout) -> tuple[int, Int64s]:
        share, _ = found(self, queues)
        return share // 2, self.rows_up_to(share // 2, queues)

    found = queue_bounds.QueueRoom.level
    patch.setattr(queue_bounds.QueueRoom, "level", level)


def bounds_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(queue_bounds, "overflowing", lambda *_, **__: np.zeros(0, dtype=np.int64))


def guards_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RunFence, "check", lambda _: None)


def begins_before_it_is_refused(patch: pytest.MonkeyPatch) -> None:
    def made(self: RunFence, directory: Directory, then: Any = None) -> None:
        init(self, directory, then)
        self.begin()

    init = RunFence.__init__
    patch.setattr(RunFence, "__init__", made)


def forgets_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    def forget(self: ShareRegister, reports: dict[str, ShareReport]) -> None:
        oldest_ms = wall_ms[0]() - 1_010_000
        for stem in [stem for stem, each in reports.items() if each.published_ms < oldest_ms]:
            if reports[stem].member != self._member:
                del reports[stem]
                self._remove(stem)

    def made(self: LeaseKeeper, sharing: Sharing, exchange: Any, clocks: Clocks, *more: Any) -> None:
        wall_ms[0] = clocks.wall_ms if sharing.member != "one" else wall_ms[0]
        init(self, sharing, exchange, clocks, *more)

    init, wall_ms = LeaseKeeper.__init__, [lambda: 0]
    patch.setattr(LeaseKeeper, "__init__", made)
    patch.setattr(ShareRegister, "_forget", forget)


def all_runs_are_one(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SimulatedExchange, "draw_run", lambda _: 7)


def knows_no_other_run(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sharing, "_meet", lambda *_, **__: None)


def never_grows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sharing, "_grow", lambda *_: None)


def loses_charges(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reports, "read_charges", lambda *_, **__: {})


def counts_every_message_alike(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(work, "work_of_time", lambda price_ns, _: price_ns * 0 + MESSAGE)


def takes_rows_for_dearer_than_they_are(patch: pytest.MonkeyPatch) -> None:
    moved = measured_time.moved_prices
    patch.setattr(measured_time, "moved_prices", lambda *told, passed_ms: 100 * moved(*told, passed_ms=passed_ms))


def dies_of_a_row(patch: pytest.MonkeyPatch) -> None:
    def payload(table: pa.Table) -> pa.Table:
        raise ValueError(table)

    patch.setattr(decider_batch, "payload", payload)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "fault", "steps"),
    [
        ("L1", takes_a_batch_again, [CRASH]),
        ("L1", loses_the_last_row, [FLOOD]),
        ("L2", pays(3), [FLOOD]),
        ("L3", serves_by_name, [FLOOD]),
        ("L4", pays(0.2), [FLOOD]),
        ("L5", turns_the_order_round, [FLOOD]),
        ("L6", trusts_the_shuffle, [CRASH]),
        ("L7", follows_nothing, [FLOOD, POLICY, FLOOD]),
        ("L8", charges_twice, [FLOOD]),
        (ISOLATION, dies_of_a_row, [FLOOD]),
    ],
)
def test_a_law_finds_the_fault_that_breaks_it(
    law: str, fault: Fault, steps: Sequence[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    Life(Birth(GROUP), (law, ISOLATION)).play(steps)
    fault(monkeypatch)
    with pytest.raises(Violation) as found:
        Life(Birth(GROUP), (law, ISOLATION)).play(steps)
    assert found.value.law == law


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(
    ("law", "fault", "birth", "steps"),
    [
        ("L2", pays_at_every_failover, Birth(PATIENT), [MANY, *[FAIL_OVER] * 6]),
        ("L1", passes_any_size, Birth(BOUNDED), [GIANT]),
        ("Debt", passes_any_size, Birth(BOUNDED), [GIANT, SMALL]),
        ("Queue", keeps_who_came_first, Birth(FULL), [FILLS, OTHERS]),
        ("Queue", leaves_half_of_the_queue_empty, Birth(FULL), [FILLS, OTHERS]),
        ("Queue", bounds_nothing, Birth(FULL), [FILLS]),
        ("Takeover", guards_nothing, Birth(GROUP), [FLOOD, TWIN]),
        ("Takeover", begins_before_it_is_refused, Birth(GROUP), [FLOOD, OTHER_QUERY]),
        ("Sharing", forgets_by_the_wall_clock, Birth(GROUP, is_sharing=True), [PEER, SETTLE, AHEAD, AGAIN, SETTLE]),
        ("Sharing", never_grows, Birth(GROUP, is_sharing=True), [SETTLE]),
        ("Sharing", takes_no_lease_for_no_quota, Birth(STRICT, is_sharing=True), [SOON]),
        ("Sharing", all_runs_are_one, Birth(GROUP, is_sharing=True), [PEER, SOON, AGAIN, AGAIN, SEAT, SETTLE]),
        ("Charges", loses_charges, Birth(TIMED, row_ns=(("acme", 20_000_000),)), [COSTLY] * 3),
        ("Time", counts_every_message_alike, Birth(TIMED), [CONTEST]),
        ("Unspent", takes_rows_for_dearer_than_they_are, Birth(TIMED), [OF_EQUALS]),
        ("Sharing", knows_no_other_run, Birth(GROUP, is_sharing=True), [PEER, SOON, COPY]),
    ],
)
def test_a_law_of_more_than_one_run_or_job_finds_the_fault_that_breaks_it(
    law: str, fault: Fault, birth: Birth, steps: Sequence[Step], monkeypatch: pytest.MonkeyPatch
) -> None:
    Life(birth, (law, ISOLATION)).play(steps)
    fault(monkeypatch)
    with pytest.raises(Violation) as found:
        Life(birth, (law, ISOLATION)).play(steps)
    assert found.value.law == law


@pytest.mark.slow
@pytest.mark.parametrize("fault", [pays(0.2), serves_by_name])
def test_the_law_of_rejection_finds_that_a_group_rejects_whom_it_has_tokens_for(
    fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = [Step("run", {"rows": [("acme/a", 1, 9), ("blue/a", 1, 1)], "triggers": 6, "after_ms": 1_000})]
    Life(Birth(STRICT), ("Rejection", ISOLATION)).play(steps)
    fault(monkeypatch)
    with pytest.raises(Violation) as found:
        Life(Birth(STRICT), ("Rejection", ISOLATION)).play(steps)
    assert found.value.law == "Rejection"


@pytest.mark.slow
def test_the_law_of_rejection_lets_one_that_was_served_a_large_message_wait_for_its_turn() -> None:
    group = {"bytes_per_second": 1_000, "burst_seconds": 1}
    delays, rejects = (
        GROUP | {"resource_groups": {"gold": {"publish": group | {"on_excess": on_excess}}}}
        for on_excess in ("delay", "reject")
    )
    large = Step("run", {"rows": [("blue/a", 5_000, 1), ("acme/a", 100, 40)], "triggers": 1, "after_ms": 1_000})
    small = Step("run", {"rows": [("acme/a", 10, 60), ("blue/a", 10, 60)], "triggers": 12, "after_ms": 1_000})
    life = Life(Birth(delays), ("Rejection", ISOLATION))
    life.play([large, Step("policy", {"document": rejects}), small])
    assert life.batches > 12


@pytest.mark.slow
def test_laws_count_paying_time_from_the_clock_as_it_is_set_at_the_first_epoch() -> None:
    life = Life(Birth(PATIENT), ("L2", ISOLATION))
    move = Step("move", {"machines": MACHINES[:1], "rows": [], "triggers": 3, "down_ms": 1_000})
    life.play([Step("restart", {"down_ms": 1_000, "jump_ms": -3_600_000}), FLOOD, move])
    assert life.batches > 0


@pytest.mark.slow
def test_time_without_batches_before_a_move_to_a_clock_that_is_behind_is_not_counted_as_paid() -> None:
    life = Life(Birth(GROUP), ("L4", ISOLATION))
    # The bucket is a message short of full when the last batch leaves nothing. The minute after it brings no batch, and
    # on the other machine it never was.
    life.play([
        Step("burst", {"rows": [("acme/a", 1, 11)]}), Step("run", {"rows": [], "triggers": 63, "after_ms": 1_000}),
    ])  # fmt: skip
    behind = {"boot": "two", "ahead_ms": -120_000, "up_ms": 0}
    rows = [("acme/a", 1, 10), ("blue/a", 1, 10)]
    life.play([Step("move", {"machines": [behind], "rows": rows, "triggers": 10, "down_ms": 1_000})])
    assert life.batches > 10
    assert life.world.waiting
