"""A job of several queries that a test kills; to start a JVM for each of them costs twelve CPU seconds.

Run as ``python -m tests.recovery.killed_job DIRECTORY``. ``DIRECTORY/plan.json`` has the queries, each with a directory
of its own. First those run that pause at a point (`tests.recovery.faults`); once all stand there, the others. The job
never ends by itself.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.recovery import faults, paced_job, throttled_job
from tests.recovery.processes import Job
from tests.recovery.throttled_job import Place
from tests.sessions import brief_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_CORES = 8
"""A query that is held keeps its tasks' cores."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A query of the job."""

    root: str
    table: str = ""
    """Into a Delta table: ``whole`` or ``partitioned``."""

    url: str = ""
    """Where a query sends that has no table."""

    policies: str = ""
    """Those of a query that sends; the other reads a file."""

    point: str = ""
    """Where it pauses, if it does."""

    def start(self, spark: SparkSession) -> StreamingQuery:
        root = Path(self.root)
        if self.table:
            return throttled_job.start(spark, Place(root), self.table)
        return paced_job.start(spark, root, self.url, self.policies)


def start_job(root: Path, plan: Sequence[Planned]) -> Job:
    """Start the job in a process of its own."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "plan.json").write_text(json.dumps([asdict(query) for query in plan]))
    return Job("tests.recovery.killed_job", [str(root)], root / "job.log")


def main(root: Path) -> None:
    """Run the queries, and wait to be killed."""
    plan = [Planned(**each) for each in json.loads((root / "plan.json").read_text())]
    paused = [query for query in plan if query.point]
    for query in paused:
        faults.arm(Path(query.root), query.point)
    faults.keep_journal()
    faults.stop_at_points()
    pause = threading.Event()
    with brief_session(root / "scratch", cores=_CORES) as spark:
        running = {query.root: query.start(spark) for query in paused}
        while not all(faults.reached(Path(place)).exists() for place in running):
            for place, started in running.items():
                assert started.isActive, f"{place} ended before its point: {started.exception()}"
            pause.wait(0.1)
        for query in plan:
            if not query.point:
                query.start(spark)
        pause.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
