"""Charges of processing time add up by namespace."""

from __future__ import annotations

from collections import Counter, defaultdict
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.quota import MOST_NS
from spark_throttle.core.time_charges import Lot, TimeCharges, sums_of_time

times_ns = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.integers(0, 2**40))


@pytest.mark.slow
@given(st.lists(st.tuples(times_ns, st.integers(0, 2**40)), max_size=4))
def test_sum_has_each_namespace_once_in_the_order_of_bytes_with_all_its_time(
    parts: list[tuple[dict[str, int], int]],
) -> None:
    found = TimeCharges.sum_of([TimeCharges.of(time_ns, unattributed_ns=rest_ns) for time_ns, rest_ns in parts])
    expected = Counter[str]()
    for time_ns, _ in parts:
        expected.update(time_ns)
    names = sorted(expected, key=lambda name: name.encode())
    assert found.names.to_pylist() == names
    assert found.time_ns.tolist() == [expected[name] for name in names]
    assert found.unattributed_ns == sum(rest_ns for _, rest_ns in parts)


lots = st.tuples(
    st.integers(0, 2**53), st.dictionaries(st.none() | st.text("ab/é", max_size=2), st.integers(0, 2**28), max_size=5)
)


@pytest.mark.slow
@given(st.lists(lots, max_size=4))
def test_divided_time_is_all_there_and_each_row_of_a_lot_costs_the_same(
    given_lots: list[tuple[int, dict[str | None, int]]],
) -> None:
    found = TimeCharges.divided(
        [
            Lot(time_ns, pa.array(list(rows), pa.string()), np.fromiter(rows.values(), np.int64, len(rows)))
            for time_ns, rows in given_lots
        ]
    )
    exact = defaultdict[str | None, Fraction](Fraction)
    for time_ns, rows in given_lots:
        total = sum(rows.values())
        exact[None] += 0 if total else time_ns
        for name, count in rows.items():
            exact[name] += Fraction(time_ns * count, total) if total else 0
    got = dict(zip(found.names.to_pylist(), found.time_ns.tolist(), strict=True))
    assert int(found.time_ns.sum()) + found.unattributed_ns == sum(time_ns for time_ns, _ in given_lots)
    assert list(got) == sorted((name for name in exact if name is not None), key=str.encode)
    for name, time_ns in [*got.items(), (None, found.unattributed_ns)]:
        assert abs(time_ns - exact[name]) < max(1, len(given_lots))


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 2**57)), max_size=9))
def test_sums_of_time_are_cut_and_never_wrap(given_times: list[tuple[int, int]]) -> None:
    key, time_ns = (np.array([each[at] for each in given_times], dtype=np.int64) for at in (0, 1))
    expected = [min(sum(min(max(ns, 0), MOST_NS) for at, ns in given_times if at == of), MOST_NS) for of in range(3)]
    assert sums_of_time(key, time_ns, 3).tolist() == expected


def test_charges_beyond_all_bounds_are_the_most_that_is_charged() -> None:
    each = TimeCharges.of({"a": 10**19, "b": 1}, unattributed_ns=10**19)
    found = TimeCharges.sum_of([each] * 20)
    assert (found.time_ns.tolist(), found.unattributed_ns) == ([MOST_NS, 20], MOST_NS)
