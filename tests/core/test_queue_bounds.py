"""What a queue that is full keeps: what is queued already, then the heads of every namespace's new rows."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.layout import Candidates
from spark_throttle.core.queue_bounds import is_expired, overflowing
from spark_throttle.core.quota import Overflow, QueueBounds
from spark_throttle.core.segments import name_hash
from spark_throttle.core.state import Queue
from spark_throttle.errors import QueueOverflowError
from spark_throttle.testing.reference import part_of

NOW_MS = 1_760_000_000_000
NAMES = pa.array(["a/x", "b/y", "c/z"])

Row = tuple[int, int]
"""Flow and size."""


def ask(
    old: list[Row], new: list[Row], messages: int, size_bytes: int, *, shards: int = 1, **bounds: Overflow
) -> list[int]:
    """Return which new rows find no room."""
    rows = [*old, *new]
    candidates = Candidates(
        np.arange(len(rows)),
        np.array([flow for flow, _ in rows], dtype=np.int64),
        np.array([size for _, size in rows], dtype=np.int64),
        np.full(len(rows), NOW_MS - 5),
        np.zeros(len(rows), dtype=np.int64),
        len(old),
    )
    limits = QueueBounds(messages, size_bytes, None, bounds.get("on_overflow", Overflow.REJECT))
    waiting = np.arange(len(rows))
    found = overflowing(
        candidates, waiting, candidates.take(waiting), NAMES, limits, now_ms=NOW_MS, shards=shards, shard=2
    )
    return sorted(int(at) - len(old) for at in found)


rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12)


@given(rows, rows, st.integers(1, 12), st.integers(1, 60))
def test_new_rows_are_kept_from_the_heads_while_all_fit(
    old: list[Row], new: list[Row], messages: int, size_bytes: int
) -> None:
    queues: dict[int, list[int]] = {flow: [size for one, size in old if one == flow] for flow in range(3)}
    tie = np.argsort(np.argsort(name_hash(NAMES))).tolist()
    in_turn = []
    for at, (flow, size) in enumerate(new):
        queues[flow].append(size)
        share = max(part_of(len(queues[flow]), messages), part_of(sum(queues[flow]), size_bytes))
        in_turn.append((share, len(queues[flow]), tie[flow], at, size))
    room, room_bytes = messages - len(old), size_bytes - sum(size for _, size in old)
    lost, used, used_bytes = [], 0, 0
    for *_, at, size in sorted(in_turn):
        used, used_bytes = used + 1, used_bytes + size
        if used > room or used_bytes > room_bytes:
            lost.append(at)
    assert ask(old, new, messages, size_bytes) == sorted(lost)


def test_flood_of_one_namespace_leaves_the_others_room() -> None:
    new = [(0, 1)] * 100 + [(1, 1)] * 3 + [(2, 1)] * 3
    kept = [new[at][0] for at in range(len(new)) if at not in set(ask([], new, 12, 10**6))]
    assert {flow: len(list(group)) for flow, group in groupby(sorted(kept))} == {0: 6, 1: 3, 2: 3}


def test_row_that_is_larger_than_the_queue_takes_no_room() -> None:
    new = [(0, 5_000), *[(1, 100)] * 4, *[(2, 100)] * 4]
    assert ask([], new, 100, 1_000) == [0]


def test_namespace_of_large_rows_takes_its_part_of_the_bytes() -> None:
    new = [*[(0, 300)] * 4, *[(1, 10)] * 30]
    assert ask([], new, 100, 1_000) == [2, 3]


def test_bounds_are_divided_among_the_shards_and_are_at_least_one() -> None:
    assert ask([], [(0, 1)] * 4, 9, 10**6, shards=4) == [2, 3]
    assert ask([], [(0, 1)] * 2, 1, 10**6, shards=4) == [1]


def test_rows_that_are_queued_stay_when_the_bound_shrinks() -> None:
    assert ask([(0, 1)] * 5, [(1, 1)], 2, 10**6) == [0]
    assert ask([(0, 1)] * 5, [], 2, 10**6) == []


def test_queue_that_may_not_overflow_says_what_it_would_hold() -> None:
    with pytest.raises(QueueOverflowError, match="shard 2 would hold 3 delayed messages, over its bound of 2"):
        ask([(0, 1)] * 2, [(1, 1)], 2, 10**6, on_overflow=Overflow.FAIL)


def test_row_expires_when_it_is_older_than_the_bound() -> None:
    arrival_ms = NOW_MS - np.array([0, 1_000, 1_001])
    queue = Queue(np.zeros(3, np.int64), np.zeros(3, np.int64), arrival_ms, np.zeros(3, np.int64))
    bounds = QueueBounds(9, 9, 1_000, Overflow.REJECT)
    assert is_expired(queue, bounds, now_ms=NOW_MS).tolist() == [False, False, True]
    unbounded = QueueBounds(9, 9, None, Overflow.REJECT)
    assert not is_expired(queue, unbounded, now_ms=NOW_MS + 2**42).any()
