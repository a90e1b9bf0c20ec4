"""What metering costs a function: its rows come in each form, 1,000 a call, and it takes about 10 us a row.

    python -m tests.benchmarks.metered [--calls N] [--rows N] [--us-per-row N] [--out FILE]

Printed per form: the CPU time that the wrapper takes of each call beside what the function takes, in percent, and the
fixed cost of a task, which is that of writing one file. The function is called as a worker of Spark calls it, without
Spark, so that nothing but the wrapper is measured: the same rows go through the wrapper and past it.

The function's work is measured in the same round as the wrapper, for a machine is not always equally fast: a figure is
the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from unittest import mock

import pyarrow as pa
from pyspark.sql import Row

from spark_throttle.spark.metering.charging import RunningTask
from spark_throttle.spark.metering.metered import Metered, MeteredQuery
from tests.benchmarks.results import save

NAMESPACES: Final = 50
ROUNDS: Final = 15
WORKS: Final = 3
"""Times that a round does the work."""

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
    work = Work.of(given.rows * given.us_per_row)
    numbers: dict[str, Any] = {"rows": given.rows, "us_per_row": given.us_per_row}
    for form in FORMS:
        percent, task_cost_us = costs(form, given.calls, given.rows, work)
        numbers[f"{form}_percent"] = round(percent, 3)
        numbers[f"{form}_us_per_task"] = round(task_cost_us, 1)
    save(numbers, given.out)
    print(json.dumps(numbers))


@dataclass(frozen=True)
class Work:
    """What the function does in a call: it counts."""

    steps: int

    @classmethod
    def of(cls, wanted_us: float) -> Work:
        """Return work that takes so long where the machine is at its fastest."""
        sample = cls(100_000)
        return cls(round(sample.steps * wanted_us / min(sample.spent_us() for _ in range(ROUNDS))))

    def spent_us(self) -> float:
        """Do it, and return the CPU time that it took."""
        began_ns = time.process_time_ns()
        for _ in range(self.steps):
            pass
        return (time.process_time_ns() - began_ns) / 1000


def costs(form: str, calls: int, rows: int, work: Work) -> tuple[float, float]:
    """Return what the wrapper costs a call, in percent of the function's work, and what it costs a task beside that.

    The function that the wrapper calls does nothing, so that nothing hides the wrapper.
    """
    names = pa.array([f"acme/{at * 7919 % NAMESPACES}" for at in range(rows)])
    batch = FORMS[form](pa.record_batch({"ns": names, "value": pa.array(range(rows))}))
    percents, task_costs_us = [], []
    for _ in range(ROUNDS):
        one_us, all_us = (
            spent_us(form, batch, count, is_metered=True) - spent_us(form, batch, count, is_metered=False)
            for count in (1, calls)
        )
        a_call_us = (all_us - one_us) / (calls - 1)
        works_us = [work.spent_us() for _ in range(WORKS)]
        percents.append(100 * a_call_us * WORKS / sum(works_us))
        task_costs_us.append(one_us - a_call_us)
    return statistics.median(percents), statistics.median(task_costs_us)


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
