"""An epoch is made when it is due, and brings the decider what changed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_throttle.control.epochs import NO_EPOCH
from spark_throttle.control.reports import read_reports
from tests.control.queries import START_MS, FakePolicies, Query, per_second, snapshot


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "control")


@pytest.fixture
def timed(tmp_path: Path) -> Query:
    """Return a query with a quota on processing time."""
    quota: dict[str, object] = {"job": {"publish": {"request_percentage": 50, "burst_seconds": 2}}}
    return Query(tmp_path / "control", FakePolicies(snapshot(quota)))


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="spark_throttle.control.plane")
    return lambda: [record.getMessage() for record in caplog.records]


def test_plane_without_threads_is_stopped_as_any_other(query: Query) -> None:
    query.trigger()
    query.plane.stop()
    assert query.epoch.number == 1


# When an epoch is due


def test_first_epoch_brings_the_policy_and_full_buckets(query: Query) -> None:
    name = query.trigger()
    assert name.number == 1
    assert [query.tokens(scope) for scope in range(2)] == [100, 40]
    assert (query.epoch.settled_batch, query.epoch.earns_until_ms) == (-1, None)
    assert query.plane.epochs.policy_for(NO_EPOCH, name) is not None


def test_batches_that_move_rows_are_followed_by_no_epoch(query: Query) -> None:
    first = query.trigger()
    for _ in range(20):
        query.busy_batch(5)
        assert query.trigger() == first
    assert [query.trigger() for _ in range(50)] == [first] * 50
    assert query.plane.wait_ms() is None


def test_quota_on_time_is_settled_once_after_each_batch_that_moved_rows(timed: Query) -> None:
    timed.trigger()
    for number in range(2, 6):
        timed.busy_batch()
        assert timed.trigger().number == number
        assert timed.epoch.settled_batch == timed.next_batch - 1
        timed.quiet_batch()
        assert [timed.trigger().number for _ in range(5)] == [number] * 5


@pytest.mark.parametrize("after_ms", [1, 4_999])
def test_epoch_is_due_at_the_millisecond_in_which_a_waiting_row_may_leave(query: Query, after_ms: int) -> None:
    query.trigger()
    query.busy_batch(waiting=1, due_ms=query.now_ms + 5_000)
    first = query.name
    assert query.trigger(after_ms) == first
    assert query.plane.wait_ms() == 5_000 - after_ms
    assert query.trigger(4_999 - after_ms) == first
    assert query.trigger(1).number == first.number + 1
    assert query.plane.wait_ms() == 0


def test_newest_report_says_when_the_next_row_is_due(query: Query) -> None:
    first = query.trigger()
    query.busy_batch(waiting=1, due_ms=query.now_ms + 3_000)
    query.busy_batch(waiting=1, due_ms=query.now_ms + 9_000)
    assert query.trigger(8_999) == first
    query.busy_batch()
    assert query.trigger(10**9) == first


def test_row_that_waits_for_ever_makes_none_due(query: Query) -> None:
    first = query.trigger()
    query.busy_batch(waiting=1)
    assert query.plane.wait_ms() is None
    assert query.trigger(10**9) == first


def test_job_that_shares_nothing_waits_for_no_lease(query: Query) -> None:
    """A destination that is unavailable has a share of 0, too: a query that ends when it has drained ends."""
    query.trigger()
    query.batch(query.report({"a/x": (1, 1)}, waiting=1, due_with_quotas_ms=query.now_ms + 1))
    query.trigger()
    assert query.plane.wait_ms() is None


def test_batches_in_which_no_row_reaches_the_decider_make_none_due(
    query: Query, warnings: Callable[[], list[str]]
) -> None:
    query.trigger()
    query.busy_batch(10)
    first = query.trigger(0)
    for _ in range(4):
        query.batch()
        assert query.trigger() == first
    query.restart()
    assert query.trigger(0) == first
    query.busy_batch(30)
    assert query.trigger(0) == first
    assert query.tokens() == 100 - 30
    assert warnings() == []


def test_batches_in_which_no_row_reaches_the_decider_leave_no_file(query: Query) -> None:
    query.trigger()
    query.quiet_batch()
    for _ in range(3):
        query.trigger()
        query.batch()
    assert list(read_reports(query.directory, after_batch=-1)) == [0]
    assert [name.partition(".")[0] for name in query.directory.names("batches")] == ["000000000000"]


def test_lost_report_makes_one_epoch_due_and_changes_no_balance(query: Query) -> None:
    first = query.trigger()
    query.busy_batch(60)
    shutil.rmtree(query.path / "batches")
    query.restart()
    assert query.trigger(0).number == first.number + 1
    assert query.tokens() == 40
    query.quiet_batch()
    assert [query.trigger(0).number for _ in range(5)] == [first.number + 1] * 5


def test_policy_change_is_due_at_once_and_is_brought_to_the_decider(query: Query) -> None:
    first = query.trigger()
    query.quiet_batch()
    assert query.trigger() == first
    query.policies.set({"job": per_second(7)})
    second = query.trigger()
    assert second.number == 2
    changed = query.plane.epochs.policy_for(first, second)
    assert changed is not None
    assert changed.shared.rate_micro_per_ms.tolist() == [[7_000, -1, -1, -1]]
    query.quiet_batch()
    query.policies.set({"job": per_second(8)})
    query.policies.set({"job": per_second(7)})
    assert query.trigger() == second
    assert query.plane.epochs.policy_for(second, second) is None


# What the decider makes of it


def test_time_is_paid_whether_batches_bring_epochs_or_not(query: Query) -> None:
    query.trigger()
    query.now_ms += 100
    query.batch(query.report({"a/x": (60, 600), "b/y": (30, 300)}))
    query.now_ms += 200
    assert [query.tokens(0), query.tokens(1)] == [100 - 90 + 20, 40 - 90 + 8]
    query.busy_batch(0, waiting=1, due_ms=query.now_ms)
    assert query.trigger(100).number == 2
    assert [query.tokens(0), query.tokens(1)] == [40, -38]


def test_pause_before_a_batch_is_paid_once(query: Query) -> None:
    """An hour of pause fills a bucket of one second; what the batch then takes is gone."""
    query.trigger()
    query.quiet_batch()
    query.trigger(3_600_000)
    query.busy_batch(100)
    query.trigger(50)
    assert query.tokens() == 5


def test_clock_that_goes_back_pays_nothing_and_goes_on_from_there(query: Query) -> None:
    query.trigger()
    query.busy_batch(90)
    assert query.trigger(-3_600_000).number == 2
    assert query.tokens() == 10
    query.busy_batch(5)
    query.trigger(100)
    assert query.tokens() == 10 - 5 + 10


def test_quota_change_carries_balances_by_name_and_new_scopes_start_full(query: Query) -> None:
    query.policies.set({
        "job": per_second(1_000),
        "tenants": {"b": per_second(50)},
        "resource_groups": {"gold": per_second(40), "iron": per_second(30)},
        "defaults": {"resource_group": "gold"},
        "namespaces": {"c/z": {"resource_group": "iron"}},
    })  # fmt: skip
    query.trigger()
    query.batch(query.report({"a/x": (15, 0), "b/y": (10, 0), "c/z": (12, 0)}))
    query.policies.set({
        "job": per_second(500),
        "tenants": {"a": per_second(70), "b": per_second(60)},
        "resource_groups": {"aaa": per_second(5), "gold": per_second(20), "iron": {}},
        "defaults": {"resource_group": "gold"},
    })  # fmt: skip
    query.trigger(0)
    # job (cut to its new burst), tenants a (new) and b, groups aaa (new), gold, iron (no limit any more)
    assert [query.tokens(scope) for scope in range(6)] == [500, 70, 40, 5, 15, 0]


# Late batches


def late(query: Query, late_ms: int) -> None:
    """Run a batch that leaves a row that could leave at once, and trigger later."""
    query.busy_batch(waiting=1, due_ms=query.now_ms)
    query.trigger(late_ms)


def test_rows_that_wait_longer_than_a_bucket_fills_are_warned_of_once(
    query: Query, warnings: Callable[[], list[str]]
) -> None:
    query.trigger()
    for _ in range(5):
        late(query, 1_500)
    (line,) = warnings()
    assert "1500 ms before their batch, longer than the bucket of the job takes to fill (and 1 more):" in line
    assert "raise burst_seconds above 2" in line


def test_first_batches_of_a_run_are_not_late(query: Query, warnings: Callable[[], list[str]]) -> None:
    query.trigger()
    for run in range(3):
        for late_ms in (40_000, 100):
            late(query, late_ms)
        if run < 2:
            query.now_ms += 3_600_000
            query.restart()
            query.trigger(0)
    assert warnings() == []


def test_pause_in_which_no_row_waits_is_not_late(query: Query, warnings: Callable[[], list[str]]) -> None:
    query.trigger()
    for _ in range(5):
        query.busy_batch()
        query.trigger(3_600_000)
    assert warnings() == []


def test_late_batch_at_the_largest_rates_does_not_overflow(query: Query, warnings: Callable[[], list[str]]) -> None:
    query.policies.set({"job": {"publish": {"bytes_per_second": 2**40, "burst_seconds": 1}}})
    query.trigger()
    for _ in range(4):
        late(query, 10**7)
    assert len(warnings()) == 1


# A checkpoint that is put back


def test_checkpoint_that_is_put_back_goes_on_from_its_own_state(query: Query) -> None:
    """What undone batches used, and when their rows were due, is undone with them."""
    first = query.trigger()
    query.busy_batch(10, waiting=1, due_ms=query.now_ms + 1_000)
    second = query.trigger(1_000)
    query.busy_batch(80, waiting=1, due_ms=query.now_ms + 1)
    query.trigger(1)
    query.busy_batch(20)
    query.put_back(1, first)
    assert query.trigger(0).number == second.number
    assert query.tokens() == 100
    query.busy_batch(1)
    assert query.trigger(100) == query.name
    assert list(read_reports(query.directory, after_batch=-1)) == [0, 1]


def test_quota_on_time_that_is_put_back_settles_the_batches_that_are_left(timed: Query) -> None:
    names = [timed.trigger()]
    for _ in range(6):
        timed.busy_batch()
        names.append(timed.trigger())
    timed.put_back(3, names[2])
    assert timed.trigger().number == 4
    assert timed.epoch.settled_batch == 2
    assert list(read_reports(timed.directory, after_batch=-1)) == [0, 1, 2]


def test_epochs_begin_at_the_wall_clocks_time(query: Query) -> None:
    query.trigger(0)
    assert query.epoch.paid_ms == START_MS
