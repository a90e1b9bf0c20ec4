"""The demonstration (`make run`): 22,000 messages per second from 200 namespaces, each group held to its quota.

Synthetic traffic from a seed is offered for half a minute; the group bronze is offered three times its quota. Admitted
and rejected rows go to Delta tables under `build/run`, while standard error shows a live table. When the queue has
drained, or after a time limit, the query is stopped and the run is recounted from its tables alone. The results are a
plot, `build/run/throttle.png`, and one line of JSON, the last of standard output. The exit status is 0 if no row was
lost or duplicated and no limit was exceeded.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console

from demos.account import Run, take_account
from demos.introduction import introduction
from demos.live_table import LiveTable
from demos.plots import Story, draw
from demos.tables import ask_for_place, bring
from jobs.settings import JobSettings, parse_settings
from jobs.wiring import make_throttle, open_session, read_events, start_query, stop_between_batches, wait_for_end
from spark_throttle.load.traffic import LoadOptions
from spark_throttle.policy.compile import compile_policy
from spark_throttle.spark import Throttle
from spark_throttle.spark.state_reader import read_queued
from spark_throttle.store.policy_location import load_policies

ROOT: Final = Path(__file__).parent.parent
GROUPS: Final[list[dict[str, Any]]] = [
    {"prefix": "gold", "namespaces": 50, "messages_per_second": 7500, "zipf_exponent": 0.6, "bursts": False},
    {"prefix": "silver", "namespaces": 50, "messages_per_second": 4000, "zipf_exponent": 0.8},
    {"prefix": "bronze", "namespaces": 50, "messages_per_second": 9000, "zipf_exponent": 0.3, "bursts": False},
    {"prefix": "free", "namespaces": 50, "messages_per_second": 1500, "zipf_exponent": 1.0, "bursts": False},
]
OVERLOADED: Final = "bronze"
MOST_SECONDS: Final = 140
"""Time limit of the run, including the session's start, after which the query is stopped even if rows wait."""

PATIENCE_SECONDS: Final = 15
"""Time that a stopped query then has to finish its batch."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; return its exit status."""
    started = time.monotonic()
    asked = _parser().parse_args(arguments)
    out: Path = asked.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    settings = demo_settings(asked.place or out, asked.policies, asked.seconds, asked.seed)
    policies = load_policies(settings.throttle.policies)
    Console(stderr=True).print(introduction(policies, {g["prefix"]: g["messages_per_second"] for g in GROUPS}))
    _say("Spark is starting; the first rows move in half a minute or less")
    throttle = make_throttle(settings.throttle)
    spark = open_session(settings)
    events = read_events(spark, settings.source)
    query = start_query(throttle, events, settings)
    _watch(query, throttle, limit=int(settings.source.options["limit"]), started=started)
    stop_between_batches(query, PATIENCE_SECONDS)
    queued = read_queued(spark, settings.checkpoint, schema=events.schema).toArrow()
    spark.stop()

    bring(asked.place, out)
    run = Run(
        checkpoint=out / "checkpoint",
        admitted=out / "admitted",
        rejected=out / "rejected",
        traffic=LoadOptions.parse(settings.source.options).traffic,
        policy=compile_policy(policies, settings.throttle.direction),
        overloaded=OVERLOADED,
    )
    books = take_account(run, queued)
    picture = out / "throttle.png"
    draw(Story(run.policy, books, [group["prefix"] for group in GROUPS], OVERLOADED), picture)
    _say(f"tables in {out}, plot in {picture}")
    print(books.account.to_json(), flush=True)
    return 0 if books.account.keeps_the_laws else 1


def demo_settings(
    place: Path | str,
    policies: Path | str,
    seconds: int,
    seed: int,
    groups: Sequence[Mapping[str, Any]] = GROUPS,
) -> JobSettings:
    """Return the settings of the demonstration's job."""
    rate = sum(group["messages_per_second"] for group in groups)
    load = {
        "groups": json.dumps([{"tenants": 2} | dict(group) for group in groups]),
        "limit": rate * seconds,
        # A late batch reads at most three seconds' worth of rows; otherwise the next one would be even later.
        "maxRowsPerBatch": 3 * rate,
        "burstFactor": 3,
        "burstSeconds": 2,
        "seed": seed,
    }
    return parse_settings(
        {
            "source": {"format": "throttle_load", "options": load},
            "throttle": {
                "policies": str(policies),
                "namespace": "namespace",
                "size": "size_bytes",
                "order_by": ["ts", "id"],
            },
            "sink": {"format": "delta", "path": f"{place}/admitted"},
            "rejected": {"format": "delta", "path": f"{place}/rejected"},
            "checkpoint": f"{place}/checkpoint",
            "query_name": "demo",
            "spark": {
                "app_name": "spark-throttle demo",
                "conf": {
                    # The recount reads the log entry of every batch.
                    "spark.sql.streaming.minBatchesToRetain": 1000,
                    # For two cores and one minute. Otherwise half of a batch's time would go into optimising the JVM's
                    # code for hours to come, into statistics of files that nobody searches, and into empty tasks.
                    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC",
                    "spark.databricks.delta.stats.collect": False,
                    "spark.databricks.delta.writeChecksumFile.enabled": False,
                    "spark.databricks.delta.snapshotPartitions": 2,
                    "spark.log.level": "ERROR",
                    "spark.ui.enabled": False,
                    "spark.ui.showConsoleProgress": False,
                },
            },
        }
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "run", help="deleted, then written again")
    ask_for_place(parser)
    parser.add_argument("--policies", type=Path, default=ROOT / "conf" / "policies" / "demo.yaml")
    parser.add_argument("--seconds", type=int, default=30, help="how long traffic is offered")
    parser.add_argument("--seed", type=int, default=20261121, help="seed of the traffic")
    return parser


def _watch(query: StreamingQuery, throttle: Throttle, *, limit: int, started: float) -> None:
    """Show the query until the queue has drained or the time limit is reached; raise if the query fails."""
    with LiveTable([group["prefix"] for group in GROUPS]) as table:
        while (passed := time.monotonic() - started) < MOST_SECONDS:
            if wait_for_end(query, 0.25):
                return
            status, offered = throttle.status(query), offered_rows(query)
            doing = "draining" if offered >= limit else "offering" if offered else "starting"
            table.show(status, f"{doing}, {passed:.0f} s, {offered:,} of {limit:,} messages offered")
            if offered >= limit and not any(job.waiting_messages for job in status.of_level("job").values()):
                return


def offered_rows(query: StreamingQuery) -> int:
    """Return the number of `throttle_load` rows read so far, from the last batch's progress."""
    progress = query.lastProgress
    offsets = [] if progress is None else [json.loads(source.endOffset or "null") for source in progress.sources]
    return next((offset["rows"] for offset in offsets if isinstance(offset, dict) and "rows" in offset), 0)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
