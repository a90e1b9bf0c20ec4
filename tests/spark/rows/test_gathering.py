"""Rows in another order: as pyarrow's `take` where it can, and from tables for which it cannot."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.rows.gathering import gathered


@given(
    st.lists(st.lists(st.text(max_size=30), max_size=6), min_size=1, max_size=4),
    st.integers(0, 2**32),
    st.sampled_from([0, 50, 200, 10**6]),
)
def test_rows_come_in_the_order_that_is_asked_for_whatever_may_be_joined(
    chunks: list[list[str]], seed: int, joined_bytes: int
) -> None:
    texts = [text for chunk in chunks for text in chunk]
    text = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks])
    table = pa.table({"text": text, "size": pa.array([len(each) for each in texts], pa.int64())})
    rng = np.random.default_rng(seed)
    at = rng.permutation(len(texts))[: rng.integers(0, len(texts) + 1)]
    found = gathered(table, at, joined_bytes=joined_bytes)
    assert found.schema.equals(table.schema)
    assert found.to_pylist() == [{"text": texts[row], "size": len(texts[row])} for row in at]


def test_part_of_many_rows_of_many_chunks_is_in_order() -> None:
    chunk = pa.array(range(100), pa.int64())
    table = pa.table({"number": pa.chunked_array([pc.add(chunk, 100 * number) for number in range(4)])})
    at = np.random.default_rng(1).permutation(400)
    assert gathered(table, at, joined_bytes=table.nbytes // 4).column("number").to_pylist() == at.tolist()


def test_gathering_a_large_table_holds_hardly_more_than_what_it_returns() -> None:
    rows, joined_bytes = 32_000, 1 << 20
    values = pa.array([f"{row:01000}" for row in range(rows // 4)])
    table = pa.table({"value": pa.chunked_array([values] * 4)})
    at = np.random.default_rng(1).permutation(rows)
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    pa.set_memory_pool(pool)
    try:
        found_bytes = gathered(table, at, joined_bytes=joined_bytes).nbytes  # nothing may outlive the pool
    finally:
        pa.set_memory_pool(usual)
    assert found_bytes >= table.nbytes >= 30 * joined_bytes
    assert pool.max_memory() <= found_bytes + 4 * joined_bytes


@pytest.mark.thorough
def test_column_of_more_than_two_gib_is_gathered() -> None:
    chunk = pa.array([bytes(1 << 20)] * 1_100)
    table = pa.table({"value": pa.chunked_array([chunk, chunk]), "number": pa.array(range(2_200))})
    at = np.arange(2_200)[::-1]
    with pytest.raises(pa.ArrowInvalid, match="offset overflow"):
        table.take(pa.array(at))
    found = gathered(table, at)
    assert found.column("number").to_pylist() == at.tolist()
    assert found.nbytes >= table.nbytes
