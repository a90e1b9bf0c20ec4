"""The benchmark stream under KIP-599's rule, one batch a millisecond: every decision, to the bit.

A million messages of 10,000 namespaces arrive in 100 s, ten a millisecond. Each namespace has two buckets, full at
first: 50 messages/s up to 100, and 65,536 bytes/s up to 131,072. A message passes while both balances are not
negative, and is then debited from both; else it is rejected and costs nothing.

A batch through `plan_admission` has a fixed cost, and 100,000 of them take minutes. Buckets of different namespaces
do not touch each other and time is relative, so the stream is folded: its 100 s are cut into segments that are
played side by side, the namespaces of each segment under names of their own. Each segment starts from the balances
with which, by the exact loop, the one before it ended, and must itself end with those of the next: so the segments
are links of one chain, and every message is decided by `plan_admission` in a batch of its own millisecond.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.batch.admission import plan_admission
from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.quota import MICRO, OnExcess, Verdict
from spark_throttle.core.state import DeciderState, Flows
from tests.benchmarks.stream import MESSAGES, NAMESPACES, Stream, build_stream
from tests.oracle.worlds import Namespace, limit, make_policy

MESSAGES_PER_MS = 10
SEGMENTS = 100
SEGMENT_MS = MESSAGES // MESSAGES_PER_MS // SEGMENTS

STREAM_SHA256 = "5953206adfaed173744ec838d1d414d35ad5c1ad01e0cc0f4b6d1afd51c3963f"
ADMITTED_MESSAGES = 590_662
DECISIONS_CRC32 = 0xBE02932E

LIMITS = limit(messages_per_second=50, bytes_per_second=65_536, burst_seconds=2, on_excess=OnExcess.REJECT)
POLICY = make_policy(default=Namespace(LIMITS))

Balances = dict[int, tuple[int, int]]
"""Balances in micro-tokens of the namespaces that have been debited."""


@dataclass
class ExactRun:
    """The decisions of a loop over Python integers, and the balances at the start of every segment, and at the end."""

    decisions: bytearray = field(default_factory=lambda: bytearray(MESSAGES))
    balances: list[Balances] = field(default_factory=list)


@pytest.fixture(scope="module")
def stream() -> Stream:
    return build_stream()


@pytest.fixture(scope="module")
def exact(stream: Stream) -> ExactRun:
    run = ExactRun()
    rates, bursts = LIMITS.rate_micro_per_ms, LIMITS.burst_micro
    buckets: dict[int, list[int]] = {}
    for i, (key, size) in enumerate(zip(stream.key.tolist(), stream.size.tolist(), strict=True)):
        now_ms = i // MESSAGES_PER_MS
        if i % (MESSAGES_PER_MS * SEGMENT_MS) == 0:
            run.balances.append(refilled(buckets, now_ms))
        bucket = buckets.setdefault(key, [*bursts, now_ms])
        elapsed_ms = now_ms - bucket[2]
        messages = min(bucket[0] + rates[0] * elapsed_ms, bursts[0])
        in_bytes = min(bucket[1] + rates[1] * elapsed_ms, bursts[1])
        if messages >= 0 and in_bytes >= 0:
            messages, in_bytes = messages - MICRO, in_bytes - size * MICRO
            run.decisions[i] = 1
        bucket[:] = messages, in_bytes, now_ms
    run.balances.append(refilled(buckets, MESSAGES // MESSAGES_PER_MS))
    return run


def refilled(buckets: dict[int, list[int]], now_ms: int) -> Balances:
    """Return the balances at `now_ms` of the buckets that are not full then."""
    balances = {}
    for key, (messages, in_bytes, advanced_to_ms) in buckets.items():
        elapsed_ms = now_ms - advanced_to_ms
        held = (
            min(messages + LIMITS.rate_micro_per_ms[0] * elapsed_ms, LIMITS.burst_micro[0]),
            min(in_bytes + LIMITS.rate_micro_per_ms[1] * elapsed_ms, LIMITS.burst_micro[1]),
        )
        if held != LIMITS.burst_micro[:2]:
            balances[key] = held
    return balances


def test_stream_is_the_published_one(stream: Stream) -> None:
    parts = [np.array([NAMESPACES, MESSAGES]), stream.key, stream.size]
    content = b"TBSTRM01" + b"".join(part.astype("<i4").tobytes() for part in parts)
    assert hashlib.sha256(content).hexdigest() == STREAM_SHA256


@pytest.mark.slow
def test_exact_loop_gives_the_published_decisions(exact: ExactRun) -> None:
    assert sum(exact.decisions) == ADMITTED_MESSAGES
    assert zlib.crc32(exact.decisions) == DECISIONS_CRC32


def decide(
    state: DeciderState, namespaces: pa.StringArray, sizes: pa.Int64Array, now_ms: int
) -> tuple[DeciderState, bytes]:
    """Return the state after one batch, and one byte a message: 1 where it is admitted."""
    plan = plan_admission(state, Arrivals(namespaces, sizes), POLICY, now_ms=now_ms)
    return plan.state, (plan.decisions.verdict == Verdict.ADMIT).astype(np.uint8).tobytes()


@pytest.mark.thorough
@pytest.mark.slow
def test_kernel_gives_the_published_decisions(stream: Stream, exact: ExactRun) -> None:
    # Position i of a folded batch is message i % 10 of its millisecond in segment i // 10.
    folded = np.arange(MESSAGES).reshape(SEGMENTS, SEGMENT_MS, MESSAGES_PER_MS).transpose(1, 0, 2).ravel()
    segment = np.tile(np.repeat(np.arange(SEGMENTS), MESSAGES_PER_MS), SEGMENT_MS)
    all_names = pa.array([name_of(s, key) for s in range(SEGMENTS) for key in range(NAMESPACES)], pa.string())
    namespaces = all_names.take(pa.array(segment * NAMESPACES + stream.key[folded]))
    sizes = pa.array(stream.size[folded], pa.int64())

    initial = DeciderState.initial(POLICY)
    state = replace(initial, flows=flows_of(exact.balances[:SEGMENTS]))
    decided = bytearray()
    batch = SEGMENTS * MESSAGES_PER_MS
    for now_ms in range(SEGMENT_MS):
        at = now_ms * batch
        state, decisions = decide(state, namespaces.slice(at, batch), sizes.slice(at, batch), now_ms)
        decided += decisions
    state, _ = decide(state, pa.array([], pa.string()), pa.array([], pa.int64()), SEGMENT_MS)

    in_order = np.empty(MESSAGES, dtype=np.uint8)
    in_order[folded] = np.frombuffer(decided, dtype=np.uint8)
    assert int(in_order.sum()) == ADMITTED_MESSAGES
    assert zlib.crc32(in_order.tobytes()) == DECISIONS_CRC32
    assert balances_of(state) == balances_of(replace(initial, flows=flows_of(exact.balances[1:])))


@pytest.mark.slow
def test_kernel_decides_the_unfolded_stream_alike(stream: Stream, exact: ExactRun) -> None:
    first = 600 * MESSAGES_PER_MS
    namespaces = pa.array([name_of(0, key) for key in stream.key[:first].tolist()], pa.string())
    sizes = pa.array(stream.size[:first], pa.int64())
    state, decided = DeciderState.initial(POLICY), bytearray()
    for at in range(0, first, MESSAGES_PER_MS):
        now_ms = at // MESSAGES_PER_MS
        state, decisions = decide(
            state, namespaces.slice(at, MESSAGES_PER_MS), sizes.slice(at, MESSAGES_PER_MS), now_ms
        )
        decided += decisions
    assert decided == exact.decisions[:first]
    assert 0 < sum(decided) < first


def name_of(segment: int, key: int) -> str:
    return f"segment-{segment:02}/ns-{key:05}"


def flows_of(balances: list[Balances]) -> Flows:
    """Return a table of the namespaces of all segments, with these balances."""
    rows = {name_of(s, key): held for s, of_segment in enumerate(balances) for key, held in of_segment.items()}
    nothing = np.zeros((len(rows), 2), dtype=np.int64)
    held_micro, none = np.array([(*held, 0) for held in rows.values()], dtype=np.int64).reshape(-1, 3), nothing[:, 0]
    return Flows(
        pa.array(list(rows), pa.string()),
        held_micro,
        np.zeros_like(held_micro),
        nothing,
        nothing,
        none,
        nothing,
        none,
        none,
    )


def balances_of(state: DeciderState) -> dict[str, list[int]]:
    return dict(zip(state.flows.names.to_pylist(), state.flows.balance_micro[:, :2].tolist(), strict=True))
