"""The throttle as a job: `spark-submit jobs/throttle_stream.py --conf conf/throttle.yaml`.

`conf/throttle.yaml` documents every setting, with its default and its reason. The job runs until it is stopped, until
all available rows have been decided (`trigger.available_now`), or for `stop_after_seconds`. It exits with status 1 if
the query fails, and with 2 if a setting is wrong or the policies cannot be read.

On a cluster, `--py-files jobs.zip` ships this package; spark_throttle must be installed on all machines, or come in a
packed environment (docs/install.md).
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql.streaming.query import StreamingQuery

if __name__ == "__main__":  # Python puts the folder of this file on its path, and not the one that holds `jobs`
    sys.path.append(str(Path(__file__).resolve().parent.parent))

from jobs.settings import JobSettings, load_settings
from jobs.wiring import (
    make_throttle,
    open_session,
    read_events,
    read_stream,
    reading,
    start_query,
    stop_between_batches,
    wait_for_end,
)
from spark_throttle.errors import ConfigurationError, PolicyError, StoreError
from spark_throttle.spark import Throttle

logger = logging.getLogger("throttle_stream")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the job, and return its exit status."""
    asked = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it says at INFO that a batch has called Python
    try:
        settings = load_settings(asked.conf, asked.set)
        throttle = make_throttle(settings.throttle, settings.exchange)
        if throttle.policies.kind != "table":  # which is read when the query starts, through the session's catalog
            throttle.policies.load()
        query = _start(throttle, settings)
    except (ConfigurationError, PolicyError, StoreError) as error:
        logger.error("%s", error)  # noqa: TRY400 - a wrong setting is not a failure of the program
        return 2
    logger.info("query %s (%s) is running", settings.query_name, query.id)
    _follow(query, throttle, settings)
    return 0


def _start(throttle: Throttle, settings: JobSettings) -> StreamingQuery:
    spark, costs = open_session(settings), None
    with reading("source", settings.source):
        events = read_stream(throttle, spark, settings)
    if settings.costs is not None:
        with reading("costs", settings.costs):
            costs = read_events(spark, settings.costs)
    return start_query(throttle, events, settings, costs)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--conf", type=Path, required=True, help="YAML file of settings, such as conf/throttle.yaml")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a setting, such as throttle.direction=dispatch",
    )
    return parser


def _follow(query: StreamingQuery, throttle: Throttle, settings: JobSettings) -> None:
    """Wait until the query ends, and log the last batch every `report_seconds`; a failed query raises."""
    left_seconds = settings.stop_after_seconds
    while True:
        wait_seconds = settings.report_seconds if left_seconds is None else min(left_seconds, settings.report_seconds)
        if wait_for_end(query, float(wait_seconds)):
            return
        if left_seconds is not None:
            left_seconds -= wait_seconds
            if left_seconds <= 0:
                stop_between_batches(query)
                return
        _report(throttle, query)


def _report(throttle: Throttle, query: StreamingQuery) -> None:
    status = throttle.status(query)
    for scope in status.scopes:
        if scope.level in ("job", "resource_group"):
            logger.info(
                "%s %s: %d messages offered, %d admitted, %d rejected, %d waiting",
                scope.level,
                scope.scope,
                scope.offered_messages,
                scope.admitted_messages,
                scope.rejected_messages,
                scope.waiting_messages,
            )


if __name__ == "__main__":
    sys.exit(main())
