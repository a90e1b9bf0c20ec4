"""Epochs pin the rates of destinations that push back, and are made when such a rate is due."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from spark_throttle.checkpoint.delivery import Delivery, write_delivery
from spark_throttle.core.shares.destinations import WHOLE, Told
from spark_throttle.core.undelivered import Undelivered, UndeliveredCall
from spark_throttle.errors import ConfigurationError, DamagedError
from spark_throttle.testing.simulation.exchange import SimulatedExchange
from spark_throttle.testing.simulation.job import SimulatedJob
from tests.control.queries import FakePolicies, Query, snapshot

CEILING = 100_000
POLICY = {
    "resource_groups": {
        "api": {
            "publish": {"messages_per_second": 100, "burst_seconds": 2},
            "destination": {"floor_messages_per_second": 5, "open_after_seconds": 3},
        }
    },
    "defaults": {"resource_group": "api"},
}
REFUSED = Told(0, 3, WHOLE, 0, 900)
TAKEN = Told(9, 0, WHOLE, 900, 0)
BACK = Undelivered.of([UndeliveredCall("acme/a", 0, 7)])


@pytest.fixture
def query(tmp_path: Path) -> Query:
    query = Query(tmp_path, FakePolicies(snapshot(POLICY)))
    query.trigger()
    return query


def batch(query: Query, told: Told, admitted: int = 10, undelivered: Undelivered = BACK) -> None:
    """Run a batch that was told something."""
    report = query.report({"acme/a": (admitted, 0)})
    delivery = Delivery({"api": told}, undelivered)
    write_delivery(query.directory, query.next_batch, report.now_ms, delivery)
    query.batch(replace(report, left_messages=admitted))


def rate(query: Query) -> tuple[int, bool]:
    found = query.epoch.destinations
    assert found is not None
    return int(found.in_force_micro_per_ms[0]), bool(found.is_open[0])


def drained(query: Query, after_ms: int = 0) -> bool:
    """Return whether a query that ends when it has drained ends now."""
    query.now_ms += after_ms
    name = query.plane.next_epoch(query.name, ends_when_drained=True)
    is_over = name == query.name and query.plane.wait_ms() is None
    query.name = name
    return is_over


def test_epochs_pin_the_rate_and_a_new_process_finds_it(query: Query) -> None:
    assert rate(query) == (CEILING, False)
    batch(query, Told(5, 1, WHOLE // 2, 500, 0))
    query.trigger()
    lower, is_open = rate(query)
    assert (CEILING // 2 <= lower < CEILING, is_open) == (True, False)
    batch(query, TAKEN)
    query.restart()
    query.trigger(4_000)
    assert lower < rate(query)[0] <= CEILING


def test_epochs_pin_what_was_not_delivered_once_and_a_new_process_finds_it(query: Query) -> None:
    assert query.epoch.undelivered is None
    batch(query, TAKEN)
    query.restart()
    query.trigger(1)
    found = query.epoch.undelivered
    assert found is not None
    assert (found.names.to_pylist(), found.rows.tolist()) == (["acme/a"], [7])
    query.batch(query.report({"acme/a": (3, 0)}))  # whose sink gives nothing back
    query.trigger(1)
    assert query.epoch.undelivered is None


def test_sink_that_says_nothing_gets_the_quota_whatever_another_one_said(query: Query) -> None:
    for _ in range(4):
        batch(query, REFUSED)
        query.trigger()
    assert rate(query) == (5_000, True)
    query.batch(query.report({"acme/a": (3, 0)}))
    query.trigger(1)
    assert rate(query) == (CEILING, False)


def test_what_is_sent_again_is_asked_for_after_its_destination_has_gone_from_the_policy(query: Query) -> None:
    in_doubt = Undelivered.of([UndeliveredCall("acme/a", 0, 7, 0, "x", 0)])
    batch(query, TAKEN, undelivered=in_doubt)
    query.policies.set({})
    query.trigger(1)
    assert query.epoch.destinations is None
    report = query.report({})
    write_delivery(query.directory, query.next_batch, report.now_ms, Delivery({}, in_doubt))
    query.batch(replace(report, left_messages=7))
    query.trigger(1)
    found = query.epoch.undelivered
    assert found is not None
    assert found.rows.tolist() == [7]


def test_batch_whose_record_is_gone_stops_the_query_if_rows_of_it_may_come_back(query: Query) -> None:
    query.batch(replace(query.report({"acme/a": (3, 0)}), left_messages=3))
    with pytest.raises(DamagedError, match="the record of what batch 0 delivered"):
        query.trigger(1)


def test_nothing_is_admitted_before_the_time_for_which_a_destination_asks_and_a_batch_is_due_then(query: Query) -> None:
    until_ms = query.now_ms + 2_500
    batch(query, Told(0, 1, WHOLE, 0, 0, until_ms))
    query.restart()
    query.trigger(500)
    assert rate(query) == (0, False)
    query.batch(query.report({}))
    name = query.name
    assert query.trigger(1_999) == name
    assert query.plane.wait_ms() == 1
    assert query.trigger(1) != name
    assert rate(query)[0] == CEILING


def test_unavailable_destination_is_asked_at_the_floor_and_the_rate_comes_back_with_it(query: Query) -> None:
    for _ in range(4):
        batch(query, REFUSED)
        query.trigger()
    assert rate(query) == (5_000, True)
    batch(query, Told(30, 0, WHOLE, 900, 0))
    query.trigger()
    assert rate(query) == (CEILING, False)


@pytest.mark.slow
def test_query_that_ends_when_drained_tries_once_and_does_not_wait_for_an_unavailable_destination(query: Query) -> None:
    for _ in range(3):
        assert not rate(query)[1]  # it is not known to be unavailable yet
        batch(query, REFUSED)
        assert not drained(query, 1_000)
    assert rate(query) == (0, True)
    report = query.report({})
    write_delivery(query.directory, query.next_batch, report.now_ms, Delivery())
    query.batch(report)
    assert drained(query)
    query.restart()
    assert not drained(query, 1_000)  # the next run tries once, too
    assert rate(query) == (5_000, True)


def test_jobs_that_share_their_quotas_refuse_a_destination() -> None:
    with pytest.raises(ConfigurationError, match="leave out `destination`, or the exchange"):
        SimulatedJob(POLICY, exchange=SimulatedExchange()).trigger()
