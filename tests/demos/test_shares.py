"""The account of `make shares`, against runs that were made up."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from demos.shares_account import (
    GROUPS,
    Admissions,
    Moments,
    SharesAccount,
    SharesRun,
    _cycles,
    _first_row_ms,
    _is_near,
    _utilisation,
    _worst,
)


def admitted(*batches: tuple[int, int]) -> Admissions:
    return Admissions(np.array([at_ms for at_ms, _ in batches]), np.array([messages for _, messages in batches]))


class Run:
    jobs = ("alpha", "beta")


def worst(alpha: Admissions, beta: Admissions) -> float:
    return _worst({("alpha", "gold"): alpha, ("beta", "gold"): beta}, Run(), "gold")  # type: ignore[arg-type]


def test_burst_and_what_is_earned_after_it_is_no_excess() -> None:
    assert worst(admitted((0, 6_000), (2_000, 1_000)), admitted((0, 4_000), (2_000, 1_000))) == 0


def test_excess_of_any_window_is_counted_by_the_job() -> None:
    alpha, beta = admitted((0, 0), (60_000, 5_000), (61_000, 1_000)), admitted((0, 0), (60_000, 5_008))
    assert worst(alpha, beta) == 8 / 2


def test_rate_is_what_came_between_the_first_and_the_last_batch_of_a_time() -> None:
    part = admitted((0, 10**6), (1_000, 500), (3_000, 1_500), (9_000, 10**6))
    assert part.rate(0, 5_000) == pytest.approx(2_000 / 3)
    assert part.rate(500, 2_000) == 0


def test_utilisation_is_of_the_group_that_used_less() -> None:
    parts = {
        ("alpha", "gold"): admitted((0, 0), (1_000, 500)), ("beta", "gold"): admitted((0, 0), (2_000, 1_000)),
        ("alpha", "silver"): admitted((0, 0), (1_000, 200)), ("beta", "silver"): admitted((0, 0), (1_000, 200)),
    }  # fmt: skip
    assert _utilisation(parts, ("alpha", "beta"), 0, 9_000) == pytest.approx(0.8)


def test_share_is_near_by_the_last_batch_before() -> None:
    share = np.array([0, 1_000]), np.array([300.0, 495.5])
    assert [_is_near(share, at_ms, 500) for at_ms in (-1, 500, 1_000, 2_000)] == [False, False, True, True]


def test_demand_is_known_from_the_plan_of_the_batch_that_took_in_its_first_row() -> None:
    written_ms = pa.array([900, 1_000, 1_400, 1_900]).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", "UTC"))
    assert _first_row_ms(pa.table({"ts": written_ms}), 1_000) == 1_400
    assert _first_row_ms(pa.table({"ts": written_ms}), 1_900) is None
    run = SharesRun(Path(), ("alpha", "beta"), 4, 40, Moments(0, {"beta wakes": 1_000, "gamma starts": 60_000}))
    shares = {
        (job, group): (np.array(times), np.array(parts) * quota)
        for group, quota in GROUPS.items()
        for job, times, parts in (
            ("alpha", [0, 1_500, 5_000, 6_000], [0.8, 0.8, 0.5, 0.5]),
            ("beta", [0, 1_450, 5_450, 5_451], [0.2, 0.2, 0.2, 0.5]),
        )
    }
    assert _cycles(run, shares, 1_400) == 2
    assert _cycles(run, shares, 1_451) == 1
    shares["alpha", "gold"][1][2:] = 510
    assert _cycles(run, shares, 1_400) is None


def test_account_is_one_line_and_says_whether_it_is_as_wanted() -> None:
    account = SharesAccount(0.0, 2, 0.98, 0.99, 0.99999)
    assert account.is_as_wanted
    assert json.loads(account.to_json()) == {
        "over_quota_worst": 0.0, "cycles_to_1_percent": 2, "utilisation_steady": 0.98, "utilisation_after_kill": 0.99,
        "jain": 1.0,
    }  # fmt: skip
    wrong: list[tuple[float, int | None, float]] = [(1.1, 2, 1.0), (0.0, 3, 1.0), (0.0, None, 1.0), (0.0, 2, 0.97)]
    for over, cycles, used in wrong:
        assert not SharesAccount(over, cycles, used, 1.0, 1.0).is_as_wanted
