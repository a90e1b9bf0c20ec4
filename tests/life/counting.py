"""How many messages of each namespace a job admits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from spark_throttle.testing.simulation.job import SimulatedJob


def admitted_in(seconds: int, job: SimulatedJob, rows: Iterable[tuple[str, int]]) -> Counter[str]:
    """Return how many go in so many batches, a second apart, when all rows are offered at the start."""
    job.offer(rows)
    for _ in range(seconds):
        job.trigger(1_000)
    return Counter(str(row.namespace) for row in job.admitted)
