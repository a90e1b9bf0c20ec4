"""What the cluster bench plans and counts, without a cluster."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.cluster.cluster import machine_of
from tests.cluster.plan import VICTIMS, draw_kills
from tests.cluster.requests import between, by_owner, request_of

POINTS = [f"point-{number}" for number in range(11)]


@pytest.mark.parametrize("seed", range(5))
def test_half_of_a_hundred_kills_stand_at_points_and_each_victim_has_its_quarter(seed: int) -> None:
    kills = draw_kills(100, seed, POINTS)
    assert Counter(kill.victim for kill in kills) == dict.fromkeys(VICTIMS, 25)
    at = Counter(kill.point for kill in kills if kill.point is not None)
    assert at.total() == 50
    assert set(at) == set(POINTS)
    assert sum(0 < kill.outage_seconds <= 20 for kill in kills) >= 8
    assert sum(kill.outage_seconds >= 90 for kill in kills) == 2
    assert {kill.is_silent for kill in kills if kill.outage_seconds} == {False, True}
    assert kills == draw_kills(100, seed, POINTS)


@pytest.mark.parametrize(
    ("method", "address", "expected"),
    [
        ("HEAD", "/lake/checkpoint/metadata", ("spark/metadata", "HEAD")),
        ("GET", "/lake?list-type=2&prefix=checkpoint/state/0/1/", ("spark/state", "LIST")),
        ("GET", "/lake/?list-type=2&delimiter=%2F", ("other", "LIST")),
        ("POST", "/lake/checkpoint/throttle/epochs/7?uploads", ("control/epochs", "BEGIN")),
        ("POST", "/lake/checkpoint/throttle/epochs/7?uploadId=u", ("control/epochs", "COMPLETE")),
        ("POST", "/lake?delete", ("other", "DELETE")),
        ("PUT", "/lake/admitted/_delta_log/00.json", ("tables/log", "PUT")),
        ("PUT", "/lake/rejected/part=a%252Fb/x.parquet", ("tables/files", "PUT")),
        ("GET", "/lake/policies.yaml", ("policies", "GET")),
    ],
)
def test_request_is_told_by_its_address(method: str, address: str, expected: tuple[str, str]) -> None:
    assert request_of(method, address) == expected


def test_requests_of_a_batch_are_those_between_two_counts() -> None:
    counts = between({"spark/offsets PUT": 3}, {"spark/offsets PUT": 7, "tables/log PUT": 2, "exchange PUT": 5})
    assert counts == {"spark/offsets PUT": 4, "tables/log PUT": 2, "exchange PUT": 5}
    assert by_owner(counts, 2) == {"spark": 2.0, "tables": 1.0, "all": 3.0}


@pytest.mark.parametrize(("pid", "machine"), [(31, 2), (20, 1), (99, 1), (None, 1)])
def test_machine_of_a_process_is_killed_or_one_that_a_large_number_chooses(pid: int | None, machine: int) -> None:
    assert machine_of(pid, [[10, 11], [20], [30, 31]], otherwise=40_000) == machine
