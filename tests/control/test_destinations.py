"""What the control plane makes of destinations that push back: epochs that pin their rates, and when one is due."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_throttle.checkpoint.told import write_told
from spark_throttle.core.shares.destinations import WHOLE, Told
from spark_throttle.errors import ConfigurationError
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
REFUSED = Told(0, 3, WHOLE, 0, 900, 30)
TAKEN = Told(9, 0, WHOLE, 900, 0, 0)


@pytest.fixture
def query(tmp_path: Path) -> Query:
    query = Query(tmp_path, FakePolicies(snapshot(POLICY)))
    query.trigger()
    return query


def batch(query: Query, told: Told | None, admitted: int = 0) -> None:
    """Run a batch that was told something, with rows or for kept calls alone."""
    write_told(query.directory, query.next_batch, {} if told is None else {"api": told})
    query.batch(query.report({"acme/a": (admitted, 0)} if admitted else None))


def rate(query: Query) -> tuple[int, bool, int]:
    found = query.epoch.destinations
    assert found is not None
    return int(found.in_force_micro_per_ms[0]), bool(found.is_open[0]), int(found.unsent_messages[0])


def drained(query: Query, after_ms: int = 0) -> bool:
    """Return whether a query that ends when it has drained ends now."""
    query.now_ms += after_ms
    name = query.plane.next_epoch(query.name, ends_when_drained=True)
    is_over = name == query.name and query.plane.wait_ms() is None
    query.name = name
    return is_over


def test_epochs_pin_the_rate_and_a_new_process_finds_it(query: Query) -> None:
    assert rate(query) == (CEILING, False, 0)
    batch(query, Told(5, 1, WHOLE // 2, 500, 0, 30), admitted=10)
    query.trigger()
    lower, is_open, unsent = rate(query)
    assert (CEILING // 2 <= lower < CEILING, is_open, unsent) == (True, False, 30)
    batch(query, TAKEN, admitted=10)
    query.restart()
    query.trigger(4_000)
    higher, _, unsent = rate(query)
    assert (lower < higher <= CEILING, unsent) == (True, 0)


def test_epochs_pin_until_when_a_destination_asked_not_to_be_called_and_a_new_process_finds_it(query: Query) -> None:
    batch(query, Told(5, 1, WHOLE, 0, 0, 30, 2**41), admitted=10)
    query.restart()
    query.trigger(1_000)
    found = query.epoch.destinations
    assert found is not None
    assert found.closed_until_ms.tolist() == [2**41]
    batch(query, TAKEN)
    query.trigger(1_000)
    found = query.epoch.destinations
    assert found is not None
    assert found.closed_until_ms.tolist() == [0]


def test_kept_calls_make_a_batch_due_every_second_and_one_more_says_that_they_were_sent(query: Query) -> None:
    batch(query, Told(5, 1, WHOLE, 0, 0, 30), admitted=10)
    query.trigger()
    batch(query, Told(5, 1, WHOLE, 0, 0, 7))
    name = query.name
    assert query.trigger(999) == name
    assert query.plane.wait_ms() == 1
    assert query.trigger(1) != name
    batch(query, TAKEN)
    name = query.name
    assert query.trigger(1) != name
    batch(query, None)
    name = query.name
    assert query.trigger(10**6) == name


def test_nothing_is_admitted_while_kept_calls_ask_and_the_rate_comes_back_with_the_destination(query: Query) -> None:
    for _ in range(4):
        batch(query, REFUSED)
        query.trigger()
    assert rate(query) == (0, True, 30)
    assert query.tokens(1) <= 0
    batch(query, Told(30, 0, WHOLE, 900, 0, 0))
    query.trigger()
    assert rate(query) == (CEILING, False, 0)


@pytest.mark.slow
def test_query_that_ends_when_drained_tries_once_and_does_not_wait_for_an_unavailable_destination(query: Query) -> None:
    batch(query, REFUSED, admitted=10)
    for _ in range(2):
        assert not drained(query, 1_000)
        assert not rate(query)[1]  # it is not known to be unavailable yet
        batch(query, REFUSED)
    assert not drained(query, 1_000)
    assert rate(query) == (0, True, 30)
    batch(query, REFUSED)
    assert drained(query)
    query.restart()
    assert not drained(query, 1_000)  # the next run tries once, too
    batch(query, REFUSED)
    assert drained(query)
    query.restart()
    assert not drained(query, 1_000)
    batch(query, Told(30, 0, WHOLE, 0, 0, 12))
    assert not drained(query)  # it is back: the others follow


def test_jobs_that_share_their_quotas_refuse_a_destination() -> None:
    with pytest.raises(ConfigurationError, match="leave out `destination`, or the exchange"):
        SimulatedJob(POLICY, exchange=SimulatedExchange()).trigger()
