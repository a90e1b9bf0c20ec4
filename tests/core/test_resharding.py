"""The same namespaces and rows in another number of shards, against a dictionary of names."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.core.quota import NEVER_MS
from spark_throttle.core.resharding import joined, paid_until, parts_of, resharded_reports
from spark_throttle.core.state import DeciderState, Flows, Grants, Queue
from spark_throttle.core.usage import UsageReport
from spark_throttle.testing.oracle.worlds import Namespace, limit, make_policy

POLICY = make_policy(namespaces={"*": Namespace(limit(messages_per_second=2, bytes_per_second=100, burst_seconds=3))})
AT_MS = 50_000


def drawn_states(rng: random.Random, shards: int, *, is_deferred: bool) -> list[DeciderState]:
    """Return states of all shards, each namespace in its own."""
    names = [f"t/n{number}" for number in range(rng.randint(0, 40))]
    found = []
    for shard in range(shards):
        here = [name for name in names if zlib.crc32(name.encode()) % shards == shard]
        rng.shuffle(here)
        drawn = [rng.randint(-(10**7), 10**6) for _ in range(6 * len(here))]
        pairs = np.array(drawn, dtype=np.int64).reshape(3, len(here), 2)
        flows = Flows(pa.array(here, pa.string()), pairs[0], np.abs(pairs[1]), np.abs(pairs[2][:, 0]), pairs[2])
        rows = rng.randint(0, 60) if here else 0
        flow = np.array([rng.randrange(len(here)) for _ in range(rows)], dtype=np.int64)
        size, arrival, release = (np.array([rng.randrange(1_000) for _ in range(rows)], np.int64) for _ in range(3))
        deferred = np.array([rng.random() < 0.5 for _ in range(rows)]) if is_deferred and rng.random() < 0.7 else None
        queue = Queue(flow, size, arrival, release, deferred)
        grants = Grants(7 + shard % 2, np.ones((1, 2), np.int64), np.ones((1, 2), np.int64), AT_MS)
        found.append(DeciderState(AT_MS, flows, queue, grants))
    return found


def told(state: DeciderState) -> dict[str, tuple[object, ...]]:
    """Return what a state knows of every namespace: its values, and its waiting rows in order."""
    flows, queue = state.flows, state.queue
    deferred = [False] * len(queue) if queue.is_deferred is None else queue.is_deferred.tolist()
    rows = list(zip(queue.flow.tolist(), queue.size_bytes.tolist(), queue.arrival_ms.tolist(),
                    queue.release_ms.tolist(), deferred, strict=True))  # fmt: skip
    return {
        name: (
            flows.balance_micro[at].tolist(), flows.lead_vt[at].tolist(), flows.window_second[at],
            flows.window_units[at].tolist(), [row[1:] for row in rows if row[0] == at],
        )
        for at, name in enumerate(flows.names.to_pylist())
    }  # fmt: skip


def resharded(states: list[DeciderState], shards: int) -> list[DeciderState]:
    parts = [list(parts_of(state, shards)) for state in states]
    return [joined([of_one[shard].state for of_one in parts]) for shard in range(shards)]


@pytest.mark.parametrize("seed", range(40))
def test_every_namespace_is_whole_in_the_shard_of_its_name(seed: int) -> None:
    rng = random.Random(seed)
    former = drawn_states(rng, rng.choice((1, 2, 3, 8)), is_deferred=seed % 2 == 0)
    shards = rng.choice((1, 2, 5, 16))
    before = {name: values for state in former for name, values in told(state).items()}
    after = resharded(former, shards)
    assert len(after) == shards
    for shard, state in enumerate(after):
        assert told(state) == {
            name: values for name, values in before.items() if zlib.crc32(name.encode()) % shards == shard
        }
        assert state.advanced_to_ms == AT_MS
        assert state.grants.epoch == max(each.grants.epoch for each in former)
        assert (state.grants.balance_micro < 0).all(), "nothing is granted"
        assert not state.grants.headroom_micro.any()


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_a_part_are_those_of_its_queue(seed: int) -> None:
    (state,) = drawn_states(random.Random(seed), 1, is_deferred=True)
    for part in parts_of(state, 3):
        assert part.state.queue.size_bytes.tolist() == state.queue.size_bytes[part.rows].tolist()
        assert (np.diff(part.rows) > 0).all()
    assert sorted(row for part in parts_of(state, 3) for row in part.rows.tolist()) == list(range(len(state.queue)))


@pytest.mark.parametrize("seed", range(10))
def test_there_and_back_is_where_it_was(seed: int) -> None:
    former = drawn_states(random.Random(seed), 3, is_deferred=False)
    back = resharded(resharded(former, 5), 3)
    assert [told(state) for state in back] == [told(state) for state in former]


def test_balances_are_paid_up_to_one_time_and_no_debt_is_forgotten() -> None:
    names = pa.array(["t/a", "t/b", "t/c"])
    balance = np.array([[-9_000_000, -5], [5_999_000, 300_000_000], [0, 0]])
    pairs = np.zeros_like(balance)
    flows = Flows(names, balance, pairs, pairs[:, 0], pairs)
    state = replace(DeciderState.initial(1), flows=flows, advanced_to_ms=AT_MS)
    paid = paid_until(state, POLICY, to_ms=AT_MS + 500)  # 2 messages and 100 bytes a second: 1 message and 50 bytes
    assert paid.advanced_to_ms == AT_MS + 500
    assert paid.flows.balance_micro.tolist() == [[-8_000_000, 49_999_995], [6_000_000, 300_000_000],
                                                 [1_000_000, 50_000_000]]  # fmt: skip
    assert paid_until(state, POLICY, to_ms=AT_MS).flows is flows
    assert paid_until(state, POLICY, to_ms=AT_MS - 1).advanced_to_ms == AT_MS


def report(shard: int, names: list[str], waiting: list[int], **more: Any) -> UsageReport:
    n = len(names)
    pairs = np.arange(2 * n).reshape(n, 2) + 100 * shard
    one = pairs[:, 0]
    return replace(
        UsageReport(
            shard,
            4,
            "5eed",
            1_000,
            pa.array(names, pa.string()),
            one,
            one + 1,
            one + 2,
            pairs,
            pairs + 1,
            pairs + 2,
            np.stack([np.array(waiting, np.int64)] * 2, axis=1),
            pairs + 3,
            one + 4,
            one + 5,
            60_000 + shard,
            3,
        ),
        **more,
    )


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_reports_say_the_same_of_every_namespace(shards: int) -> None:
    leaves = {"leaves_ms": np.array([5, 6, 7]), "ahead_milli": np.ones((3, 2), np.int64)}
    former = [
        report(0, ["t/a", "t/b", "t/c"], [1, 0, 0], **leaves),
        report(1, ["t/d", "t/e", "t/f"], [0, 0, 0], **leaves),
    ]

    def by_name(reports: list[UsageReport]) -> dict[str, list[object]]:
        fields = ("tenant", "group", "weight", "offered", "admitted", "rejected", "waiting", "demand",
                  "observed_messages", "delayed_ms", "leaves_ms", "ahead_milli")  # fmt: skip
        return {
            name: [getattr(each, field)[at].tolist() for field in fields]
            for each in reports
            for at, name in enumerate(each.names.to_pylist())
        }

    after = resharded_reports(former, shards)
    assert by_name(after) == by_name(former)
    for each in after:
        assert {zlib.crc32(name.encode()) % shards for name in each.names.to_pylist()} == {each.shard}
        assert each.expires_ms == (60_000 if each.waiting.any() else NEVER_MS)
        assert (each.epoch, each.revision, each.invalid_messages) == (4, "5eed", 0)
    assert resharded_reports([], 3) == []
