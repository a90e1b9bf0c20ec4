"""Charges of processing time add up by namespace."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.time_charges import TimeCharges

times_ns = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.integers(0, 2**40))


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
    assert found.total_ns == sum(expected.values()) + found.unattributed_ns
