"""Calls take rows by the rows and the rates alone, leave in the time until the next batch, and read as text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.spark.paced.calls import CALL_NS, IdempotencyKey, calls_of, plain_rows

COSTS = st.lists(st.integers(0, 10**10), max_size=300)
SMALL = st.lists(st.integers(0, 2 * CALL_NS), max_size=300)
WINDOWS = st.integers(0, 10**10)
SIZES = st.integers(1, 50)

BROKEN, READ = b"na\xefve", "na\ufffdve"
TEXT = pa.array([BROKEN, None, b"fine"]).view(pa.string())
LARGE = TEXT.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string())
PAIRS = pa.MapArray.from_arrays([0, 2, 2, 3], pa.array([BROKEN, b"k", b"k"]).view(pa.string()), LARGE)


@pytest.mark.slow
@given(COSTS | SMALL, WINDOWS, SIZES)
def test_every_row_is_in_one_call_and_in_its_place(costs: list[int], window_ns: int, rows_per_call: int) -> None:
    calls = calls_of(np.array(costs, dtype=np.int64), window_ns, rows_per_call)
    places = [place for call in calls for place in range(call.place, call.place + call.rows)]
    assert places == list(range(len(costs)))
    assert all(1 <= call.rows <= rows_per_call for call in calls)


@pytest.mark.slow
@given(COSTS | SMALL, WINDOWS, WINDOWS, SIZES)
def test_rows_of_a_call_do_not_depend_on_the_time(costs: list[int], one_ns: int, other_ns: int, rows: int) -> None:
    one, other = (calls_of(np.array(costs, dtype=np.int64), window, rows) for window in (one_ns, other_ns))
    assert [(call.place, call.rows) for call in one] == [(call.place, call.rows) for call in other]


@pytest.mark.slow
@given(COSTS | SMALL, SIZES)
def test_call_takes_one_message_and_what_the_rate_gives_in_3_ms(costs: list[int], rows_per_call: int) -> None:
    for call in calls_of(np.array(costs, dtype=np.int64), 0, rows_per_call):
        assert sum(costs[call.place + 1 : call.place + call.rows]) <= CALL_NS


@pytest.mark.slow
@given(COSTS | SMALL, WINDOWS, SIZES)
def test_calls_fill_the_window_or_go_8_percent_faster_than_the_rate(
    costs: list[int], window_ns: int, rows_per_call: int
) -> None:
    calls = calls_of(np.array(costs, dtype=np.int64), window_ns, rows_per_call)
    if costs:
        assert sum(call.takes_ns for call in calls) == max(window_ns, -(-sum(costs) * 100 // 108))


def test_rows_without_a_cost_are_spread_by_their_number() -> None:
    calls = calls_of(np.zeros(10, dtype=np.int64), 1_000, 4)
    assert [(call.rows, call.takes_ns) for call in calls] == [(4, 400), (4, 400), (2, 200)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (TEXT, [READ, None, "fine"]),
        (LARGE, [READ, None, "fine"]),
        (pa.ListArray.from_arrays([0, 1, 3, 3], TEXT), [[READ], [None, "fine"], []]),
        (pa.LargeListArray.from_arrays([0, 1, 3, 3], TEXT), [[READ], [None, "fine"], []]),
        (PAIRS, [[(READ, READ), ("k", None)], [], [("k", "fine")]]),
        (pa.StructArray.from_arrays([TEXT, LARGE], ["a", "b"]), [{"a": r, "b": r} for r in (READ, None, "fine")]),
    ],
    ids=["text", "large text", "list", "large list", "map", "struct"],
)
def test_text_that_is_no_utf8_has_replacement_characters_wherever_it_stands(
    values: pa.Array, expected: list[Any]
) -> None:
    table = pa.table({"n": [1, 2, 3], "raw": [BROKEN, b"", None], "text": values})
    columns = zip((1, 2, 3), (BROKEN, b"", None), expected, strict=True)
    assert plain_rows(table) == [{"n": n, "raw": raw, "text": text} for n, raw, text in columns]


def test_a_key_fits_into_a_header_and_tells_long_namespaces_apart() -> None:
    texts = {IdempotencyKey("q", 1, "i", "é" * 10_000 + end, 0).text for end in "ab"}
    assert len(texts) == 2
    assert all(len(text) < 100 and text.isascii() for text in texts)
    assert IdempotencyKey("q", 1, "i", "a" * 4_000, 0).text == f"q/1/i/{'a' * 4_000}/0"
