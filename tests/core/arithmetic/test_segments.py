"""Index arithmetic against plain loops, and hashes that are the same everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_throttle.core.arithmetic.segments import (
    Segments,
    in_order,
    largest,
    name_hash,
    numbers,
    running_total,
    sums,
)

keys = st.lists(st.integers(0, 6), max_size=30)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@pytest.mark.slow
@given(keys, st.booleans())
def test_layout_is_a_stable_sort(key: list[int], is_wide: bool) -> None:
    s = Segments.by_key(np.array(key, dtype=np.int64), 70_000 if is_wide else 7)
    order = sorted(range(len(key)), key=lambda at: key[at])
    assert s.order.tolist() == order
    assert s.key.tolist() == [key[at] for at in order]
    assert s.counts[:7].tolist() == [key.count(k) for k in range(7)]
    assert s.starts[:7].tolist() == [sum(k < first for k in key) for first in range(7)]
    assert s.rank.tolist() == [key[:at].count(key[at]) for at in order]
    assert s.order[s.position].tolist() == list(range(len(key)))


def test_layout_of_many_keys_is_a_stable_sort_too() -> None:
    key = np.random.default_rng(1).integers(0, 200_000, 50_000)
    assert Segments.by_key(key, 200_000).order.tolist() == np.argsort(key, kind="stable").tolist()


@pytest.mark.parametrize("rows", [10, 5_000])
@pytest.mark.parametrize("most_bits", [3, 40, 62])
def test_positions_in_order_of_values_are_a_stable_sort(rows: int, most_bits: int) -> None:
    values = np.random.default_rng(rows).integers(-(2**most_bits), 2**most_bits, rows)
    assert in_order(values).tolist() == sorted(range(rows), key=values.tolist().__getitem__)


@pytest.mark.parametrize("columns", [1, 2])
def test_keys_in_runs_have_the_same_sums_and_extremes_as_scattered_ones(columns: int) -> None:
    random = np.random.default_rng(1)
    key = np.repeat([2, 0, 5, 0], [700, 500, 1, 900])
    values = random.integers(-(2**50), 2**50, (len(key), columns) if columns > 1 else len(key))
    mixed = random.permutation(len(key))
    assert numbers(key, 7).tolist() == numbers(key[mixed], 7).tolist() == [1_400, 0, 700, 0, 0, 1, 0]
    assert (sums(key, values, 7) == sums(key[mixed], values[mixed], 7)).all()
    assert (largest(key, values, 7, least=-9) == largest(key[mixed], values[mixed], 7, least=-9)).all()


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=30))
def test_first_marked_row_of_every_key(rows: list[tuple[int, bool]]) -> None:
    s = Segments.by_key(np.array([key for key, _ in rows], dtype=np.int64), 5)
    marks = np.array([mark for _, mark in rows], dtype=np.bool_)[s.order]
    for key, first in enumerate(s.first(marks).tolist()):
        mine = [mark for k, mark in rows if k == key]
        assert first == (mine.index(True) if True in mine else len(mine))


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=20),
    st.lists(st.integers(-3, 40), min_size=4, max_size=4),
)
def test_first_values_of_every_key_that_find_room(rows: list[tuple[int, int, bool]], room: list[int]) -> None:
    s = Segments.by_key(np.array([key for key, _, _ in rows], dtype=np.int64), 4)
    values, marks = (np.array([row[at] for row in rows], dtype=np.int64)[s.order] for at in (1, 2))
    total, is_marked = running_total(values), marks.astype(np.bool_)
    fitting, kept = s.fitting(total, np.array(room)), s.kept(is_marked)
    is_first = s.first_of_each(fitting)
    for key in range(4):
        mine = [value for k, value, _ in rows if k == key]
        fits = [n for n in range(len(mine) + 1) if sum(mine[:n]) <= room[key]]
        assert fitting[key] == max(fits, default=0)
        assert s.sums(total)[key] == sum(mine)
        assert s.sums(total, fitting)[key] == sum(mine[: fitting[key]])
        assert is_first[s.key == key].tolist() == [n < fitting[key] for n in range(len(mine))]
        assert kept.order[kept.key == key].tolist() == [
            at for at, (k, _, is_in) in enumerate(rows) if k == key and is_in
        ]


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-9, 9), st.integers(-9, 9)), max_size=20))
def test_columns_are_summed_and_compared_each_by_itself(rows: list[tuple[int, int, int]]) -> None:
    key = np.array([k for k, _, _ in rows], dtype=np.int64)
    values = np.array([row[1:] for row in rows], dtype=np.int64).reshape(-1, 2)
    for at in (0, 1):
        assert sums(key, values, 5)[:, at].tolist() == sums(key, values[:, at], 5).tolist()
        found = [max([-3, *(row[1 + at] for row in rows if row[0] == k)]) for k in range(5)]
        assert largest(key, values, 5, least=-3)[:, at].tolist() == found


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(-(2**50), 2**50)), max_size=20))
def test_sums_are_exact_by_key(rows: list[tuple[int, int]]) -> None:
    key = np.array([k for k, _ in rows], dtype=np.int64)
    values = np.array([v for _, v in rows], dtype=np.int64)
    assert sums(key, values, 5).tolist() == [sum(v for k, v in rows if k == one) for one in range(5)]
    assert running_total(values).tolist() == [sum(v for _, v in rows[:n]) for n in range(len(rows) + 1)]


def test_sums_beyond_2_to_the_53_keep_their_last_unit() -> None:
    assert sums(np.array([0, 0, 0]), np.array([2**60, 1, -(2**60)]), 1).tolist() == [1]


@pytest.mark.slow
@given(st.lists(texts, max_size=12), st.integers(0, 3), st.integers(0, 12))
def test_hash_is_of_the_name_alone(names: list[str], skipped: int, taken: int) -> None:
    array = pa.array(names, pa.string())
    found = name_hash(array).tolist()
    assert found == [name_hash(pa.array([name], pa.string()))[0] for name in names]
    assert name_hash(array.slice(skipped, taken)).tolist() == found[skipped : skipped + taken]
    assert all(0 <= value < 2**63 for value in found)


@pytest.mark.slow
def test_hash_is_the_same_in_every_process() -> None:
    imports = "import pyarrow as pa; from spark_throttle.core.arithmetic.segments import name_hash"
    code = f"{imports}; print(name_hash(pa.array(['ü/x']))[0])"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("0", "1")
    }
    assert seen == {f"{name_hash(pa.array(['ü/x']))[0]}\n"}


def test_hash_spreads_names_that_are_alike() -> None:
    found = name_hash(pa.array([f"tenant-{i}/topic-{j}" for i in range(200) for j in range(50)]))
    assert len(set(found.tolist())) == 10_000
    for shift in (0, 20, 59):
        bins = Counter(((found >> shift) % 8).tolist())
        assert max(bins.values()) < 1_500
