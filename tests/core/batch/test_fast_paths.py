"""The short ways through the kernel: taken where they should be, and no different from the long ones."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_throttle.core.batch import arrivals, flow_plan
from spark_throttle.core.batch.admission import AdmissionPlan, plan_admission
from spark_throttle.core.batch.arrivals import Arrivals
from spark_throttle.core.fair.layout import Layout
from spark_throttle.core.limits.token_bucket import PayingTime
from spark_throttle.core.quota import OnExcess
from spark_throttle.core.state import DeciderState, StoredState
from spark_throttle.core.usage import pack_usage
from spark_throttle.errors import QueueOverflowError
from spark_throttle.record import pack
from tests.effort import examples
from tests.oracle.history import History
from tests.oracle.strategies import histories
from tests.oracle.worlds import Namespace, limit, make_arrivals, make_policy, with_tokens


def stored(plan: AdmissionPlan) -> tuple[bytes, bytes, list[list[int]]]:
    """Return all of a plan, byte for byte."""
    rows = np.arange(len(plan.state.queue))
    block = pack(StoredState(plan.state, b"", [b""][: len(rows)], rows * 0, rows, PayingTime(0, 0)), is_compressed=True)
    d = plan.decisions
    columns = (d.verdict, d.reason, d.level, d.dimension, d.scope, d.throttle_time_ms)
    return block, pack_usage(plan.usage), [column.tolist() for column in columns]


@pytest.mark.slow
@settings(examples(12, in_search=1_000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories())
def test_batch_in_which_all_fits_is_decided_as_any_other(history: History) -> None:
    state, policy = history.initial_state(), history.steps[0].policy
    for step in history.steps:
        state, policy = step.before(state, policy), step.policy
        arguments: dict[str, Any] = {"now_ms": step.now_ms}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(flow_plan, "_outcome_if_all_fits", lambda *_, **__: None)
            try:
                expected = plan_admission(state, step.arrivals, step.policy, **arguments)
            except QueueOverflowError:
                return
        plan = plan_admission(state, step.arrivals, step.policy, **arguments)
        assert stored(plan) == stored(expected)
        state = plan.state


def refuse(*_: object, **__: object) -> NoReturn:
    raise AssertionError


@pytest.mark.parametrize("on_excess", [OnExcess.DELAY, OnExcess.OBSERVE])
def test_rows_are_not_laid_out_where_all_fits(monkeypatch: pytest.MonkeyPatch, on_excess: OnExcess) -> None:
    monkeypatch.setattr(Layout, "of", refuse)
    quota = limit(messages_per_second=3, bytes_per_second=30, on_excess=on_excess)
    policy = make_policy(job=quota, default=Namespace(quota))
    state = with_tokens(DeciderState.initial(policy, now_ms=1_000), policy, {"": (2, 20)})
    rows = [("a", 10), ("b", 5), ("a", 5)]
    plan = plan_admission(state, make_arrivals(rows), policy, now_ms=1_000)
    assert plan.usage.admitted.tolist() == [[2, 15, 0, 0], [1, 5, 0, 0]]
    with pytest.raises(AssertionError):
        plan_admission(state, make_arrivals([*rows, ("a", 1)]), policy, now_ms=1_000)


@pytest.mark.parametrize("spoilt", [(None, 1), ("", 1), ("x" * 1_025, 1), ("a", None), ("a", -1), ("a", 2**36 + 1)])
def test_one_unusable_row_changes_nothing_for_the_others(
    monkeypatch: pytest.MonkeyPatch, spoilt: tuple[str | None, int | None]
) -> None:
    rows: list[tuple[str | None, int | None]] = [("b", 7), ("a", 8), ("b", 2**36)]
    whole = arrivals._read(make_arrivals([*rows, spoilt]), 1)
    monkeypatch.setattr(arrivals, "_unusable", refuse)
    read = arrivals._read(make_arrivals(rows), 1)
    assert whole.names.to_pylist() == read.names.to_pylist() == ["b", "a"]
    assert whole.name.tolist() == [*read.name.tolist(), -1] == [0, 1, 0, -1]
    assert whole.amounts[0].tolist() == [*read.amounts[0].tolist(), 0]
    assert (whole.unusable.tolist(), read.unusable.tolist()) == ([3], [])


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([None, "", "a", "b", "c", "d"]), max_size=9),
    st.permutations([None, "", "a", "b", "b", "c", "d", "unused"]),
)
def test_names_in_a_dictionary_are_read_as_the_same_names_in_full(
    names: list[str | None], dictionary: list[str | None]
) -> None:
    sizes = pa.array(range(len(names)), pa.int64())
    indices = pa.array([None if name is None else dictionary.index(name) for name in names], pa.int32())
    encoded = pa.DictionaryArray.from_arrays(indices, pa.array(dictionary, pa.string()))
    read, expected = (arrivals._read(Arrivals(each, sizes), 1) for each in (encoded, pa.array(names, pa.string())))
    assert read.names.to_pylist() == expected.names.to_pylist()
    for column in ("name", "unusable", "reason"):
        assert getattr(read, column).tolist() == getattr(expected, column).tolist()
    assert read.amounts[0].tolist() == expected.amounts[0].tolist()


@pytest.mark.parametrize("dictionary", [["b", "a"], ["a", "x", "b", "a"]])
def test_name_of_a_dictionary_is_looked_up_once(dictionary: list[str]) -> None:
    names = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 0], pa.int32()), pa.array(dictionary))
    read = arrivals._read(Arrivals(names.slice(1), pa.array([1, 2, 3])), 1)
    assert (read.names.to_pylist(), read.name.tolist()) == (dictionary[:2], [0, 1, 0])


def test_slices_of_longer_columns_are_read_as_they_are() -> None:
    longer = make_arrivals([(None, None), ("a", 1), ("b", 2), ("", -1)])
    read = arrivals._read(Arrivals(longer.namespaces.slice(1, 2), longer.size_bytes.slice(1, 2)), 1)
    assert (read.names.to_pylist(), read.name.tolist(), read.amounts[0].tolist()) == (["a", "b"], [0, 1], [1, 2])


def test_names_are_found_whichever_list_is_longer() -> None:
    few, many = pa.array(["c", "z", "a"]), pa.array(["a", "b", "c", "d"])
    assert arrivals._positions(few, many).tolist() == [2, -1, 0]
    assert arrivals._positions(many, few).tolist() == [2, -1, 0, -1]
