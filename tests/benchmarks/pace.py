"""What a call of the pacer costs, beside other limiters inside a process: `pace_vs`.

    python -m tests.benchmarks.pace [--repeats N] [--calls N] [--out FILE]

Every limiter has one limit that is never reached, and is asked in its plainest way: for one unit at one key, in memory.
In turns, CPU time by call, the loop that calls included:

- one thread, and eight threads that share the limiter;
- `limits` (fixed window, its cheapest), `throttled-py` (token bucket), `pyrate-limiter` (token bucket) and ours from
  threads; `aiolimiter` and ours awaited in an event loop. With eight threads each has a loop; aiolimiter, which is for
  one loop, has a limiter for each.

Beside the comparison, ours alone: four levels at once, two tokens, a rate so low that a level hands out nothing in
advance, calls that are refused, `acquire_many` by item, and the bare `AsyncTokenBucket`.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import sys
import threading
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from statistics import median
from typing import Any, Final

from aiolimiter import AsyncLimiter
from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from pyrate_limiter import Limiter, Rate, StateBucket, TokenBucket
from throttled import MemoryStore, RateLimiterType, Throttled, rate_limiter

from spark_throttle.pace import AsyncTokenBucket, Limit, Pacer
from tests.benchmarks.results import save

NEVER_REACHED: Final = 10**9
"""Units a second; pyrate-limiter counts whole microseconds, and takes a million at most."""

PYRATES_MOST: Final = 10**6
THREADS: Final = 8
ITEMS: Final = 1_000

Call = Callable[[], object]
Measured = Callable[[int], None]
"""Makes so many calls."""


@dataclass(frozen=True, slots=True)
class Run:
    """So many calls of one limiter."""

    way: str
    peer: str
    calls: int
    cpu_ns: int
    wall_ns: int


def calling(call: Call) -> Measured:
    """Return what calls again and again."""

    def run(calls: int) -> None:
        for _ in repeat(None, calls):
            call()

    return run


def awaiting(acquire: Callable[[], Awaitable[object]]) -> Measured:
    """Return what awaits again and again, in a loop of its own."""

    async def main(calls: int) -> None:
        for _ in repeat(None, calls):
            await acquire()

    return lambda calls: asyncio.run(main(calls))


def entering(make: Callable[[], Any]) -> Measured:
    """Return what enters a context again and again, in a loop of its own."""

    async def main(calls: int) -> None:
        context = make()
        for _ in repeat(None, calls):
            async with context:
                pass

    return lambda calls: asyncio.run(main(calls))


def peers() -> dict[str, Measured]:
    """Return the limiters of others."""
    fixed = FixedWindowRateLimiter(MemoryStorage())
    item = RateLimitItemPerSecond(NEVER_REACHED)
    quota = rate_limiter.per_sec(NEVER_REACHED, burst=NEVER_REACHED)
    throttled = Throttled("key", using=RateLimiterType.TOKEN_BUCKET.value, quota=quota, store=MemoryStore())
    pyrate = Limiter(StateBucket([Rate(PYRATES_MOST, 1_000)], TokenBucket()))

    async def aio(calls: int) -> None:
        limiter = AsyncLimiter(NEVER_REACHED, 1)
        for _ in repeat(None, calls):
            await limiter.acquire()

    return {
        "limits": calling(lambda: fixed.hit(item, "key")),
        "throttled-py": calling(throttled.limit),
        "pyrate-limiter": calling(lambda: pyrate.try_acquire("key", blocking=False)),
        "aiolimiter": lambda calls: asyncio.run(aio(calls)),
        "aiolimiter, async with": entering(lambda: AsyncLimiter(NEVER_REACHED, 1)),
    }


def ours() -> dict[str, Measured]:
    """Return the ways of ours."""
    pacer = Pacer()
    level = pacer.level("api", NEVER_REACHED)
    threads, tasks = pacer.producer(level), pacer.async_producer(level)
    return {
        "pace, acquire": calling(threads.acquire),
        "pace, try_acquire": calling(threads.try_acquire),
        "pace, await acquire": awaiting(tasks.acquire),
        "pace, async with": entering(lambda: tasks),
    }


def alone() -> dict[str, Measured]:
    """Return what has no counterpart."""
    pacer = Pacer()
    levels = [pacer.level(name, NEVER_REACHED) for name in ("destination", "group", "tenant", "namespace")]
    four, one = pacer.producer(*levels), pacer.producer(levels[0])
    bucket = AsyncTokenBucket(Limit.of(NEVER_REACHED))
    slow = pacer.producer(pacer.level("slow", Limit.of(60, burst_tokens=NEVER_REACHED)))
    refused = pacer.producer(pacer.level("refused", 0))
    items = array("q", [1] * ITEMS)

    def many(calls: int) -> None:
        for _ in repeat(None, calls // ITEMS):
            one.acquire_many(items)

    return {
        "pace, four levels": calling(four.try_acquire),
        "pace, two tokens": calling(lambda: one.try_acquire(2)),
        "pace, 60 a second: nothing in advance": calling(slow.try_acquire),
        "pace, refused": calling(refused.try_acquire),
        f"pace, acquire_many of {ITEMS}": many,
        "AsyncTokenBucket.consume": calling(bucket.consume),
        "AsyncTokenBucket.consume_and_check": calling(bucket.consume_and_check),
    }


def in_one(peer: str, run: Measured, calls: int) -> Run:
    """Measure a limiter in one thread."""
    cpu_ns, wall_ns = time.thread_time_ns(), time.perf_counter_ns()
    run(calls)
    return Run("one thread", peer, calls, time.thread_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns)


def in_eight(peer: str, run: Measured, calls: int) -> Run:
    """Measure a limiter that eight threads share."""
    barrier = threading.Barrier(THREADS + 1)

    def work() -> None:
        barrier.wait()
        run(calls // THREADS)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
    barrier.wait()
    for thread in threads:
        thread.join()
    return Run("eight threads", peer, calls, time.process_time_ns() - cpu_ns, time.perf_counter_ns() - wall_ns)


def runs(repeats: int, calls: int) -> Iterator[Run]:
    """Yield runs, every limiter in turn; those of others make fewer calls, for theirs take longer."""
    measured = [(name, run, calls // 10) for name, run in peers().items()]
    measured += [(name, run, calls) for name, run in (ours() | alone()).items()]
    for _, run, many in measured:
        run(many // 10)  # warm
    for _ in range(repeats):
        for name, run, many in measured:
            yield in_one(name, run, many)
            yield in_eight(name, run, many)


def table(found: list[Run]) -> str:
    """Return medians and spans by way and limiter."""
    lines = []
    for way in dict.fromkeys(run.way for run in found):
        lines.append(f"{'CPU ns a call, ' + way:44}{'median':>10}{'least':>10}{'most':>10}")
        for peer in dict.fromkeys(run.peer for run in found):
            each = [run.cpu_ns / run.calls for run in found if (run.way, run.peer) == (way, peer)]
            lines.append(f"{peer:44}{median(each):10,.1f}{min(each):10,.1f}{max(each):10,.1f}")
    return "\n".join(lines)


def profile(calls: int) -> None:
    """Print where the time of our calls goes."""
    for name, run in (ours() | alone()).items():
        profiler = cProfile.Profile()
        profiler.runcall(run, calls)
        sys.stdout.write(f"{name}\n")
        pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(6)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--calls", type=int, default=400_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--profile", action="store_true", help="show where the time of our calls goes instead")
    asked = parser.parse_args()
    if asked.profile:
        profile(asked.calls)
        return
    found = list(runs(asked.repeats, asked.calls))
    sys.stdout.write(table(found) + "\n")
    save([asdict(run) for run in found], asked.out)


if __name__ == "__main__":
    main()
