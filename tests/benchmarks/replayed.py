"""What a replay of a day costs (`Throttle.what_if`): Spark's sums, the replay, and the memory of the driver.

    python -m tests.benchmarks.replayed [--events N] [--seconds N] [--interval 20s] [--out FILE]

The events are of 10,000 namespaces, of which a few send most; at noon they send three times as many as at midnight.
The policy in force has quotas of 500 tenants and 20 groups that nobody exceeds. Under the other a tenth of the tenants
and two groups have less than they send at noon. Both are replayed, which is counted apart. Times are by the clock, on
two cores; memory is the most that this process held beside the JVM.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's documents call it

from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from spark_throttle.spark.columns.recorded_traffic import duration_ms, summed
from spark_throttle.what_if.outcome import WhatIf, what_if
from tests.benchmarks.results import save
from tests.sessions import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACES: Final = 10_000
TENANTS: Final = 500
GROUPS: Final = 20
_FIRST_SECOND: Final = 1_760_000_400
_WARM: Final = 20_000


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the replay of a day cost, and what came out."""

    events: int
    interval_ms: int
    sums: int
    sum_seconds: float
    replay_seconds: float
    """Of both policies."""

    replay_cpu_seconds: float
    memory_mb: int
    delayed_messages: int
    waiting_messages: int
    rejected_messages: int


def write_day(spark: SparkSession, place: str, events: int, seconds: int) -> None:
    """Write events in the order of their times."""
    part = F.col("id") / events
    day = part - 0.08 * F.sin(2 * 3.141592653589793 * part)
    draw = F.pmod(F.xxhash64("id"), F.lit(1 << 40)) / (1 << 40)
    name = F.floor(NAMESPACES * draw * draw * draw)
    spark.range(events, numPartitions=16).select(
        F.timestamp_millis(F.floor(1_000 * (_FIRST_SECOND + seconds * day)).cast("bigint")).alias("sent_at"),
        F.concat(F.lit("t"), F.pmod(name, F.lit(TENANTS)), F.lit("/n"), name).alias("namespace"),
        (50 + F.pmod(F.xxhash64("id", F.lit(1)), F.lit(400))).cast("int").alias("size_bytes"),
    ).write.mode("overwrite").parquet(place)


def policy(per_second: float, *, is_in_force: bool) -> dict[str, Any]:
    """Return a policy; quotas are so many times what their scope sends in the mean."""
    share = [((n + 1) / NAMESPACES) ** (1 / 3) - (n / NAMESPACES) ** (1 / 3) for n in range(NAMESPACES)]
    tenants = [per_second * sum(share[tenant::TENANTS]) for tenant in range(TENANTS)]
    groups = [sum(tenants[group::GROUPS]) for group in range(GROUPS)]

    def quota(rate: float, times: float) -> dict[str, Any]:
        return {"publish": {
            "messages_per_second": round(rate * times, 3), "bytes_per_second": round(250 * rate * times),
            "burst_seconds": 60,
        }}  # fmt: skip

    def less(number: int, one_of: int, times: float) -> float:
        return 3 if is_in_force or number % one_of else times

    return {
        "version": 1,
        "resource_groups": {f"g{n}": quota(rate, less(n, 10, 1.7)) for n, rate in enumerate(groups)},
        "tenants": {
            f"t{n}": quota(rate, less(n, 9, 1.4)) | {"resource_group": f"g{n % GROUPS}"}
            for n, rate in enumerate(tenants)
        },
    }


def measure(day: DataFrame, per_second: float, interval_ms: int | None) -> tuple[Replayed, WhatIf]:
    """Sum and replay a day."""
    began = time.monotonic()
    traffic = summed(
        day, time=F.col("sent_at"), namespace=F.col("namespace"), size=F.col("size_bytes"), messages=F.lit(1),
        interval_ms=interval_ms,
    )  # fmt: skip
    summed_at, cpu = time.monotonic(), time.process_time()
    new, old = (
        compile_policy(parse_document(policy(per_second, is_in_force=each)), "publish") for each in (False, True)
    )
    found = what_if(traffic, new, old)
    job = found.scopes[0].policy
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Replayed(
        found.messages, traffic.interval_ms, len(traffic.interval), round(summed_at - began, 1),
        round(time.monotonic() - summed_at, 1), round(time.process_time() - cpu, 1), memory_mb,
        job.delayed_messages, job.waiting_messages, job.rejected_messages,
    ), found  # fmt: skip


def main() -> None:
    """Print the costs as one line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=lambda text: int(float(text)), default=10**8)
    parser.add_argument("--seconds", type=int, default=86_400)
    parser.add_argument("--interval")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    interval_ms = None if arguments.interval is None else duration_ms("interval", arguments.interval)
    with tempfile.TemporaryDirectory() as scratch:
        spark = open_session(Path(scratch), memory="4g", jvm_options="")
        place = f"{scratch}/day"
        write_day(spark, place, arguments.events, arguments.seconds)
        day = spark.read.parquet(place)
        measure(day.limit(_WARM), 1, 60_000)
        found, _ = measure(day, arguments.events / arguments.seconds, interval_ms)
        spark.stop()
    print(json.dumps(asdict(found)))
    save(asdict(found), arguments.out)


if __name__ == "__main__":
    main()
