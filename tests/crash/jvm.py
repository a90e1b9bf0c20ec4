"""Spark's JVM in a session of processes of its own: the job's Python can be killed and come back, and Spark lives on.

So it is where a notebook's kernel is restarted. What the Python before left running goes on until the next one comes,
which ends it. A new JVM takes thirty CPU seconds to its third batch, one that is warm takes five.

Run as ``python -m tests.crash.jvm DIRECTORY SOURCE MASTER [--brief]``; a job finds it by the file `ADDRESS`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from tests.crash import points
from tests.crash.iceberg import warehouse_of
from tests.crash.topic import KAFKA
from tests.recovery.processes import Job
from tests.sessions import (
    FOR_FEW_ROWS,
    ICEBERG,
    SHORT_LIVED,
    files_without_processes,
    forked_python,
    pin_interpreter,
    session_settings,
    with_class_archive,
)

ADDRESS: Final = "gateway"
_LOOK_SECONDS: Final = 0.05
OF_QUERIES: Final = {
    "spark.sql.shuffle.partitions": "3",
    # The recount reads the offset log of all batches.
    "spark.sql.streaming.minBatchesToRetain": "100000",
}


class Jvm:
    """A JVM that waits for the job's Python."""

    def __init__(self, root: Path, source: str, master: str, *, is_brief: bool) -> None:
        self.master = master
        address = root / ADDRESS
        address.unlink(missing_ok=True)
        arguments = [str(root), source, master, *(["--brief"] if is_brief else [])]
        self._processes = Job("tests.crash.jvm", arguments, root / "job.log")
        assert self._processes.wait_for(address), self._processes.tail()

    def members(self, word: str) -> list[int]:
        """Return the processes that Spark started whose command line has a word, oldest first."""
        return self._processes.members(word)

    def signal(self, number: int) -> None:
        """Send a signal to all of its processes."""
        self._processes.signal(number)

    def kill(self) -> None:
        """Kill all of it at once."""
        self._processes.kill()


def settings_of(scratch: Path, source: str, master: str, *, is_brief: bool) -> dict[str, str]:
    """Return the settings of the job's session."""
    return (
        session_settings(scratch, uses=("delta", "kafka-connector") if source == KAFKA else ("delta",))
        | OF_QUERIES
        | (FOR_FEW_ROWS | files_without_processes() if is_brief else {})
        | (warehouse_of(scratch.parent) if ICEBERG else {})
        | {
            "spark.master": master,
            "spark.driver.memory": "1g",
            "spark.executor.extraJavaOptions": with_class_archive(SHORT_LIVED),
            # A killed executor is replaced as often as the plan wants.
            "spark.deploy.maxExecutorRetries": "-1",
            "spark.task.maxFailures": "8",
        }
    )


def attached_session(root: Path) -> SparkSession:
    """Return the session of the JVM that waits in a run's directory, in which nothing runs."""
    pin_interpreter()
    given = json.loads((root / ADDRESS).read_text())
    os.environ["PYSPARK_GATEWAY_PORT"] = str(given["port"])
    os.environ["PYSPARK_GATEWAY_SECRET"] = given["secret"]
    gateway = launch_gateway()  # type: ignore[no-untyped-call]
    running = gateway.jvm.SparkSession.getDefaultSession()
    if running.isDefined():
        jsc = gateway.jvm.JavaSparkContext.fromSparkContext(running.get().sparkContext())
        SparkContext(gateway=gateway, jsc=jsc, conf=SparkConf(_jconf=jsc.getConf()))
    else:
        conf = SparkConf(loadDefaults=False, _jvm=gateway.jvm).setAll(list(given["settings"].items()))
        SparkContext(gateway=gateway, conf=conf)
    session = SparkSession.builder.getOrCreate()
    for query in session.streams.active:
        query.stop()
    session.sparkContext.cancelAllJobs()
    while session.sparkContext.statusTracker().getActiveJobsIds():
        threading.Event().wait(_LOOK_SECONDS)
    return session


def main() -> None:
    """Start the JVM, and wait to be killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("source")
    parser.add_argument("master")
    parser.add_argument("--brief", action="store_true", help="costs less CPU time for some rows")
    asked = parser.parse_args()
    os.environ[points.DIRECTORY] = str(asked.root)
    scratch = asked.root / f"spark-{os.getpid()}"
    settings = settings_of(scratch, asked.source, asked.master, is_brief=asked.brief)
    with forked_python(scratch) if asked.brief else nullcontext() as python:
        pin_interpreter(python)
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        gateway = launch_gateway(conf).gateway_parameters  # type: ignore[no-untyped-call]
        new = asked.root / f"{ADDRESS}.new"
        new.write_text(json.dumps({"port": gateway.port, "secret": gateway.auth_token, "settings": settings}))
        new.rename(asked.root / ADDRESS)
        signal.pause()


if __name__ == "__main__":
    main()
