"""When an epoch is due, and what it settles."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from spark_throttle.control.epochs import NO_EPOCH
from spark_throttle.control.feedback import read_reports
from spark_throttle.core.arithmetic.packing import pack
from spark_throttle.core.quota import MICRO
from tests.control.queries import SHARDS, Query, per_second


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path / "control")


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="spark_throttle.control.plane")
    return lambda: [record.getMessage() for record in caplog.records]


# When an epoch is due


def test_first_epoch_lends_full_buckets(query: Query) -> None:
    name = query.trigger()
    assert name.number == 1
    assert query.tokens() == 100
    assert query.epoch.settled_batch == -1
    assert query.epoch.lending.balance_micro.shape == (SHARDS, 2, 2)
    assert query.plane.epochs.policy_for(NO_EPOCH, name) is not None


def test_batch_that_moved_rows_is_followed_by_an_epoch_and_a_quiet_one_by_none(query: Query) -> None:
    first = query.trigger()
    query.batch(query.report(0, {"a/x": (5, 50)}), query.report(1))
    second = query.trigger()
    assert second.number == first.number + 1
    query.quiet_batch()
    assert [query.trigger() for _ in range(50)] == [second] * 50


def test_rows_without_a_namespace_are_movement_too(query: Query) -> None:
    first = query.trigger()
    query.batch(replace(query.report(0), invalid_messages=3), query.report(1))
    assert query.trigger() != first


def test_waiting_row_makes_an_epoch_due_when_it_may_leave_and_not_before(query: Query) -> None:
    query.trigger()
    query.batch(query.report(0, waiting=1, next_event_ms=query.now_ms + 5_000), query.report(1))
    first = query.name
    assert query.trigger(4_999) == first
    assert query.plane.wait_ms() == 1
    assert query.trigger(1).number == first.number + 1
    assert query.plane.wait_ms() == 0


def test_row_that_waits_for_ever_makes_none_due(query: Query) -> None:
    first = query.trigger()
    query.batch(query.report(0, waiting=1), query.report(1))
    assert query.plane.wait_ms() is None
    assert query.trigger(10**9) == first


def test_shard_that_did_not_report_since_keeps_its_waiting_rows_due(query: Query) -> None:
    query.trigger()
    query.batch(query.report(0), query.report(1, waiting=1, next_event_ms=query.now_ms + 3_000))
    query.batch(query.report(0))
    assert query.trigger(2_999).number == 1
    assert query.trigger(1).number == 2


def test_batches_that_left_no_row_make_none_due_and_lose_nothing(
    query: Query, warnings: Callable[[], list[str]]
) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (10, 0)}), query.report(1))
    first = query.trigger(0)
    query.quiet_batch()
    for _ in range(4):
        assert query.trigger() == first
        query.batch()
    query.restart()
    assert query.trigger(0) == first
    query.batch(query.report(0, {"a/x": (30, 0)}))
    query.trigger(0)
    assert query.tokens(0) == 100 - 30
    assert warnings() == []


def test_batches_that_left_no_row_leave_no_file(query: Query) -> None:
    query.trigger()
    query.quiet_batch()
    for _ in range(3):
        query.trigger()
        query.batch()
    assert list(read_reports(query.directory, after_batch=-1)) == [0]
    assert query.directory.names("feedback") == ["000000000000.all"]


def test_checkpoint_with_feedback_files_without_reports_goes_on(
    query: Query, warnings: Callable[[], list[str]]
) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (10, 0)}), query.report(1))
    for _ in range(3):
        old_empty_file(query)
    query.restart()
    query.trigger(0)
    assert query.tokens(0) == 90
    query.batch(query.report(0, {"a/x": (5, 0)}), query.report(1))
    old_empty_file(query)
    old_empty_file(query)
    query.trigger(0)
    assert query.tokens(0) == 85
    assert warnings() == []


def test_lost_report_is_not_made_good_by_a_batch_that_left_no_row(query: Query) -> None:
    first = query.trigger()
    old_empty_file(query)
    assert query.trigger(0).number == first.number + 1
    assert query.tokens(0) == -1


def old_empty_file(query: Query) -> None:
    """Write what older releases wrote of a batch that left no row."""
    query.directory.write(f"feedback/{query.next_batch:012d}.all", pack("fdbk", 1, {"reports": []}))
    query.next_batch += 1


def test_policy_change_is_due_at_once_and_is_brought_to_the_shards(query: Query) -> None:
    first = query.trigger()
    query.quiet_batch()
    assert query.trigger() == first
    query.policies.set({"job": per_second(7)})
    second = query.trigger()
    assert second.number == 2
    changed = query.plane.epochs.policy_for(first, second)
    assert changed is not None
    assert changed.shared.rate_micro_per_ms.tolist() == [[7_000, -1]]
    query.quiet_batch()
    query.policies.set({"job": per_second(8)})
    query.policies.set({"job": per_second(7)})
    assert query.trigger() == second
    assert query.plane.epochs.policy_for(second, second) is None


# What it settles


def test_epoch_settles_what_was_used_and_pays_the_time(query: Query) -> None:
    query.trigger()
    query.now_ms += 100
    query.batch(query.report(0, {"a/x": (60, 600)}), query.report(1, {"b/y": (30, 300)}))
    query.trigger(200)
    assert query.tokens(0) == 100 - 90 + 20
    assert query.tokens(1) == 40 - 90 + 8
    assert query.epoch.settled_batch == 0


def test_overdraft_is_settled_as_debt_that_lends_nothing(query: Query) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (141, 0)}), query.report(1))
    query.trigger(0)
    assert query.tokens(0) == -41
    assert (query.epoch.lending.balance_micro[:, 0, 0] < 0).all()


@pytest.mark.slow
def test_batch_without_an_epoch_is_settled_with_the_next(query: Query) -> None:
    query.trigger()
    query.quiet_batch()
    query.trigger(500)
    query.batch(query.report(1, {"b/y": (10, 0)}))
    query.trigger(0)
    assert query.tokens(0) == 90
    assert query.epoch.settled_batch == 1


def test_pause_before_a_batch_is_not_paid_again_after_it(query: Query) -> None:
    # An hour of pause fills a bucket of one second; what the batch then takes is gone.
    query.trigger()
    query.quiet_batch()
    query.trigger(3_600_000)
    query.batch(query.report(0, {"a/x": (100, 0)}))
    query.trigger(50)
    assert query.tokens(0) == 5


def test_shard_without_a_report_counts_as_having_used_all_it_was_lent(
    query: Query, warnings: Callable[[], list[str]]
) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (3, 0)}))
    query.trigger(0)
    # 101 messages pass a balance of 100; in epoch 1 shard 1 is lent the odd one.
    assert query.tokens(0) == 100 - 3 - 51
    assert warnings() == ["epoch 1: no usage report from shards [1]; their whole grants count as used"]


def test_lost_feedback_counts_every_grant_as_used(query: Query, warnings: Callable[[], list[str]]) -> None:
    query.trigger()
    query.quiet_batch()
    shutil.rmtree(query.path / "feedback")
    query.restart()
    query.trigger(0)
    assert query.tokens(0) == -1
    assert "shards [0, 1]" in warnings()[0]


def test_clock_that_goes_back_pays_nothing_and_goes_on_from_there(query: Query) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (90, 0)}), query.report(1))
    query.trigger(-3_600_000)
    assert query.tokens(0) == 10
    query.batch(query.report(0, {"a/x": (5, 0)}), query.report(1))
    query.trigger(100)
    assert query.tokens(0) == 10 - 5 + 10


def test_batches_longer_than_a_bucket_fills_are_warned_of_once(query: Query, warnings: Callable[[], list[str]]) -> None:
    query.trigger()
    for _ in range(3):
        query.batch(query.report(0, {"a/x": (1, 1)}), query.report(1))
        query.trigger(1_500)
    assert len(warnings()) == 1
    assert "the bucket of the job takes to fill (and 1 more): not all" in warnings()[0]
    assert "raise burst_seconds above 2" in warnings()[0]


def test_first_batch_of_a_run_is_no_slow_batch(query: Query, warnings: Callable[[], list[str]]) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (1, 1)}), query.report(1))
    query.trigger(40_000)
    assert warnings() == []


def test_pause_is_no_slow_batch(query: Query, warnings: Callable[[], list[str]]) -> None:
    query.trigger()
    query.quiet_batch()
    query.trigger(3_600_000)
    query.batch(query.report(0, {"a/x": (1, 1)}))
    query.trigger(400)
    assert warnings() == []


def test_slow_batch_at_the_largest_rates_does_not_overflow(query: Query, warnings: Callable[[], list[str]]) -> None:
    query.policies.set({"job": {"publish": {"bytes_per_second": 2**40, "burst_seconds": 1}}})
    query.trigger()
    for _ in range(2):
        query.batch(query.report(0, {"a/x": (1, 1)}), query.report(1))
        query.trigger(10**7)
    assert len(warnings()) == 1


# Quota changes


def test_quota_change_carries_balances_by_name_and_new_scopes_start_full(query: Query) -> None:
    query.policies.set({
        "job": per_second(1_000),
        "tenants": {"b": per_second(50)},
        "resource_groups": {"gold": per_second(40), "iron": per_second(30)},
        "defaults": {"resource_group": "gold"},
        "namespaces": {"c/z": {"resource_group": "iron"}},
    })  # fmt: skip
    query.trigger()
    used = {"a/x": (15, 0), "b/y": (10, 0)}
    query.batch(query.report(0, used), query.report(1, {"c/z": (12, 0)}))
    query.policies.set({
        "job": per_second(500),
        "tenants": {"a": per_second(70), "b": per_second(60)},
        "resource_groups": {"aaa": per_second(5), "gold": per_second(20), "iron": {}},
        "defaults": {"resource_group": "gold"},
    })  # fmt: skip
    query.trigger(0)
    # job (cut to its new burst), tenants a (new) and b, groups aaa (new), gold, iron (no limit any more)
    assert [query.tokens(scope) for scope in range(6)] == [500, 70, 40, 5, 15, 0]


def test_reports_of_the_old_revision_are_read_with_the_new_names(query: Query) -> None:
    query.trigger()
    query.batch(query.report(0, {"a/x": (10, 0)}, waiting=90), query.report(1, {"b/y": (10, 0)}, waiting=90))
    query.policies.set({
        "job": per_second(90),
        "resource_groups": {"aaa": per_second(1), "iron": per_second(80)},
        "defaults": {"resource_group": "iron"},
        "namespaces": {"a/x": {"resource_group": "aaa"}},
    })  # fmt: skip
    query.trigger(0)
    lent = query.epoch.lending.balance_micro[:, 1:, 0] // MICRO + 1
    assert lent[0, 0] >= 1  # a/x claims of aaa
    assert lent[1, 1] >= 79  # b/y claims all of iron
