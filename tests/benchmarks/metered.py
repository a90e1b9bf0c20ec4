"""What metering costs a function: its rows come in each form, 1,000 a call, and it takes about 10 us a row.

    python -m tests.benchmarks.metered [--calls N] [--rows N] [--us-per-row N] [--out FILE]

Printed per form: the CPU time that the wrapper takes of each call beside what the function takes, in percent, and the
fixed cost of a task, which is that of writing one file. The function is called as a worker of Spark calls it, without
Spark, so that nothing but the wrapper is measured: the same rows go through the wrapper and past it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa
from pyspark.sql import Row

from spark_throttle.spark.metering.metered import Metered
from spark_throttle.spark.metering.metered_query import MeteredQuery
from spark_throttle.spark.metering.running_task import RunningTask
from tests.benchmarks.results import save

NAMESPACES: Final = 50
ROUNDS: Final = 5
FORMS: Final[dict[str, Callable[[pa.RecordBatch], Any]]] = {
    "arrow": lambda rows: rows,
    "pandas": lambda rows: rows.to_pandas(),
    "udf": lambda rows: tuple(rows.columns),
    "rows": lambda rows: [Row(**row) for row in rows.to_pylist()],
}


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--rows", type=int, default=1000, help="of a call")
    parser.add_argument("--us-per-row", type=float, default=10)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    call_us = given.rows * given.us_per_row
    numbers: dict[str, Any] = {"rows": given.rows, "us_per_row": given.us_per_row}
    for form in FORMS:
        call_cost_us, task_cost_us = costs_us(form, given.calls, given.rows)
        numbers[f"{form}_percent"] = round(100 * call_cost_us / call_us, 3)
        numbers[f"{form}_us_per_task"] = round(task_cost_us, 1)
    save(numbers, given.out)
    print(json.dumps(numbers))


def costs_us(form: str, calls: int, rows: int) -> tuple[float, float]:
    """Return what the wrapper costs a call, and what it costs a task beside its calls: each the median of rounds.

    The function does nothing, so that nothing hides the wrapper: what it takes of a real one is added to it.
    """
    names = pa.array([f"acme/{at * 7919 % NAMESPACES}" for at in range(rows)])
    batch = FORMS[form](pa.record_batch({"ns": names, "value": pa.array(range(rows))}))
    taken: dict[int, list[float]] = {1: [], calls: []}
    for _ in range(ROUNDS):
        for count, found in taken.items():
            found.append(spent_us(form, batch, count, is_metered=True) - spent_us(form, batch, count, is_metered=False))
    one, all_of_them = (statistics.median(found) for found in taken.values())
    a_call = (all_of_them - one) / (calls - 1)
    return a_call, one - a_call


def spent_us(form: str, batch: Any, calls: int, *, is_metered: bool) -> float:
    """Return the CPU time of a task."""
    with tempfile.TemporaryDirectory() as control:
        function: Callable[[Iterator[Any]], Any] = take_all if form == "rows" else each
        if is_metered:
            function = Metered(function, "cpu", 0 if form == "udf" else "ns", MeteredQuery(control))
        batches = [batch] * calls
        given = iter([row for rows in batches for row in rows] if form == "rows" else batches)
        began_ns = time.process_time_ns()
        results = function(given)
        if results is not None:
            for _ in results:
                pass
        return (time.process_time_ns() - began_ns) / 1000


def each(batches: Iterator[Any]) -> Iterator[Any]:
    """Return each batch as it is."""
    yield from batches


def take_all(rows: Iterator[Any]) -> None:
    """Take all rows."""
    for _ in rows:
        pass


if __name__ == "__main__":
    task = RunningTask(batch=0, stage=0, partition=0, attempt=0)
    with mock.patch.object(RunningTask, "current", return_value=task):
        main()
