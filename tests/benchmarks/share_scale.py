"""PIP-82's scenario (`make scale`): what sharing costs one job of a hundred, as namespaces and their changes grow.

A group a namespace, each in five jobs. One job is real: its meter, its leases, its register, on files. The others are
made up, but write their reports as real ones do. Bytes are those of the files; memory is that of all objects which the
job holds for sharing; CPU is a whole cycle: measure, read everyone, divide, report. PIP-82's own figures are beside.

    python -m tests.benchmarks.share_scale [--namespaces 100000 300000 1000000]
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FunctionType, ModuleType

import numpy as np
import pyarrow as pa

from spark_throttle.control.demand import DemandMeter, SharedScopes
from spark_throttle.core.arithmetic.rate_codes import encode
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.sharing.exchange import FileExchange
from spark_throttle.sharing.peers import Update
from spark_throttle.sharing.register import ShareRegister
from spark_throttle.sharing.report import Mark, ScopeRows, ShareReport
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing
from tests.benchmarks.results import save
from tests.oracle.worlds import Namespace, limit, make_policy

JOBS, JOBS_A_NAMESPACE = 100, 5
PIP_82 = {"memory_mb": 1.0, "mb_a_minute": 56.0}
_RATE = 1_000_000
_CYCLES = {0.01: 30, 1.0: 6}


@dataclass
class FakeJob:
    """A job that is made up: it wants and claims at random, and answers everyone."""

    member: str
    register: ShareRegister
    rows: ScopeRows
    number: int = 0

    def report(self, rng: np.random.Generator, churn: float, seen: dict[str, Mark]) -> None:
        """Publish a report in which part of the scopes changed."""
        old = self.rows
        at = np.flatnonzero(rng.random(len(old)) < churn)
        demand = rng.integers(_RATE // 20, _RATE // 3, (len(at), 2))
        claim, bins = old.claim.copy(), old.bin_demand.copy()
        claim[at], bins[at] = encode(np.minimum(demand, _RATE // JOBS_A_NAMESPACE)), encode(demand)
        usage = claim.copy()
        self.rows = replace(old, claim=claim, usage=usage, bin_demand=bins)
        self.number += 1
        report = ShareReport(
            self.member, self.member, Mark(1, 0, self.number), 10**12, seen, self.rows, ShareSettings().terms
        )
        self.register.publish(Update(report, self.rows.take(at), np.zeros(0, dtype=np.int64)))


def _made_up(ids: Int64s) -> ScopeRows:
    n = len(ids)
    pairs = np.zeros((n, 2), dtype=np.uint32)
    return ScopeRows(
        np.sort(ids), pairs, np.full((n, 2), 8, dtype=np.uint8), pairs, np.ones(n, dtype=np.uint8), pairs,
        np.ones(n, dtype=np.uint32), np.zeros(n, dtype=np.uint8),
    )  # fmt: skip


class RealJob:
    """A job whose sharing is all real."""

    def __init__(self, policy: CompiledPolicy, names: pa.StringArray, exchange: FileExchange) -> None:
        self.settings = ShareSettings()
        self._clock_ms = 0
        self.policy = policy
        self._names = names
        self.meter = DemandMeter("publish", self.settings.interval_ms, 12 * self.settings.interval_ms)
        self.sharing = Sharing("real", "real", 1, self.settings)
        self.register = ShareRegister(exchange, "real", lambda: 0, self.settings.forget_ms)

    def report_of_a_batch(self, rng: np.random.Generator, churn: float, demand: Int64s) -> UsageReport:
        """Return what the job's decider would report."""
        n = len(self._names)
        at = np.flatnonzero(rng.random(n) < churn)
        demand[at] = rng.integers(1, 5_000, (len(at), len(Dimension)))
        nothing = np.zeros(n, dtype=np.int64)
        return UsageReport(
            1, self.policy.revision, self._clock_ms, self._names, nothing - 1, np.arange(n), nothing + 1,
            demand, demand, 0 * demand, 0 * demand, demand, nothing, nothing,
            np.zeros((len(self.policy.shared), len(Dimension)), dtype=np.int64), NEVER_MS, NEVER_MS, NEVER_MS,
        )  # fmt: skip

    def cycle(self, report: UsageReport) -> float:
        """Run a cycle; return the CPU seconds it took."""
        self._clock_ms += self.settings.interval_ms
        self.meter.add(report, now_ms=self._clock_ms)
        began = time.process_time()
        self.sharing.measure(self.meter.measure(self.policy, now_ms=self._clock_ms))
        found = self.register.read(self.sharing.ids)
        self.sharing.take_in(found, started_ms=self._clock_ms, now_ms=self._clock_ms)
        share = self.sharing.share(self._clock_ms)
        self.sharing.pin(share.ids, share.rate_micro_per_ms)
        self.register.publish(self.sharing.next_report(now_ms=self._clock_ms, wall_ms=10**12))
        return time.process_time() - began

    @property
    def mark(self) -> Mark:
        """The last report."""
        return self.sharing.mark

    @property
    def clock_ms(self) -> int:
        """The simulated time."""
        return self._clock_ms


def measure(namespaces: int, churn: float, seed: int = 82) -> dict[str, float]:
    """Return what a cycle costs."""
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        exchange = FileExchange(folder)
        homes = np.array([rng.choice(JOBS, JOBS_A_NAMESPACE, replace=False) for _ in range(namespaces)])
        mine = np.flatnonzero((homes == 0).any(axis=1))
        names = pa.array([f"tenant-{n % 1000:04d}/namespace-{n:07d}" for n in mine])
        group_limits = {
            f"group-{n:07d}": limit(messages_per_second=_RATE // 1000, bytes_per_second=_RATE) for n in mine
        }
        homes_of = {name: Namespace(group=f"group-{n:07d}") for name, n in zip(names.to_pylist(), mine, strict=True)}
        policy = make_policy(groups=group_limits, namespaces=homes_of)
        scopes = SharedScopes.of(policy, "publish")
        id_of = np.zeros(namespaces, dtype=np.int64)
        id_of[:] = rng.permutation(np.iinfo(np.int64).max // 2 - np.arange(namespaces))
        by_position = np.argsort(scopes.position)
        id_of[mine] = scopes.ids[by_position]
        fakes = []
        for job in range(1, JOBS):
            member = f"fake{job:02d}"
            register = ShareRegister(exchange, member, lambda: 0, ShareSettings().forget_ms)
            fakes.append(FakeJob(member, register, _made_up(id_of[(homes == job).any(axis=1)])))
        _ = SharedScopes.of(policy, "publish")
        real = RealJob(policy, names, exchange)
        demand = rng.integers(1, 5_000, (len(mine), len(Dimension)))
        cycles = _CYCLES[churn] if namespaces <= 100_000 else max(3, _CYCLES[churn] // 5)
        timed: list[float] = []
        warm_bytes = real_warm_bytes = 0
        for cycle in range(-3, cycles):
            for fake in fakes:
                fake.report(rng, 1.0 if cycle == -3 else churn, {"real": real.mark})
            if cycle == 0:
                warm_bytes = sum(fake.register.written_bytes for fake in fakes)
                real_warm_bytes = real.register.written_bytes
            timed.append(real.cycle(real.report_of_a_batch(rng, 1.0 if cycle == -3 else churn, demand)))
        memory = held_bytes([real.sharing, real.register], but_not=[exchange])
        written = sum(fake.register.written_bytes for fake in fakes) - warm_bytes
        written += real.register.written_bytes - real_warm_bytes
    a_cycle = written / cycles
    timed = sorted(timed[3:])
    return {
        "namespaces": namespaces, "churn": churn, "memory_mb": memory / 1e6, "mb_a_minute_at_60_s": a_cycle / 1e6,
        "mb_a_minute_at_5_s": 12 * a_cycle / 1e6, "cpu_ms_a_cycle": 1000 * timed[len(timed) // 2],
        "cpu_ms_worst": 1000 * timed[-1],
    }  # fmt: skip


def held_bytes(roots: Sequence[object], but_not: Sequence[object]) -> int:
    """Return the bytes of all that the roots hold: objects once each, arrays with what they are views of."""
    seen = {id(each) for each in but_not}
    pending, total = list(roots), 0
    while pending:
        each = pending.pop()
        if id(each) in seen or isinstance(each, type | ModuleType | FunctionType):
            continue
        seen.add(id(each))
        total += sys.getsizeof(each)
        if isinstance(each, np.ndarray):
            pending += [] if each.base is None else [each.base]
        else:
            pending += gc.get_referents(each)
    return total


def main() -> None:
    """Measure, print a table and write `build/scale.json`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--namespaces", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=Path("build/scale.json"))
    asked = parser.parse_args()
    print(f"{JOBS} jobs, {JOBS_A_NAMESPACE} a namespace; PIP-82 at 100,000: {PIP_82['memory_mb']} MB a job, "
          f"{PIP_82['mb_a_minute']} MB a minute in all, one report a minute")  # fmt: skip
    print(
        f"{'namespaces':>10} {'churn':>6} {'MB a job':>9} {'MB/min, 60 s':>13} {'MB/min, 5 s':>12} {'CPU ms/cycle':>13}"
    )
    found = []
    for namespaces in asked.namespaces:
        for churn in _CYCLES:
            row = measure(namespaces, churn)
            found.append(row)
            print(
                f"{namespaces:>10,} {churn:>6.0%} {row['memory_mb']:>9.2f} {row['mb_a_minute_at_60_s']:>13.2f} "
                f"{row['mb_a_minute_at_5_s']:>12.2f} {row['cpu_ms_a_cycle']:>6.0f} to {row['cpu_ms_worst']:<4.0f}",
                flush=True,
            )
    save({"pip_82": PIP_82, "measured": found}, asked.out)


if __name__ == "__main__":
    main()
