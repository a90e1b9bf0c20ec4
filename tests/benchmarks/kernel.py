"""What the admission kernel costs: CPU time a message on the benchmark stream, and what grows with what.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.kernel [stream|flows|backlog|profile]...

`stream` decides the stream as one batch of 1,000,000 messages and as ten of 100,000, each from the same state, under
several policies. `flows` decides 100 messages on a shard that remembers many namespaces, `backlog` 10,000 messages
behind a queue of which 10,000 may leave. `profile` shows in which functions the time of the stream goes. Times are
process CPU time on one thread: the median of the repeats, and their least and most.
"""

from __future__ import annotations

import cProfile
import pstats
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from spark_throttle.core.admission import AdmissionPlan, Arrivals, plan_admission
from spark_throttle.core.codec import StoredShard, pack_shard, unpack_shard
from spark_throttle.core.quota import MICRO, CompiledPolicy, Verdict
from spark_throttle.core.state import Flows, Queue, ShardState
from spark_throttle.testing.worlds import Limit, Namespace, Tenant, granted, limit, make_policy
from tests.benchmarks.stream import MESSAGES, NAMESPACES, Stream, build_stream

REPEATS = 7
NOW_MS = 1_760_000_000_000
TENANTS = 100
DEFAULTS = limit(messages_per_second=50, bytes_per_second=65_536, burst_seconds=2)


@dataclass(frozen=True, slots=True)
class Case:
    """A policy, and what the shard is granted of a scope for the whole stream; it gets its part in a smaller batch."""

    name: str
    policy: CompiledPolicy
    tokens: dict[str, tuple[float, float]]

    def state(self, part: float) -> ShardState:
        """Return the state of a shard that is to decide `part` of the stream."""
        initial = replace(ShardState.initial(len(self.policy.shared)), advanced_to_ms=NOW_MS - 1_000)
        tokens = {name: (held[0] * part, held[1] * part) for name, held in self.tokens.items()}
        return granted(initial, self.policy, tokens, now_ms=NOW_MS)


def name_of(key: int) -> str:
    """Return the namespace of a key of the stream."""
    return f"t{key % TENANTS}/n{key}"


def cases(stream: Stream) -> Iterator[Case]:
    """Yield the cases, from the one in which nothing is limited to the one in which every scope runs short."""
    total = (MESSAGES, int(stream.size.sum()))
    shared = limit(messages_per_second=10_000, bytes_per_second=16_000_000)
    one_group = make_policy(groups={"all": shared}, default=Namespace(group="all"))
    yield Case("nothing limited", make_policy(), {})
    yield Case("namespace quotas", make_policy(default=Namespace(DEFAULTS)), {})
    yield Case("one group, all fits", one_group, {"all": (total[0] * 2, total[1] * 2)})
    yield Case("one group, 50 % admitted", one_group, {"all": (total[0] * 0.5, total[1] * 0.5)})
    yield Case("one group, 5 % admitted", one_group, {"all": (total[0] * 0.05, total[1] * 0.05)})
    everything = make_policy(
        job=shared,
        tenants={f"t{i}": Tenant(shared, f"g{i % 4}") for i in range(TENANTS)},
        groups={f"g{i}": shared for i in range(4)},
        default=Namespace(Limit(weight=2)),
    )
    parts = {"": 0.5, **{f"g{i}": 0.14 for i in range(4)}, **{f"t{i}": 0.008 for i in range(TENANTS)}}
    yield Case("tenants, groups and job short", everything, {n: (total[0] * p, total[1] * p) for n, p in parts.items()})


def arrivals_of(stream: Stream, names: pa.StringArray, start: int, stop: int) -> Arrivals:
    """Return messages `start` to `stop` of the stream; each batch owns its buffers, as one that was read does."""
    return Arrivals(names.take(pa.array(stream.key[start:stop])), pa.array(stream.size[start:stop].astype(np.int64)))


def timed(run: Callable[[], object]) -> list[int]:
    """Return the CPU time of every repeat, in ns; one more comes first and does not count."""
    run()
    taken = []
    for _ in range(REPEATS):
        start = time.process_time_ns()
        run()
        taken.append(time.process_time_ns() - start)
    return taken


def show(name: str, taken: list[int], of: int, unit: str) -> None:
    """Print a line."""
    each = [one / of for one in taken]
    print(f"{name:58} {median(each):10,.1f} {min(each):10,.1f} {max(each):10,.1f}  {unit}", flush=True)


def measure_stream(stream: Stream) -> None:
    """Print the cost of the stream under every policy."""
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    show(
        "(names to positions: pyarrow's dictionary_encode)",
        timed(arrivals_of(stream, names, 0, MESSAGES).namespaces.dictionary_encode),
        MESSAGES,
        "ns/message",
    )
    for case in cases(stream):
        for batches in (1, 10):
            rows = MESSAGES // batches
            parts = [arrivals_of(stream, names, at * rows, (at + 1) * rows) for at in range(batches)]
            state = case.state(1 / batches)
            admitted = [int((decide(state, part, case).decisions.verdict == Verdict.ADMIT).sum()) for part in parts]
            taken = timed(lambda: [decide(state, part, case) for part in parts])  # noqa: B023 - called at once
            label = f"{case.name}, {batches} x {rows:,} ({100 * sum(admitted) / MESSAGES:.0f} % admitted)"
            show(label, taken, MESSAGES, "ns/message")


def decide(state: ShardState, arrivals: Arrivals, case: Case) -> AdmissionPlan:
    """Decide a batch a second after the one before."""
    return plan_admission(state, arrivals, case.policy, now_ms=NOW_MS, shards=1)


def measure_profile(stream: Stream) -> None:
    """Print in which functions of the core the time goes, callees included and not."""
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    arrivals = arrivals_of(stream, names, 0, MESSAGES)
    for case in cases(stream):
        state = case.state(1)
        decide(state, arrivals, case)
        profile = cProfile.Profile(time.process_time, builtins=False)
        for _ in range(REPEATS):
            profile.runcall(decide, state, arrivals, case)
        print(f"\n{case.name}: ns/message with and without callees")
        found = [
            (with_callees, own, f"{Path(file).stem}.{function}")
            for (file, _, function), (_, _, own, with_callees, _) in pstats.Stats(profile).stats.items()  # type: ignore[attr-defined]
        ]
        for with_callees, own, function in sorted(found, reverse=True)[:28]:
            scale = 1e9 / REPEATS / MESSAGES
            print(f"{with_callees * scale:10.2f} {own * scale:10.2f}  {function}")


def remembering(flows: int, policy: CompiledPolicy, queued: int = 0) -> ShardState:
    """Return a shard that remembers `flows` namespaces in debt, and has `queued` rows waiting."""
    names = pa.array([name_of(key) for key in range(flows)], pa.string())
    random = np.random.default_rng(1)
    balance = -random.integers(10_000 * MICRO, 1 << 40, (flows, 2))
    nothing = np.zeros((flows, 2), dtype=np.int64)
    second = np.full(flows, NOW_MS // 1000 - 1, dtype=np.int64)
    key = random.integers(0, flows, queued)
    size = random.integers(1, 2_000, queued)
    arrival_ms = np.full(queued, NOW_MS - 1_000, dtype=np.int64)
    queue = Queue(key, size, arrival_ms, np.zeros(queued, dtype=np.int64))
    state = ShardState.initial(len(policy.shared))
    is_limited = policy.namespace_limits.is_limited[-1]
    return replace(
        state,
        advanced_to_ms=NOW_MS - 1_000,
        flows=Flows(names, np.where(is_limited, balance, 0), nothing, second, nothing),
        queue=queue,
    )


def measure_flows(stream: Stream) -> None:
    """Print what a small batch costs a shard that remembers many namespaces."""
    policy = make_policy(
        job=limit(messages_per_second=10**6),
        tenants={f"t{i}": Tenant(group="all") for i in range(TENANTS)},
        groups={"all": limit(messages_per_second=10**6)},
        namespaces={name_of(i): Namespace(DEFAULTS) for i in range(1_000)},
        default=Namespace(DEFAULTS),
    )
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    arrivals = arrivals_of(stream, names, 0, 100)
    for flows in (0, 10_000, 100_000, 1_000_000):
        state = granted(remembering(flows, policy), policy, {"": (10**6, 0), "all": (10**6, 0)}, now_ms=NOW_MS)
        case = Case("", policy, {})
        taken = timed(lambda: decide(state, arrivals, case))  # noqa: B023 - called at once
        show(f"100 messages, {flows:,} namespaces remembered: decide", taken, 1_000_000, "ms/batch")
        block = pack_shard(stored(state))
        show("    read the state", timed(lambda: unpack_shard(block, "")), 1_000_000, "ms/batch")  # noqa: B023
        show("    write the state", timed(lambda: pack_shard(stored(state))), 1_000_000, "ms/batch")  # noqa: B023
        if flows:
            print(f"    the state has {len(block) / flows:.1f} bytes a namespace")


def measure_backlog(stream: Stream) -> None:
    """Print what a batch costs a shard with a backlog."""
    policy = make_policy(groups={"all": limit(messages_per_second=10_000)}, default=Namespace(group="all"))
    names = pa.array([name_of(key) for key in range(NAMESPACES)])
    arrivals = arrivals_of(stream, names, 0, 10_000)
    for queued in (0, 10_000, 100_000, 1_000_000):
        state = granted(remembering(NAMESPACES, policy, queued), policy, {"all": (10_000 - 1, 0)}, now_ms=NOW_MS)
        case = Case("", policy, {})
        taken = timed(lambda: decide(state, arrivals, case))  # noqa: B023 - called at once
        show(f"10,000 messages behind {queued:,} rows, 10,000 admitted", taken, 1_000_000, "ms/batch")
        block = pack_shard(stored(state))
        show("    read the state", timed(lambda: unpack_shard(block, "")), 1_000_000, "ms/batch")  # noqa: B023
        show("    write the state", timed(lambda: pack_shard(stored(state))), 1_000_000, "ms/batch")  # noqa: B023
        if queued:
            bare = len(pack_shard(stored(remembering(NAMESPACES, policy))))
            print(f"    the state has {(len(block) - bare) / queued:.1f} bytes a row beside its payload")


def stored(state: ShardState) -> StoredShard:
    """Return `state` as it is stored, its rows in frames of 1,000 of which the payload is left out."""
    rows = np.arange(len(state.queue))
    return StoredShard(state, b"", [b""] * -(-len(rows) // 1_000), rows // 1_000, rows % 1_000)


MEASURES = {
    "stream": measure_stream,
    "flows": measure_flows,
    "backlog": measure_backlog,
    "profile": measure_profile,
}


def main(chosen: list[str]) -> None:
    """Print what is asked for, or all but the profile."""
    pa.set_cpu_count(1)
    stream = build_stream()
    print(f"{'':58} {'median':>10} {'least':>10} {'most':>10}")
    for name in chosen or ("stream", "flows", "backlog"):
        MEASURES[name](stream)


if __name__ == "__main__":
    main(sys.argv[1:])
