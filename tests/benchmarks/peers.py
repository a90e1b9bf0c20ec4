"""What a message costs in other limiters, and in the admission kernel: `kernel_vs`.

    python -m tests.benchmarks.peers [--repeats N] [--out FILE]

The benchmark stream of 1,000,000 messages of 10,000 namespaces, each held to 50 messages and 65,536 bytes a second with
a burst of two seconds, message i at i * 100 us of virtual time. In turns, on one thread, CPU time:

- the kernel, carrying its state from batch to batch, in batches of 100 ms, 1 s and 10 s of the stream;
- a plain Python loop over two integer buckets a namespace (KIP-599's rule in the ms clock);
- `limits` (moving window and fixed window) and `throttled-py` (token bucket): on the wall clock, which they read
  themselves, and on the first messages alone, for they take microseconds a message;
- where a JDK and Maven are there: Kafka's `TokenBucket`, Pulsar's `AsyncTokenBucket` and Bucket4j (`peers/`).

The peers of the JVM and the plain loop are handed the namespace as a number; `limits`, `throttled-py` and the kernel as
its name. The CRC-32 of a peer's decisions says that it decided what its authors' classes decide.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.batch.admission import Arrivals, plan_admission
from spark_throttle.core.names.matching import MatchMemory
from spark_throttle.core.quota import OnExcess, Verdict
from spark_throttle.core.state import DeciderState
from tests.benchmarks.results import save
from tests.benchmarks.stream import MESSAGES, NAMESPACES, Stream, build_stream
from tests.oracle.worlds import Namespace, limit, make_policy
from tests.sessions import ROOT

MESSAGES_PER_SECOND: Final = 50
BYTES_PER_SECOND: Final = 65_536
BURST_SECONDS: Final = 2
START_MS: Final = 1_760_000_000_000
MESSAGES_A_MS: Final = 10
SLOW_MESSAGES: Final = 20_000
"""How many messages of the stream pass through the libraries that take microseconds a message."""

_BUILD: Final = ROOT / "build" / "peers"


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the stream through one limiter."""

    peer: str
    messages: int
    admitted: int
    cpu_ns: int
    wall_ns: int
    crc32: str | None = None
    """Checksum of the decisions, one byte a message."""


def passes(repeats: int) -> Iterator[Pass]:
    """Yield passes, every limiter in turn."""
    stream = build_stream()
    names = pa.array([f"tenant-{key % 100:03d}/ns-{key:05d}" for key in range(NAMESPACES)])
    peers: list[Callable[[], Pass]] = [
        *(partial(kernel, stream, names, batch_ms) for batch_ms in (100, 1_000, 10_000)),
        lambda: plain_loop(stream),
        *_libraries(stream, names.to_pylist()),
    ]
    for peer in peers:
        peer()  # warm
    for _ in range(repeats):
        for peer in peers:
            yield peer()
    yield from jvm(stream, repeats)


def kernel(stream: Stream, names: pa.StringArray, batch_ms: int) -> Pass:
    """Decide the stream with `plan_admission`, in batches of so much virtual time."""
    quota = limit(
        messages_per_second=MESSAGES_PER_SECOND, bytes_per_second=BYTES_PER_SECOND, burst_seconds=BURST_SECONDS,
        on_excess=OnExcess.REJECT,
    )  # fmt: skip
    policy = make_policy(default=Namespace(quota))
    rows = batch_ms * MESSAGES_A_MS
    size = stream.size.astype(np.int64)
    batches = [
        Arrivals(names.take(pa.array(stream.key[at : at + rows])), pa.array(size[at : at + rows]))
        for at in range(0, MESSAGES, rows)
    ]
    state = DeciderState.initial(policy, now_ms=START_MS)
    verdicts, memory = [], MatchMemory()
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    for number, arrivals in enumerate(batches):
        plan = plan_admission(state, arrivals, policy, now_ms=START_MS + number * batch_ms, memory=memory)
        state = plan.state
        verdicts.append(plan.decisions.verdict)
    cpu_ns, wall_ns = time.process_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
    is_admitted = np.concatenate(verdicts) == Verdict.ADMIT
    return Pass(f"kernel, batches of {batch_ms} ms", MESSAGES, int(is_admitted.sum()), cpu_ns, wall_ns)


def plain_loop(stream: Stream) -> Pass:
    """Decide the stream with the rules of KIP-599 written down plainly: milli-tokens, a clock in ms."""
    keys, sizes = stream.key.tolist(), stream.size.tolist()
    full_messages, full_bytes = MESSAGES_PER_SECOND * BURST_SECONDS * 1000, BYTES_PER_SECOND * BURST_SECONDS * 1000
    messages, held, updated_ms = [full_messages] * NAMESPACES, [full_bytes] * NAMESPACES, [0] * NAMESPACES
    decisions = bytearray(MESSAGES)
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    for i, key in enumerate(keys):
        now_ms = i // MESSAGES_A_MS
        elapsed_ms = now_ms - updated_ms[key]
        updated_ms[key] = now_ms
        message_balance = min(messages[key] + elapsed_ms * MESSAGES_PER_SECOND, full_messages)
        byte_balance = min(held[key] + elapsed_ms * BYTES_PER_SECOND, full_bytes)
        if message_balance >= 0 and byte_balance >= 0:
            decisions[i] = 1
            message_balance -= 1000
            byte_balance -= sizes[i] * 1000
        messages[key] = message_balance
        held[key] = byte_balance
    cpu_ns, wall_ns = time.process_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
    return Pass("plain Python loop", MESSAGES, sum(decisions), cpu_ns, wall_ns, f"{zlib.crc32(decisions):08x}")


def _libraries(stream: Stream, names: list[str]) -> list[Callable[[], Pass]]:
    """Return the Python libraries that are installed."""
    from limits import RateLimitItemPerSecond
    from limits.storage import MemoryStorage
    from limits.strategies import FixedWindowRateLimiter, MovingWindowRateLimiter, RateLimiter
    from throttled import MemoryStore, RateLimiterType, Throttled, rate_limiter

    keys = [names[key] for key in stream.key[:SLOW_MESSAGES].tolist()]
    sizes = stream.size[:SLOW_MESSAGES].tolist()
    messages = RateLimitItemPerSecond(MESSAGES_PER_SECOND * BURST_SECONDS, BURST_SECONDS, namespace="messages")
    size_bytes = RateLimitItemPerSecond(BYTES_PER_SECOND * BURST_SECONDS, BURST_SECONDS, namespace="bytes")

    def through_limits(kind: type[RateLimiter], label: str) -> Pass:
        limiter = kind(MemoryStorage())
        return _timed(
            label,
            lambda key, size: limiter.hit(messages, key) and limiter.hit(size_bytes, key, cost=size),
            keys,
            sizes,
        )

    def through_throttled() -> Pass:
        store = MemoryStore()
        kind = RateLimiterType.TOKEN_BUCKET.value
        of_messages = Throttled(
            using=kind, quota=rate_limiter.per_sec(MESSAGES_PER_SECOND, burst=MESSAGES_PER_SECOND * 2), store=store
        )
        of_bytes = Throttled(
            using=kind, quota=rate_limiter.per_sec(BYTES_PER_SECOND, burst=BYTES_PER_SECOND * 2), store=store
        )
        return _timed(
            "throttled-py, token bucket",
            lambda key, size: not of_messages.limit(f"m{key}").limited and not of_bytes.limit(f"b{key}", size).limited,
            keys,
            sizes,
        )

    return [
        lambda: through_limits(FixedWindowRateLimiter, "limits, fixed window"),
        lambda: through_limits(MovingWindowRateLimiter, "limits, moving window"),
        through_throttled,
    ]


def _timed(peer: str, admits: Callable[[str, int], bool], keys: list[str], sizes: list[int]) -> Pass:
    admitted = 0
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    for key, size in zip(keys, sizes, strict=True):
        admitted += admits(key, size)
    cpu_ns, wall_ns = time.process_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns
    return Pass(peer, len(keys), admitted, cpu_ns, wall_ns)


def jvm(stream: Stream, repeats: int) -> Iterator[Pass]:
    """Yield the passes of the JVM's peers; none where no JDK or no Maven is there."""
    if not all(map(shutil.which, ("java", "javac", "mvn"))):
        return
    _BUILD.mkdir(parents=True, exist_ok=True)
    project = Path(__file__).parent / "peers"
    build = "dependency:copy-dependencies"
    subprocess.run(
        ["mvn", "-q", "-B", "package", build, "-DoutputDirectory=${project.build.directory}/lib"],
        cwd=project,
        check=True,
    )
    file = _BUILD / "stream.bin"
    with file.open("wb") as out:
        out.write(b"TBSTRM01")
        for part in (np.array([NAMESPACES, MESSAGES]), stream.key, stream.size):
            part.astype("<i4").tofile(out)
    command = ["java", "-cp", f"{_BUILD}/classes:{_BUILD}/lib/*", "Peers", str(file), str(repeats)]
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        found = json.loads(line)
        yield Pass(messages=MESSAGES, **found)


def table(found: list[Pass]) -> str:
    """Return medians and spans by peer, and how many times as long as the fastest kernel each takes."""
    by_peer: dict[str, list[Pass]] = {}
    for one in found:
        by_peer.setdefault(one.peer, []).append(one)
    cpu_ns = {peer: [one.cpu_ns / one.messages for one in many] for peer, many in by_peer.items()}
    best = min(median(each) for peer, each in cpu_ns.items() if peer.startswith("kernel"))
    lines = [f"{'CPU ns a message':28}{'median':>10}{'least':>10}{'most':>10}{'ratio':>8}  admitted  crc32"]
    for peer, each in cpu_ns.items():
        first = by_peer[peer][0]
        lines.append(
            f"{peer:28}{median(each):10,.1f}{min(each):10,.1f}{max(each):10,.1f}{median(each) / best:8.2f}"
            f"  {first.admitted / first.messages:8.1%}  {first.crc32 or ''}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    found = list(passes(asked.repeats))
    sys.stdout.write(table(found) + "\n")
    save([asdict(one) for one in found], asked.out)


if __name__ == "__main__":
    main()
