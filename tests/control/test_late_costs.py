"""What functions tell of late costs is pinned in one epoch, which is due for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from spark_throttle.control.charges import write_charges
from spark_throttle.core.reservations import LateCosts
from spark_throttle.core.time_charges import TimeCharges
from tests.control.queries import Query


def tell(query: Query, batch: int, *units: int) -> None:
    """Write what tasks of a batch told, each of one row."""
    for task, cost in enumerate(units):
        costs = LateCosts(np.array([[batch, task]]), np.array([cost]))
        write_charges(query.directory, batch, TimeCharges.of({"a/x": 5}, costs=costs), part=f"f.{task}")


def pinned(query: Query) -> list[int]:
    costs = query.epoch.costs
    return [] if costs is None else sorted(costs.units.tolist())


def test_late_costs_are_pinned_once_and_again_if_the_checkpoint_is_put_back(tmp_path: Path) -> None:
    query = Query(tmp_path, takes_costs=True)
    first = query.trigger()
    tell(query, 0, 7, 9)
    query.busy_batch()
    second = query.trigger()
    assert second != first
    assert pinned(query) == [7, 9]
    query.busy_batch()
    assert query.trigger() == second  # nothing more is told
    tell(query, 2, 4)
    query.busy_batch()
    query.restart()
    assert query.trigger() != second
    assert pinned(query) == [4]
    query.busy_batch()
    query.restart()
    query.name, query.next_batch = first, 1  # put back to before the second batch
    query.trigger()
    assert pinned(query) == [7, 9]


def test_query_that_reserves_no_row_reads_no_charges_but_for_time(tmp_path: Path) -> None:
    query = Query(tmp_path)
    first = query.trigger()
    tell(query, 0, 7)
    query.busy_batch()
    assert query.trigger() == first
