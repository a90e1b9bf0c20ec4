"""The soak test (`make soak MINUTES=n`): a job under constant overload, while quotas change and namespaces come and go.

Every few seconds a new revision of the policies comes into force, and every few batches the load moves to namespaces
that were never seen before. Meanwhile the memory of the driver and of the workers, the state, the batch time and the
checkpoint are sampled. They must stay flat: idle namespaces leave the state, and files that no batch can need are
removed. The plot is `build/soak/soak.png`. The last line of standard output is JSON: for every measure, its median in
the second quarter of the run, its median in the last quarter, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

import yaml
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from demos.sampling import DRIVER, JVM, WORKERS, folder_bytes, sample_processes
from demos.soak_plot import draw
from demos.tables import ask_for_place
from jobs.settings import JobSettings, parse_settings
from jobs.wiring import make_throttle, open_session, read_events, start_query, stop_between_batches, wait_for_end

ROOT: Final = Path(__file__).parent.parent
GROUPS: Final[list[dict[str, Any]]] = [
    {"prefix": "gold", "namespaces": 400, "messages_per_second": 2500, "zipf_exponent": 0.8, "bursts": False},
    {"prefix": "bronze", "namespaces": 400, "messages_per_second": 2500, "zipf_exponent": 1.1, "bursts": False},
]
GENERATION_ROWS: Final = 100_000
"""Number of rows after which all namespaces are new: twenty seconds of load."""

QUOTA_CHANGE_SECONDS: Final = 7
SAMPLE_SECONDS: Final = 5

Samples = dict[str, list[float]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak test; return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "soak", help="deleted, then written again")
    ask_for_place(parser)
    asked = parser.parse_args(arguments)
    out: Path = asked.out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    put_in_force(out, 0)
    settings = soak_settings(out, asked.place or out)
    throttle = make_throttle(settings.throttle)
    spark = open_session(settings)
    query = start_query(throttle, read_events(spark, settings.source), settings)
    samples = _soak(spark, query, out, settings.checkpoint, asked.minutes * 60)
    stop_between_batches(query)
    spark.stop()
    (out / "samples.json").write_text(json.dumps(samples))
    draw(samples, out / "soak.png")
    print(json.dumps(summary(samples), separators=(",", ":")), flush=True)
    return 0


def put_in_force(out: Path, number: int) -> None:
    """Replace the policies by the revision of a number; no two revisions are equal."""
    gold, bronze = 1200 + number % 5 * 100, 900 + number % 7 * 50
    policies = {
        "resource_groups": {
            "gold": {"publish": {"messages_per_second": gold, "burst_seconds": 5, "weight": 1 + number % 3}},
            "bronze": {"publish": {"messages_per_second": bronze, "burst_seconds": 5, "on_excess": "reject"}},
        },
        "tenants": {
            f"{group}-{tenant:02d}": {"resource_group": group} for group in ("gold", "bronze") for tenant in range(2)
        },
        # The values that make each revision different.
        "defaults": {"publish": {"messages_per_second": 100_000 + number, "burst_seconds": 5}},
        "queue": {"messages": 20_000, "age_seconds": 60},
    }
    written = out / "policies.tmp"
    written.write_text(yaml.safe_dump(policies))
    written.rename(out / "policies.yaml")


def soak_settings(out: Path, place: Path | str) -> JobSettings:
    """Return the settings of the soak test's job."""
    load = {
        "groups": json.dumps([{"tenants": 2} | group for group in GROUPS]),
        "maxRowsPerBatch": 50_000,
        "payloadBytes": 100,
        "seed": 7,
    }
    generation = f"concat(namespace, '.', cast(id div {GENERATION_ROWS} as string)) AS namespace"
    return parse_settings(
        {
            "source": {
                "format": "throttle_load",
                "options": load,
                "select": ["id", "ts", generation, "size_bytes", "payload"],
            },
            "throttle": {
                "policies": str(out / "policies.yaml"),
                "namespace": "namespace",
                "size": "size_bytes",
                "order_by": ["ts", "id"],
            },
            "sink": {"format": "delta", "path": f"{place}/admitted"},
            "rejected": {"format": "delta", "path": f"{place}/rejected"},
            "usage": f"{place}/usage",
            "checkpoint": f"{place}/checkpoint",
            "query_name": "soak",
            "spark": {
                "app_name": "spark-throttle soak",
                "conf": {
                    "spark.log.level": "ERROR",
                    "spark.ui.enabled": False,
                    "spark.ui.showConsoleProgress": False,
                    "spark.driver.memory": "2g",
                    # The data that Spark itself retains must reach its bound well before the run ends.
                    "spark.sql.streaming.minBatchesToRetain": 50,
                    "spark.databricks.delta.snapshotPartitions": 2,
                },
            },
        }
    )


def _soak(spark: SparkSession, query: StreamingQuery, out: Path, checkpoint: str, seconds: float) -> Samples:
    """Change quotas and take samples until the time is over; raise if the query fails."""
    samples: Samples = {}
    started = time.monotonic()
    next_sample = next_change = started
    revision = 0
    while (now := time.monotonic()) < started + seconds:
        if now >= next_change:
            revision += 1
            put_in_force(out, revision)
            next_change += QUOTA_CHANGE_SECONDS
        if now >= next_sample:
            for name, value in take_sample(spark, query, checkpoint).items():
                samples.setdefault(name, []).append(value)
            samples.setdefault("second", []).append(now - started)
            print(
                f"\r{now - started:6.0f} s of {seconds:.0f}, {revision} revisions", end="", file=sys.stderr, flush=True
            )
            next_sample += SAMPLE_SECONDS
        wait_for_end(query, max(0.05, min(next_sample, next_change) - time.monotonic()))
    print(file=sys.stderr)
    return samples


def take_sample(spark: SparkSession, query: StreamingQuery, checkpoint: str) -> Mapping[str, float]:
    """Return the job's present use of resources."""
    use = sample_processes()
    memory = spark._jvm.java.lang.management.ManagementFactory.getMemoryMXBean()  # type: ignore[union-attr] # noqa: SLF001 - a program that looks inside
    progress = query.lastProgress
    state = progress.stateOperators[0] if progress is not None and progress.stateOperators else None
    checkpoint_bytes, checkpoint_files = folder_bytes(checkpoint)
    control_bytes, control_files = folder_bytes(f"{checkpoint}/throttle")
    return {
        "jvm_heap_mib": memory.getHeapMemoryUsage().getUsed() / 2**20,
        "jvm_mib": use[JVM].resident_bytes / 2**20,
        "workers_mib": use[WORKERS].resident_bytes / 2**20 if WORKERS in use else 0.0,
        "driver_mib": use[DRIVER].resident_bytes / 2**20,
        "state_mib": state.memoryUsedBytes / 2**20 if state is not None else 0.0,
        "batch_seconds": progress.batchDuration / 1000 if progress is not None else 0.0,
        "rows_a_second": progress.processedRowsPerSecond if progress is not None else 0.0,
        "checkpoint_mib": checkpoint_bytes / 2**20,
        "checkpoint_files": checkpoint_files,
        "control_mib": control_bytes / 2**20,
        "control_files": control_files,
        "batches": float(progress.batchId) if progress is not None else 0.0,
    }


def summary(samples: Samples) -> dict[str, Any]:
    """Return the medians of every measure in the second and in the last quarter, and their ratio.

    Examples
    --------
    >>> summary({"second": [5.0, 10.0, 15.0, 20.0], "state_mib": [1.0, 2.0, 3.0, 3.0], "batches": [1.0, 2.0, 3.0, 9.0]})
    {'minutes': 0.3, 'batches': 9, 'state_mib': [2.0, 3.0, 1.5]}
    """
    count = len(samples["second"])
    quarter = max(1, count // 4)
    found: dict[str, Any] = {
        "minutes": round(samples["second"][-1] / 60, 1),
        "batches": int(samples["batches"][-1]),
    }
    for name, values in samples.items():
        if name not in ("second", "batches"):
            early, late = median(values[quarter : 2 * quarter]), median(values[count - quarter :])
            found[name] = [round(early, 2), round(late, 2), round(late / early, 2) if early else None]
    return found


if __name__ == "__main__":
    sys.exit(main())
