"""Three jobs share the quotas of two groups (`make shares`): one wakes up, one comes late, one is killed and returns.

Each job is a process of its own, started as `spark-submit` starts `jobs/throttle_stream.py`, with its own session,
checkpoint and tables. The jobs meet in a directory. alpha wants four fifths of each quota throughout; beta wants a
fifth, later four fifths; gamma, which has half as many namespaces, starts late. Then alpha is killed with SIGKILL, and
restarted later. Rows arrive as small files that this process writes. At the end the run is recounted from the tables
alone. The results are a plot, `build/shares/shares.png`, and one line of JSON, the last of standard output.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from demos.shares_account import GROUPS, Moments, SharesRun, take_shares_account
from demos.shares_plot import draw_shares
from demos.tables import ask_for_place, bring
from spark_throttle.files.storage import Directory
from spark_throttle.load.traffic import SCHEMA

ROOT: Final = Path(__file__).parent.parent
INTERVAL_SECONDS: Final = 4
LEASE_SECONDS: Final = 40
NAMESPACES: Final = {"alpha": 20, "beta": 20, "gamma": 10}
FILE_SECONDS: Final = 0.5
START_SECONDS: Final = 240
"""Time limit for a session's start and its first batches, on a machine with other load."""


@dataclass(frozen=True, slots=True)
class Script:
    """The durations of the scenario's phases, in seconds."""

    quiet: float = 16
    """alpha and beta run alone, and the quota suffices for both."""

    awake: float = 24
    """alpha and beta both want four fifths."""

    crowded: float = 40
    """All three jobs run."""

    without_alpha: float = LEASE_SECONDS + 16
    back: float = 24
    """Time from alpha's first batch after its restart to the end."""


@dataclass
class Feeder:
    """A writer of each job's rows as files, in real time."""

    out: Path
    wanted: dict[str, float] = field(default_factory=dict)
    """The part of each group's quota that a job is offered, by job."""

    ends: threading.Event = field(default_factory=threading.Event)
    _next_id: int = 0
    _owed: dict[tuple[str, str], float] = field(default_factory=dict)

    def run(self) -> None:
        """Write rows until told to stop."""
        last = time.monotonic()
        number = 0
        while not self.ends.wait(FILE_SECONDS):
            now = time.monotonic()
            for job, part in dict(self.wanted).items():
                self._write(job, part, now - last, number)
            last, number = now, number + 1

    def _write(self, job: str, part: float, seconds: float, number: int) -> None:
        names: list[str] = []
        for group, quota in GROUPS.items():
            owed = self._owed.get((job, group), 0.0) + part * quota * seconds
            count = int(owed)
            self._owed[job, group] = owed - count
            mine = NAMESPACES[job]
            names += [f"{group}-{job}/ns-{(self._next_id + n) % mine:02d}" for n in range(count)]
        ids = np.arange(self._next_id, self._next_id + len(names))
        self._next_id += len(names)
        now_us = time.time_ns() // 1000  # noqa: TID251 - the rows' own time, which decides nothing
        columns = [
            pa.array(ids), pa.array(names, pa.string()),
            pa.array(np.full(len(ids), now_us), pa.timestamp("us", tz="UTC")),
            pa.array(np.full(len(ids), 100, dtype=np.int32)), pa.array([b"x"] * len(ids), pa.binary()),
        ]  # fmt: skip
        hidden = self.out / job / "input" / f".{number:06d}.tmp"
        pq.write_table(pa.Table.from_arrays(columns, schema=SCHEMA), hidden)
        hidden.rename(hidden.with_name(f"{number:06d}.parquet"))


class Job:
    """A process of `jobs/throttle_stream.py`."""

    def __init__(self, out: Path, place: str, name: str) -> None:
        self.name, self.path, self.place = name, out / name, f"{place}/{name}"
        (self.path / "input").mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, policies: Path, exchange: str, master: str) -> None:
        """Start the process."""
        conf = self.path / "job.yaml"
        conf.write_text(yaml.safe_dump(self._settings(policies, exchange, master)))
        submit = f"--driver-memory 1g {os.environ.get('PYSPARK_SUBMIT_ARGS', 'pyspark-shell')}"
        with (self.path / "job.log").open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - this interpreter
                [sys.executable, str(ROOT / "jobs" / "throttle_stream.py"), "--conf", str(conf)],
                stdout=log, stderr=log, cwd=ROOT, env={**os.environ, "PYSPARK_SUBMIT_ARGS": submit},
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        """Kill the process, its JVM and its workers, with SIGKILL."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @property
    def batches(self) -> int:
        """Number of batches that the job has committed."""
        return sum(name.isdigit() for name in Directory(f"{self.place}/checkpoint").names("commits"))

    def wait_for_batches(self, count: int) -> None:
        """Wait until the job has committed `count` batches."""
        deadline = time.monotonic() + START_SECONDS
        pause = threading.Event()
        while self.batches < count:
            if time.monotonic() > deadline or (self.process is not None and self.process.poll() is not None):
                raise RuntimeError(f"job {self.name} does not run: see {self.path / 'job.log'}")
            pause.wait(0.1)

    def _settings(self, policies: Path, exchange: str, master: str) -> dict[str, Any]:
        return {
            "source": {
                "format": "parquet",
                "path": f"file:{self.path / 'input'}",
                "schema": "id BIGINT, namespace STRING, ts TIMESTAMP, size_bytes INT, payload BINARY",
            },
            "throttle": {
                "policies": str(policies),
                "namespace": "namespace",
                "size": "size_bytes",
                "order_by": ["ts", "id"],
            },
            "exchange": {"path": exchange, "job": self.name, "interval": INTERVAL_SECONDS, "lease": LEASE_SECONDS},
            "sink": {"format": "delta", "path": f"{self.place}/admitted"},
            "usage": f"{self.place}/usage",
            "checkpoint": f"{self.place}/checkpoint",
            "query_name": self.name,
            "trigger": {"processing_time": "1 second"},
            "spark": {
                "app_name": f"shares {self.name}",
                "master": master,
                "conf": {
                    "spark.cores.max": 1,
                    "spark.sql.streaming.minBatchesToRetain": 2000,
                    # Three sessions on two cores: see demos/demo.py.
                    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                    "spark.databricks.delta.stats.collect": False,
                    "spark.databricks.delta.writeChecksumFile.enabled": False,
                    "spark.databricks.delta.snapshotPartitions": 1,
                    "spark.log.level": "WARN",
                    "spark.ui.enabled": False,
                },
            },
        }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenario; return its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "shares", help="deleted, then written again")
    ask_for_place(parser)
    parser.add_argument("--master", default="local[1]", help="Spark's master; on a cluster, each job takes one core")
    parser.add_argument("--recount", action="store_true", help="recount and plot the last run, without a new one")
    asked = parser.parse_args(arguments)
    out: Path = asked.out
    if not asked.recount:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        moments = _run(out, asked.place or str(out), asked.master, Script())
        bring(asked.place, out)
        moments.save(out)
    run = SharesRun(out, tuple(NAMESPACES), INTERVAL_SECONDS, LEASE_SECONDS, Moments.load(out))
    books = take_shares_account(run)
    draw_shares(books, out / "shares.png")
    _say(f"tables in {out}, plot in {out / 'shares.png'}")
    print(books.account.to_json(), flush=True)
    return 0 if books.account.is_as_wanted else 1


def _run(out: Path, place: str, master: str, script: Script) -> Moments:
    policies = out / "policies.yaml"
    policies.write_text(yaml.safe_dump(_policies()))
    exchange = f"{place}/exchange"
    jobs = {name: Job(out, place, name) for name in NAMESPACES}
    feeder = Feeder(out)
    thread = threading.Thread(target=feeder.run, daemon=True)
    try:
        for name in ("alpha", "beta"):
            jobs[name].start(policies, exchange, master)
        for name in ("alpha", "beta"):
            jobs[name].wait_for_batches(1)
        feeder.wanted = {"alpha": 0.8, "beta": 0.2}
        thread.start()
        began = time.monotonic()
        began_ms = time.time_ns() // 1_000_000  # noqa: TID251 - of the machine whose batches are recounted
        at: dict[str, int] = {}

        def after(seconds: float, doing: str) -> None:
            threading.Event().wait(seconds)
            at[doing] = began_ms + int((time.monotonic() - began) * 1000)
            _say(f"{time.monotonic() - began:5.0f} s: {doing}")

        after(script.quiet, "beta wakes")
        feeder.wanted = {"alpha": 0.8, "beta": 0.8}
        after(script.awake, "gamma starts")
        feeder.wanted = {"alpha": 0.8, "beta": 0.8, "gamma": 0.6}
        jobs["gamma"].start(policies, exchange, master)
        jobs["gamma"].wait_for_batches(2)
        after(0, "gamma runs")
        after(script.crowded, "alpha is killed")
        jobs["alpha"].kill()
        after(script.without_alpha, "alpha starts again")
        before = jobs["alpha"].batches
        jobs["alpha"].start(policies, exchange, master)
        jobs["alpha"].wait_for_batches(before + 2)
        after(0, "alpha runs")
        after(script.back, "the end")
    finally:
        feeder.ends.set()
        for job in jobs.values():
            job.kill()
    return Moments(began_ms, at)


def _policies() -> dict[str, Any]:
    quota = {group: {"publish": {"messages_per_second": rate, "burst_seconds": 10}} for group, rate in GROUPS.items()}
    tenants = {f"{group}-{job}": {"resource_group": group} for group in GROUPS for job in NAMESPACES}
    return {"version": 1, "resource_groups": quota, "tenants": tenants}


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
