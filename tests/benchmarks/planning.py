"""What an epoch costs the driver while many namespaces wait: `plan_ms`.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.planning [--namespaces N]... [--repeats N] [--out FILE]

One resource group is short of messages and of bytes, and every namespace has rows that wait in it. Each round decides
a batch, writes its report, and measures `ControlPlane.next_epoch`: the report is read, and the epoch is written. Times
are process CPU time on one thread.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.control.clock import Clock
from spark_throttle.control.epochs import NO_EPOCH
from spark_throttle.control.plane import ControlPlane
from spark_throttle.control.reports import write_report
from spark_throttle.core.batch.admission import Arrivals, plan_admission
from spark_throttle.core.names.matching import MatchMemory
from spark_throttle.core.policy_change import under_epoch
from spark_throttle.core.state import DeciderState
from spark_throttle.core.usage import pack_usage
from spark_throttle.files.storage import Directory
from spark_throttle.policy.codec import parse_document
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.source import PolicySnapshot
from tests.benchmarks.results import save

START_MS: Final = 1_760_000_000_000
NAMESPACES: Final = (100_000, 1_000_000)
_TENANTS: Final = 100
_MEAN_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class Planned:
    """The cost of one epoch."""

    namespaces: int
    plan_ms: float
    waiting_namespaces: int
    feedback_bytes: int


@dataclass
class _Policies:
    """A source of one policy."""

    snapshot: PolicySnapshot

    def current(self) -> PolicySnapshot:
        return self.snapshot


class Job:
    """A job of which only the decisions and the plans are made."""

    def __init__(self, folder: Path, namespaces: int) -> None:
        served = namespaces // 5
        group = {"publish": {
            "messages_per_second": served, "bytes_per_second": served * _MEAN_BYTES, "burst_seconds": 1,
        }}  # fmt: skip
        document = parse_document({
            "version": 1, "resource_groups": {"all": group}, "defaults": {"resource_group": "all"},
            "queue": {"messages": 10**9, "bytes": "1TiB"},
        })  # fmt: skip
        self._policy = compile_policy(document, "publish")
        self._directory, self._now_ms, self._batch, self._name = Directory(str(folder)), START_MS, 0, NO_EPOCH
        clock = Clock(lambda: self._now_ms, lambda: self._now_ms)
        policies = _Policies(PolicySnapshot(document, self._policy.revision, None))
        self._plane = ControlPlane(self._directory, policies, "publish", clock)
        self._state = DeciderState.initial(self._policy, now_ms=START_MS)
        self._memory = MatchMemory()
        self._names = pa.array([f"t{n % _TENANTS}/n{n}" for n in range(namespaces)])
        self._random = np.random.default_rng(1)

    def plan(self) -> float:
        """Plan the next batch, and return how many ms of CPU time that took."""
        self._now_ms += 1_000
        start = time.process_time_ns()
        self._name = self._plane.next_epoch(self._name)
        return (time.process_time_ns() - start) / 1e6

    def decide(self, rows_each: float) -> tuple[int, int]:
        """Decide a batch with so many rows a namespace; return how many namespaces wait, and the report's bytes."""
        rows = int(rows_each * len(self._names))
        key = self._random.integers(0, len(self._names), rows)
        size = self._random.integers(1, 2 * _MEAN_BYTES, rows)
        row = self._plane.epochs.load(self._name).control_row(None, self._policy)
        state = under_epoch(self._state, row, self._policy, self._policy, now_ms=self._now_ms)
        arrivals = Arrivals(self._names.take(pa.array(key)), pa.array(size))
        plan = plan_admission(state, arrivals, self._policy, now_ms=self._now_ms, memory=self._memory)
        self._state, usage = plan.state, replace(plan.usage, now_ms=self._now_ms, paid_ms=self._now_ms)
        report = pack_usage(usage)
        write_report(self._directory, self._batch, report)
        self._batch += 1
        return int((usage.waiting[:, 0] > 0).sum()), len(report)


def planned(namespaces: int, repeats: int) -> Iterator[Planned]:
    """Yield the cost of epochs after the first batches."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), namespaces)
        job.plan()
        for rows_each in (5, *(0.2 for _ in range(repeats))):
            waiting, feedback_bytes = job.decide(rows_each)
            yield Planned(namespaces, job.plan(), waiting, feedback_bytes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what every epoch cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--namespaces", type=int, action="append")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    pa.set_cpu_count(1)
    found = []
    for namespaces in asked.namespaces or NAMESPACES:
        for one in planned(namespaces, asked.repeats):
            print(
                f"{one.namespaces:10,} namespaces: {one.plan_ms:8.1f} ms, "
                f"{one.waiting_namespaces:,} wait, {one.feedback_bytes / 2**20:.1f} MiB of feedback", flush=True,
            )  # fmt: skip
            found.append(one)
    save([asdict(one) for one in found], asked.out)


if __name__ == "__main__":
    main()
