"""What the figures of `make bench` say about the numbers that its parts left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.benchmarks.figures import _regimes, figures


def costs(*cpu_seconds: float) -> list[dict[str, float]]:
    return [{"cpu_seconds": each, "wall_seconds": each / 2, "batch_ms": 100 * each} for each in cpu_seconds]


def paths(**changed: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "parquet_delta": {"staged": costs(2, 4, 5), "shuffle": costs(2, 2, 5), "plain": costs(1, 1, 1)},
        "parquet_nothing": {"references": costs(4), "staged": costs(8), "shuffle": costs(4), "plain": costs(2)},
        "floor": {"staged": costs(3, 3), "references": costs(2, 1), "identity": costs(2, 1)},
    }
    return {"paths": found | changed}


def test_a_ratio_is_taken_round_by_round_and_its_median_counts() -> None:
    figure = next(each for each in figures(paths()) if each.key == "vs_shuffle")
    assert figure.of == "parquet_delta"
    assert figure.values == (1.0, 0.5, 1.0)
    assert figure.as_json()["median"] == 1.0
    assert figure.is_reached


def test_a_job_that_takes_longer_passes_fewer_rows_for_each_of_its_opponent() -> None:
    by_key = {(each.key, each.of): each for each in figures(paths())}
    assert by_key["vs_plain", "parquet_delta"].value == 0.25
    assert not by_key["vs_plain", "parquet_delta"].is_reached
    assert by_key["vs_shuffle", "parquet_nothing"].value == 1
    assert by_key["vs_shuffle", "parquet_nothing, staged"].value == 0.5


def test_the_floor_of_a_batch_is_a_cost_and_must_not_pass_its_bound() -> None:
    floor, of_references = (each for each in figures(paths()) if each.key == "batch_floor_ratio")
    assert floor.values == (1.5, 3.0)
    assert floor.wall_values == (1.5, 3.0)
    assert not floor.is_reached
    assert of_references.is_reached


def test_rounds_that_do_not_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        figures(paths(floor={"staged": costs(3, 3), "identity": costs(2)}))


def test_a_row_of_the_kernel_is_told_by_what_runs_short_and_by_the_form_of_its_name() -> None:
    def measured(name: str, *values: float) -> dict[str, Any]:
        return {"name": name, "values": list(values)}

    part = {
        "stream": [
            measured("one group, all fits, 1 x 1,000,000 (100 % admitted)", 19, 21),
            measured("one group, all fits, 1 x 1,000,000 (100 % admitted), names in a dictionary", 9, 11),
        ],
        "queue": [measured("tenth batch of 10,000, behind 44,999", 70)],
    }
    found = {each.of: (each.value, each.is_reached) for each in figures({"kernel": part})}
    assert found == {
        "fits": (20, True),
        "fits, names in a dictionary": (10, True),
        "tenth batch of 10,000, behind 44,999": (70, False),
    }


def test_a_backlog_costs_what_its_batches_take_beside_those_of_no_backlog() -> None:
    runs = [
        {"way": way, "waiting": waiting, "left_waiting": waiting, "batch_ms": took, "cpu_ms": 10 * took}
        for way, waiting, took in (
            ("staged", 0, 100.0), ("staged", 100_000, 110.0), ("references", 1_000_000, 250.0), ("references", 0, 125.0)
        )
    ]  # fmt: skip
    small, large = figures({"overload": runs})
    assert (small.of, small.value, small.is_reached) == ("staged, 100,000 rows waiting", 1.1, True)
    assert (large.of, large.value, large.is_reached) == ("references, 1,000,000 rows waiting", 2, False)


def test_a_regime_costs_what_it_takes_beside_the_one_in_which_nothing_runs_short() -> None:
    free, short = "nothing is limited: first", "one group, delay: second"
    regimes = [
        {"name": f"{name}: {way}", "values": values}
        for name, values in ((free, [10.0, 20.0]), (short, [30.0, 40.0]))
        for way in ("decide", "run_batch")
    ]
    found = [each for each in _regimes(regimes) if each.of.startswith("run_batch")]
    assert [(each.of, each.values) for each in found] == [
        (f"run_batch, {short}", (3.0, 2.0)), (f"run_batch, {free}", (1.0, 1.0)),
    ]  # fmt: skip


def test_an_epoch_is_planned_within_the_same_bound_however_many_namespaces_wait() -> None:
    part = [{"namespaces": namespaces, "plan_ms": ms} for namespaces, ms in ((10**5, 4.0), (10**5, 4.0), (10**6, 40.0))]
    hundred_thousand, million = figures({"planning": part})
    assert (hundred_thousand.values, hundred_thousand.is_reached) == ((4.0, 4.0), True)
    assert (million.values, million.is_reached) == ((40.0,), False)


def test_a_call_of_the_pacer_is_compared_with_the_cheapest_of_other_limiters() -> None:
    def runs(peer: str, *cpu_ns: int) -> list[dict[str, Any]]:
        return [
            {"way": "one thread", "peer": peer, "calls": 10, "cpu_ns": each, "wall_ns": 2 * each} for each in cpu_ns
        ]

    part = [
        *runs("limits", 9000, 9000), *runs("throttled-py", 9000, 9000), *runs("pyrate-limiter", 9000, 9000),
        *runs("aiolimiter", 1000, 1200), *runs("aiolimiter, async with", 1, 1), *runs("pace, acquire", 100, 100),
        *runs("pace, try_acquire", 200, 240), *runs("pace, await acquire", 250, 240),
    ]  # fmt: skip
    found = {each.of.removeprefix("one thread: pace, "): each for each in figures({"pace": part})}
    assert found["acquire"].values == (10.0, 12.0)
    assert (found["try_acquire"].values, found["try_acquire"].is_reached) == ((5.0, 5.0), True)
    assert (found["await acquire"].wall_values, found["await acquire"].is_reached) == ((4.0, 5.0), False)


def test_a_part_that_was_not_measured_has_no_figure() -> None:
    assert figures({}) == []


def test_processing_time_is_judged_by_its_quota_and_by_what_the_other_tenant_notices() -> None:
    found = figures({
        "metered": {"arrow_percent": 0.4, "pandas_percent": 0.6, "udf_percent": 0.4, "rows_percent": 1.1},
        "time_quota": {"dear_of_quota": 0.96, "latency_of_equal": 1.2},
    })  # fmt: skip
    assert [each.is_reached for each in found] == [True, True, True, False, True, False]
    assert figures({"time_quota": {"dear_of_quota": 1.06, "latency_of_equal": 1}})[0].is_reached is False
