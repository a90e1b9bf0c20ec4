"""The sums by which two readings of a batch are compared: they do not depend on how its rows are divided."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.references.second_reading import ReadingSums
from spark_throttle.spark.rows.frames import NAMESPACE, SIZE, TIE
from tests.effort import examples

INT64 = st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.tuples(st.integers(0, 2**62), st.none() | st.text(max_size=4), st.none() | INT64), max_size=20
)  # fmt: skip


def table(rows: list[tuple[int, str | None, int | None]]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), ()]
    kinds = {TIE: pa.int64(), NAMESPACE: pa.string(), SIZE: pa.int64()}
    return pa.table({name: pa.array(of, kind) for (name, kind), of in zip(kinds.items(), columns, strict=True)})


@given(ROWS, st.integers(0, 20))
@examples(100)
def test_sums_of_the_parts_are_those_of_the_whole_as_plain_arithmetic_has_them(
    rows: list[tuple[int, str | None, int | None]], cut: int
) -> None:
    parts = [ReadingSums.of_rows(table(part)) for part in (rows[:cut], rows[cut:])]
    found = ReadingSums.total(parts)
    names = [name for _, name, _ in rows if name is not None]
    sizes = [size for _, _, size in rows if size is not None]
    assert (found.messages, found.positions) == (len(rows), sum(place % 2**32 for place, _, _ in rows))
    assert (found.named_messages, found.name_bytes) == (len(names), sum(len(name.encode()) for name in names))
    assert (found.sized_messages, found.low_size + (found.high_size << 32)) == (len(sizes), sum(sizes))
    assert ReadingSums.of_rows(table(rows)) == found


def test_names_in_a_dictionary_have_the_sums_of_plain_ones() -> None:
    rows = table([(1, "a/b", 5), (2, None, None), (3, "a/b", 7)])
    coded = rows.set_column(1, NAMESPACE, rows.column(NAMESPACE).dictionary_encode())
    assert ReadingSums.of_rows(coded) == ReadingSums.of_rows(rows)
    assert ReadingSums.of_rows(coded.slice(0, 0)) == ReadingSums()


def test_what_spark_does_not_compute_is_not_compared() -> None:
    sums = ReadingSums(*np.arange(1, 8).tolist())
    assert sums.comparable(has_positions=True, has_sizes=True) == sums
    assert sums.comparable(has_positions=False, has_sizes=True) == ReadingSums(1, 0, 3, 4, 5, 6, 7)
    assert sums.comparable(has_positions=True, has_sizes=False) == ReadingSums(1, 2, 3, 4)
