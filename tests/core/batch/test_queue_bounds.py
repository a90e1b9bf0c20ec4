"""A queue that is full keeps the heads of all queues, as far as the longest may go for all to fit."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from random import Random
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.arithmetic.segments import name_hash
from spark_throttle.core.batch.queue_bounds import WaitingRows, is_expired, overflowing
from spark_throttle.core.fair.layout import Candidates, Layout
from spark_throttle.core.quota import Overflow, QueueBounds
from spark_throttle.core.state import Queue
from spark_throttle.errors import QueueOverflowError
from tests.oracle.reference_queue import part_of

NOW_MS = 1_760_000_000_000
NAMES = pa.array(["a/x", "b/y", "c/z"])

Row = tuple[int, int]
"""Flow and size."""


def ask(old: list[Row], new: list[Row], messages: int, size_bytes: int, **bounds: Overflow) -> list[int]:
    """Return which rows find no room, counted from the first new one: those that waited already are negative."""
    rows = [*old, *new]
    candidates = Candidates(
        np.arange(len(rows)),
        np.array([flow for flow, _ in rows], dtype=np.int64),
        (np.array([size for _, size in rows], dtype=np.int64),),
        np.array([NOW_MS - 5] * len(old) + [NOW_MS] * len(new), dtype=np.int64),
        np.zeros(len(rows), dtype=np.int64),
        len(old),
    )
    limits = QueueBounds(messages, size_bytes, None, bounds.get("on_overflow", Overflow.REJECT))
    waiting = WaitingRows(candidates.take(np.arange(len(rows))))
    found = overflowing(waiting, candidates, NAMES, limits, now_ms=NOW_MS)
    assert found.tolist() == sorted(found.tolist())
    return [at - len(old) for at in found.tolist()]


rows = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), max_size=12)
few, some_bytes = st.integers(1, 12), st.integers(1, 60)


def queues_of(taken: list[Row]) -> dict[int, list[tuple[int, int]]]:
    """Return the queues by flow: position and size of every row."""
    queues: dict[int, list[tuple[int, int]]] = {flow: [] for flow in range(len(NAMES))}
    for at, (flow, size) in enumerate(taken):
        queues[flow].append((at, size))
    return queues


def share_of(queue: list[tuple[int, int]], messages: int, size_bytes: int) -> int:
    """Return the larger part of the bounds that a queue takes."""
    return max(part_of(len(queue), messages), part_of(sum(size for _, size in queue), size_bytes))


@pytest.mark.slow
@given(rows, rows, few, some_bytes)
def test_the_last_row_of_the_longest_queue_is_put_out_until_the_others_fit(
    old: list[Row], new: list[Row], messages: int, size_bytes: int
) -> None:
    queues, hashes = queues_of([*old, *new]), name_hash(NAMES, NOW_MS).tolist()
    waited = {flow for flow, _ in old}
    lost = []
    while (
        sum(map(len, queues.values())) > messages
        or sum(size for queue in queues.values() for _, size in queue) > size_bytes
    ):
        longest = max(
            (flow for flow in queues if queues[flow]),
            key=lambda flow: (
                share_of(queues[flow], messages, size_bytes), len(queues[flow]), flow not in waited, hashes[flow]
            ),
        )  # fmt: skip
        lost.append(queues[longest].pop()[0] - len(old))
    assert ask(old, new, messages, size_bytes) == sorted(lost)


@pytest.mark.slow
@given(rows, rows, few, some_bytes)
def test_what_is_kept_is_a_prefix_of_every_queue_within_the_bounds(
    old: list[Row], new: list[Row], messages: int, size_bytes: int
) -> None:
    lost = {at + len(old) for at in ask(old, new, messages, size_bytes)}
    kept = [(at, size) for at, (_, size) in enumerate([*old, *new]) if at not in lost]
    assert len(kept) <= messages
    assert sum(size for _, size in kept) <= size_bytes
    for queue in queues_of([*old, *new]).values():
        is_lost = [at in lost for at, _ in queue]
        assert is_lost == sorted(is_lost)


@pytest.mark.slow
@given(rows, rows, few, some_bytes)
def test_no_namespace_that_lost_a_row_has_less_than_another_keeps(
    old: list[Row], new: list[Row], messages: int, size_bytes: int
) -> None:
    lost = {at + len(old) for at in ask(old, new, messages, size_bytes)}
    queues = queues_of([*old, *new])
    kept = {flow: [row for row in queue if row[0] not in lost] for flow, queue in queues.items()}
    most = max(share_of(queue, messages, size_bytes) for queue in kept.values())
    for flow, queue in queues.items():
        if len(kept[flow]) < len(queue):
            assert share_of(queue[: len(kept[flow]) + 1], messages, size_bytes) >= most


@pytest.mark.slow
@given(rows, rows)
def test_nothing_is_put_out_where_all_fits(old: list[Row], new: list[Row]) -> None:
    taken = [*old, *new]
    assert ask(old, new, len(taken) or 1, sum(size for _, size in taken) or 1) == []


@pytest.mark.slow
@given(rows, rows, few, some_bytes)
def test_a_queue_that_was_cut_is_cut_no_more(old: list[Row], new: list[Row], messages: int, size_bytes: int) -> None:
    lost = ask(old, new, messages, size_bytes)
    kept = [row for at, row in enumerate([*old, *new], start=-len(old)) if at not in lost]
    assert ask(kept, [], messages, size_bytes) == []
    assert ask(old, new, messages, size_bytes) == lost


@pytest.mark.slow
@given(rows, rows, few, some_bytes, st.randoms(use_true_random=False))
def test_how_rows_of_namespaces_are_mixed_changes_nothing(
    old: list[Row], new: list[Row], messages: int, size_bytes: int, random: Random
) -> None:
    def kept(old: list[Row], new: list[Row]) -> list[Row]:
        lost = ask(old, new, messages, size_bytes)
        return sorted(
            (row for at, row in enumerate([*old, *new], start=-len(old)) if at not in lost), key=itemgetter(0)
        )

    assert kept(riffled(random, old), riffled(random, new)) == kept(old, new)


def riffled(random: Random, taken: list[Row]) -> list[Row]:
    """Return rows in another order, those of a namespace in their own."""
    turns = random.sample([flow for flow, _ in taken], len(taken))
    queues = {flow: iter(queue) for flow, queue in queues_of(taken).items()}
    return [(flow, next(queues[flow])[1]) for flow in turns]


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


def test_who_filled_the_queue_first_makes_room_for_the_others() -> None:
    assert ask([(0, 1)] * 6, [(1, 1)], 6, 10**6) == [-1]
    assert ask([(0, 1)] * 6, [(1, 1)] * 6, 6, 10**6) == [-3, -2, -1, 3, 4, 5]
    assert ask([(0, 1)] * 6, [(0, 1)] * 6, 6, 10**6) == [0, 1, 2, 3, 4, 5]


def test_bytes_of_one_make_room_for_messages_of_others() -> None:
    old = [(0, 400)] * 2 + [(1, 1)] * 2
    assert ask(old, [(2, 300)], 10, 1_000) == [-3]
    assert ask(old, [(1, 1)] * 7, 10, 1_000) == [6]


def test_of_equal_shares_those_who_wait_longest_are_kept() -> None:
    for first, second in ((0, 1), (1, 0)):
        assert ask([(first, 1)], [(second, 1)], 1, 10**6) == [0]


def test_a_row_that_takes_more_of_the_queue_alone_than_others_keep_is_put_out() -> None:
    assert ask([(0, 600)], [(1, 100)] * 4, 100, 1_000) == []
    assert ask([(0, 600)], [(1, 100)] * 5, 100, 1_000) == [-1]


def test_rows_that_are_queued_are_cut_to_a_bound_that_shrank() -> None:
    assert ask([(0, 1)] * 5, [], 2, 10**6) == [-3, -2, -1]
    assert ask([(0, 1)] * 5, [(1, 1)], 2, 10**6) == [-4, -3, -2, -1]
    assert ask([(0, 9)], [], 2, 8) == [-1]


def test_queue_that_may_not_overflow_says_what_it_would_hold() -> None:
    with pytest.raises(QueueOverflowError, match="the queue would hold 3 delayed messages, over its bound of 2"):
        ask([(0, 1)] * 2, [(1, 1)], 2, 10**6, on_overflow=Overflow.FAIL)


def test_queue_that_may_not_overflow_keeps_what_waits_when_the_bound_shrinks() -> None:
    assert ask([(0, 1)] * 3, [], 2, 10**6, on_overflow=Overflow.FAIL) == []


@pytest.mark.parametrize("size_bytes", [1, 2**52, 2**62])
def test_bounds_may_be_as_large_as_the_format_has_them(size_bytes: int) -> None:
    new = [(0, 2**36)] * 3 + [(1, 0)] * 2
    fits = size_bytes // 2**36 >= 3
    assert ask([], new, 4, size_bytes) == ([2] if fits else [0, 1, 2])
    assert ask([], new, 2**62, size_bytes) == ([] if fits else [0, 1, 2])


def test_queues_are_not_laid_out_where_all_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> NoReturn:
        raise AssertionError

    monkeypatch.setattr(Layout, "of", refuse)
    assert ask([(0, 1)] * 2, [(1, 1)], 3, 3) == []
    with pytest.raises(AssertionError):
        ask([(0, 1)] * 2, [(1, 1)], 2, 3)


def test_row_expires_when_it_is_older_than_the_bound() -> None:
    arrival_ms = NOW_MS - np.array([0, 1_000, 1_001])
    queue = Queue(np.zeros(3, np.int64), np.zeros(3, np.int64), arrival_ms, np.zeros(3, np.int64))
    bounds = QueueBounds(9, 9, 1_000, Overflow.REJECT)
    assert is_expired(queue, bounds, now_ms=NOW_MS).tolist() == [False, False, True]
    unbounded = QueueBounds(9, 9, None, Overflow.REJECT)
    assert not is_expired(queue, unbounded, now_ms=NOW_MS + 2**42).any()
