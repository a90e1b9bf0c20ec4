"""The queue's frames: against a plain list of rows, and how little of them a batch touches."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.move import queue_frames
from spark_throttle.spark.move.queue_frames import QueueFolder, QueueFrames, likely_order
from spark_throttle.spark.rows.frames import FRAME_BYTES, decode, encode_whole

IN_STATE = QueueFolder(None)


def table(ids: list[int], *, width: int = 1, column: str = "id") -> pa.Table:
    """Return rows whose content cannot be compressed."""
    content = [hashlib.shake_128(str(i).encode()).digest(width) for i in ids]
    return pa.table({column: pa.array(ids, pa.int64()), "content": pa.array(content, pa.binary())})


def ids_of(tables: list[pa.Table]) -> list[int]:
    return [i for part in tables for i in part.column(0).to_pylist()]


def all_rows(queue: QueueFrames) -> list[int]:
    return ids_of(queue.rows(np.ones(len(queue.frame_of_row), dtype=np.bool_), IN_STATE))


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 40), st.sampled_from([1, 20, 4_000]), st.integers(0, 2**32)), max_size=8))
def test_queue_is_a_list_of_rows(steps: list[tuple[int, int, int]]) -> None:
    queue, expected, total = QueueFrames.empty(), list[int](), 0
    for joining, width, seed in steps:
        rng = np.random.default_rng(seed)
        stays = rng.random(len(expected)) < rng.choice([0, 0.3, 0.9, 1])
        leaving = ids_of(queue.rows(~stays, IN_STATE))
        assert leaving == [i for i, stay in zip(expected, stays, strict=True) if not stay]
        new = list(range(total, total + joining))
        total += joining
        queue = queue.after(stays, table(new, width=width) if new else None, IN_STATE)
        expected = [i for i, stay in zip(expected, stays, strict=True) if stay] + new
        assert all_rows(queue) == expected
        assert len(queue.frame_of_row) == len(queue.row_in_frame) == len(expected)
        assert (np.diff(queue.frame_of_row) >= 0).all()
        assert set(queue.frame_of_row.tolist()) == set(range(len(queue.frames)))


def everyone(queue: QueueFrames) -> np.ndarray:
    return np.ones(len(queue.frame_of_row), dtype=np.bool_)


def test_small_batches_join_one_frame() -> None:
    queue = QueueFrames.empty()
    for i in range(50):
        queue = queue.after(everyone(queue), table([i]), IN_STATE)
    assert len(queue.frames) == 1
    assert all_rows(queue) == list(range(50))


def test_rows_of_another_schema_begin_a_frame() -> None:
    queue = (
        QueueFrames.empty()
        .after(np.zeros(0, np.bool_), table([1]), IN_STATE)
        .after(np.ones(1, np.bool_), table([2], column="b"), IN_STATE)
    )
    assert [part.column_names for part in queue.rows(everyone(queue), IN_STATE)] == [
        ["id", "content"],
        ["b", "content"],
    ]


def test_frame_that_keeps_half_of_its_rows_is_not_written_anew() -> None:
    queue = QueueFrames.empty().after(np.zeros(0, np.bool_), table(list(range(10)), width=9_000), IN_STATE)
    half = queue.after(np.arange(10) % 2 == 0, None, IN_STATE)
    assert half.frames[0] is queue.frames[0]
    assert half.row_in_frame.tolist() == [0, 2, 4, 6, 8]
    fewer = half.after(np.array([True, False, False, True, False]), None, IN_STATE)
    assert len(fewer.frames[0]) < len(queue.frames[0])
    assert fewer.row_in_frame.tolist() == [0, 1]
    assert all_rows(fewer) == [0, 6]


def test_frame_with_a_few_large_rows_stays_one_frame() -> None:
    # Rows of one frame that are larger than a frame: four of ten stay, 400 kB each.
    rows = table(list(range(10)), width=FRAME_BYTES * 2 // 5)
    queue = QueueFrames([encode_whole(rows)], np.zeros(10, dtype=np.int64), np.arange(10))
    after = queue.after(np.arange(10) < 4, None, IN_STATE)
    assert len(after.frames) == 1
    assert all_rows(after) == [0, 1, 2, 3]


def test_frames_are_compressed_and_those_that_are_not_can_be_read() -> None:
    rows = pa.table({"text": ["the same text in every row"] * 10_000})
    queue = QueueFrames.empty().after(np.zeros(0, np.bool_), rows, IN_STATE)
    assert sum(map(len, queue.frames)) * 10 < rows.nbytes
    assert pa.concat_tables(queue.rows(everyone(queue), IN_STATE)).equals(rows)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    plain = QueueFrames([sink.getvalue().to_pybytes()], np.zeros(10_000, dtype=np.int64), np.arange(10_000))
    after = plain.after(np.arange(10_000) < 4_000, None, IN_STATE)
    assert pa.concat_tables(after.rows(everyone(after), IN_STATE)).equals(rows.slice(0, 4_000))


def test_batch_opens_only_the_frames_that_it_touches(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = QueueFrames.empty()
    for i in range(20):
        queue = queue.after(everyone(queue), table([10 * i + k for k in range(10)], width=9_000), IN_STATE)
    assert len(queue.frames) == 20
    opened: list[int] = []

    def counted(frame: bytes) -> pa.Table:
        opened.append(len(frame))
        return decode(frame)

    monkeypatch.setattr(queue_frames, "decode", counted)
    stays = np.arange(200) >= 15
    assert len(ids_of(queue.rows(~stays, IN_STATE))) == 15
    assert len(opened) == 2
    opened.clear()
    after = queue.after(stays, None, IN_STATE)
    assert len(opened) == 1  # half of the second is left: it is looked into, and kept as it is
    assert len(after.frames) == 19


@given(
    st.lists(st.integers(0, 4), max_size=40),
    st.lists(st.sampled_from([0, 1, 1_000, 1_500, 2**32, 2**50]), min_size=5, max_size=5),
    st.integers(0, 40),
)
def test_likely_order_keeps_the_order_of_every_namespace(flow: list[int], pace: list[int], first: int) -> None:
    first = min(first, len(flow))
    order = likely_order(np.array(flow, dtype=np.int64), first, np.array(pace)).tolist()
    assert sorted(order) == list(range(len(flow) - first))
    joined = [(flow[first + at], at) for at in order]
    for namespace in set(flow):
        own = [at for of, at in joined if of == namespace]
        assert own == sorted(own)


def test_rows_are_likely_to_leave_as_fast_as_their_namespace_does_and_behind_what_waits_of_it() -> None:
    # Three rows of 0 and one of 1 wait. Of 0 two leave a second, of 1 one, of 2 none.
    flow = np.array([0, 0, 0, 1, 2, 0, 0, 0, 1, 1])
    order = likely_order(flow, 4, np.array([2_000, 1_000, 0]))
    # They have left after 2, 2.5 and 3 s, 2 and 3 s.
    assert (order + 4).tolist() == [5, 8, 6, 7, 9, 4]
