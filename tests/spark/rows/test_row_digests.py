"""Digests of rows: equal for equal rows however Arrow keeps them, different for all others."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.rows import row_digests as module
from spark_throttle.spark.rows.frames import ORDER_PREFIX, TIE, arranged
from spark_throttle.spark.rows.row_digests import row_digests

NANS = np.array([0x7FF8 << 48, (0x7FF8 << 48) + 1, 0xFFF8 << 48, 0, 1 << 63], dtype=np.uint64)
VARIANT = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
INTS = pa.list_(pa.int64())
DIFFERENT = {
    "nulls in arrays": pa.array([[], None, [None], [None, None], [0], [1, None], [None, 1], [1]], INTS),
    "bounds of arrays": pa.array([[[1], [2, 3]], [[1, 2], [3]], [[1, 2, 3]], [[1, 2, 3], []], [[], [1, 2, 3]]]),
    "nulls in structs": pa.array(
        [None, {"a": None, "b": None}, {"a": 1, "b": None}, {"a": None, "b": 1}, {"a": 0, "b": 0}]
    ),
    "zeros and NaN": pa.array(NANS.view(np.float64)),
    "zeros inside": pa.array([{"x": [0.0]}, {"x": [-0.0]}, {"x": [float("nan")]}, {"x": [None]}]),
    "maps": pa.array(
        [[], None, [("a", b"1"), ("b", b"2")], [("b", b"2"), ("a", b"1")], [("a", None)], [("a", b"")], [("", b"a")]],
        pa.map_(pa.string(), pa.binary()),
    ),
    "texts": pa.array([b"", None, b"\0", b"\0\0", b"12345678", b"12345678\0", b"1234567\xff", b"\xff", b"\xe9"]),
    "texts side by side": pa.array([["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], ["", "abc"], ["abc", None]]),
    "variants": pa.array([{"value": v, "metadata": b"\x01"} for v in (b"\x20\x02\x96", b"\x20\x01\x0f")], VARIANT),
    "decimals": pa.array([Decimal("1.50"), Decimal("-1.50"), None, Decimal(10) ** 35], pa.decimal128(38, 2)),
    "booleans": pa.array([True, False, None]),
    "times": pa.array([0, 1, None, -1]).view(pa.timestamp("us")),
}  # fmt: skip


def digests(values: pa.Array | pa.ChunkedArray) -> list[int]:
    found: list[int] = row_digests(pa.table({"c": values})).tolist()
    return found


@pytest.mark.parametrize("values", DIFFERENT.values(), ids=DIFFERENT)
def test_values_that_differ_have_different_digests(values: pa.Array) -> None:
    found = digests(values)
    assert len(set(found)) == len(values)
    # Nor does it matter in which chunks, at which offsets, or in which kind of array they stand.
    assert [digests(values.slice(at, 1))[0] for at in range(len(values))] == found
    assert digests(pa.chunked_array([values.slice(0, 1), values.slice(1)])) == found
    assert digests(values.take(pa.array(range(len(values) - 1, -1, -1)))) == found[::-1]
    assert len(set(row_digests(pa.table({"a": values, "b": values.take(pa.array([0] * len(values)))})))) == len(values)


def test_columns_are_not_taken_for_one_another() -> None:
    table = pa.table({"a": [1, 2, None], "b": [2, 1, None]})
    assert len(set(row_digests(table).tolist())) == 3


def test_width_of_offsets_does_not_matter() -> None:
    texts = pa.array(["a", None, "é" * 9, ""])
    lists = pa.array([["a"], None, [], ["b", None]])
    assert digests(texts) == digests(texts.cast(pa.large_string())) == digests(texts.cast(pa.large_binary()))
    assert digests(lists) == digests(lists.cast(pa.large_list(pa.large_string())))


def test_list_without_items_may_come_without_the_offsets_of_its_items() -> None:
    """Spark 4.1 writes no offset for no text; the format allows that."""
    texts = pa.Array.from_buffers(pa.string(), 0, [None, pa.py_buffer(b""), pa.py_buffer(b"")])
    bare = pa.ListArray.from_arrays([0, 0], texts)
    assert row_digests(pa.table({"a": bare})) == row_digests(pa.table({"a": pa.array([[]], pa.list_(pa.string()))}))


def test_what_lies_below_a_null_does_not_matter() -> None:
    mask = pa.array([False, True])
    hidden = pa.ListArray.from_arrays(pa.array([0, 1, 3]), pa.array([1, 2, 3]), mask=mask)
    assert digests(hidden) == digests(pa.array([[1], None]))
    struct = pa.StructArray.from_arrays([pa.array([1, 2])], names=["a"], mask=mask)
    assert digests(struct) == digests(pa.array([{"a": 1}, None]))
    numbers = pa.Array.from_buffers(pa.int64(), 2, [pa.py_buffer(b"\x01"), pa.array([1, 2]).buffers()[1]])
    assert digests(numbers) == digests(pa.array([1, None]))


@pytest.mark.slow
@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(1, 30))
def test_texts_are_read_piece_by_piece_as_at_once(texts: list[bytes], piece_bytes: int) -> None:
    whole = digests(pa.array(texts, pa.binary()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PIECE_BYTES", piece_bytes)
        assert digests(pa.array(texts, pa.binary())) == whole
    assert [a == b for a in texts for b in texts] == [a == b for a in whole for b in whole]


LISTS = st.none() | st.lists(st.none() | st.lists(st.none() | st.integers(0, 1), max_size=2), max_size=2)
STRUCTS = st.none() | st.fixed_dictionaries({"x": st.sampled_from([0.0, -0.0, None]), "t": st.sampled_from(["", "a"])})


@pytest.mark.slow
@given(
    st.lists(st.fixed_dictionaries({"l": LISTS, "s": STRUCTS}), min_size=1, max_size=30),
    st.lists(st.sampled_from([0.0, -0.0, float("nan"), None]), min_size=1, max_size=3),
    st.booleans(),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_rows_of_one_hash_are_arranged_alike_whatever_order_they_come_in(
    rows: list[dict[str, Any]], orders: list[float | None], is_ordered: bool, rng: random.Random
) -> None:
    kind = pa.struct([("l", pa.list_(INTS)), ("s", pa.struct([("x", pa.float64()), ("t", pa.string())]))])
    table = pa.table({"row": pa.array(rows, kind), TIE: pa.array([n % 2 for n in range(len(rows))])})
    if is_ordered:
        column = pa.array([orders[n % len(orders)] for n in range(len(rows))], pa.float64())
        table = table.append_column(f"{ORDER_PREFIX}000", column)
    order = list(range(len(rows)))
    rng.shuffle(order)
    shuffled = table.take(pa.array(order))
    cut = rng.randint(0, len(rows))
    parts = [part for part in (shuffled.slice(0, cut), shuffled.slice(cut)) if part.num_rows]
    assert (row_digests(arranged(parts)) == row_digests(arranged([table]))).all()
