"""A metered function's calls are charged to the namespaces of their rows, by a clock and a task that tests set."""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.pandas import functions
from pyspark.sql.types import LongType
from pyspark.util import PythonEvalType

from spark_throttle.errors import Backpressure, ConfigurationError
from spark_throttle.spark import Throttle
from spark_throttle.spark.metering import meter as meters
from spark_throttle.spark.metering.charging import RunningTask, take_refusal
from spark_throttle.spark.metering.meter import Meter
from spark_throttle.spark.metering.metered import Metered
from tests.spark.metering.metered_world import SECOND_NS, World

PANDAS_UDF: Any = functions.pandas_udf
ARROW_UDF: Any = functions.arrow_udf  # their overloads know no wrapper of a function


def arrow(*names: str | None) -> pa.RecordBatch:
    return pa.record_batch({"ns": pa.array(names, pa.string()), "value": list(range(len(names)))})


FORMS: dict[str, Callable[..., Any]] = {
    "arrow": arrow,
    "pandas": lambda *names: pd.DataFrame({"ns": names}),
    "rows": lambda *names: [Row(value=at, ns=name) for at, name in enumerate(names)],
}


def given_to(form: str, *lots: tuple[str | None, ...]) -> Iterator[Any]:
    batches = [FORMS[form](*names) for names in lots]
    return iter([row for rows in batches for row in rows] if form == "rows" else batches)


@pytest.mark.parametrize("form", FORMS)
def test_time_of_a_task_is_divided_by_rows(world: World, form: str) -> None:
    def work(rows: Iterator[Any]) -> None:
        list(rows)
        world.spend(400)

    assert world.metered(work)(given_to(form, ("a", "b"), ("a", None))) is None
    assert world.charged_ns() == {"a": 200, "b": 100, None: 100}


def test_namespaces_are_read_as_text_and_missing_ones_are_nobody(world: World) -> None:
    def work(rows: Iterator[Any]) -> None:
        list(rows)
        world.spend(800)

    frame = pd.DataFrame({"ns": pd.Series(["a", 7, None, float("nan")], dtype=object)})
    world.metered(work)(iter([frame, pa.record_batch({"ns": [7, None, 8, 8]})]))
    assert world.charged_ns() == {"7": 200, "8": 200, "a": 100, None: 300}


def test_namespace_is_found_in_rows_of_many_columns(world: World) -> None:
    columns = dict.fromkeys("bcdefgh", 1)

    def work(rows: Iterator[Any]) -> None:
        list(rows)
        world.spend(90)

    world.metered(work)(iter([Row(**columns, ns="a"), Row(**columns, ns="a"), Row(**columns, ns=None)]))
    assert world.charged_ns() == {"a": 60, None: 30}


def test_time_between_two_results_is_of_the_rows_taken_for_them(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            world.spend(1000 if batch.num_rows == 2 else 30)
            yield batch
            world.spend(2)

    assert len(list(world.metered(work)(given_to("arrow", ("a", "a"), ("b",), ("c",))))) == 3
    assert world.charged_ns() == {"a": 1002, "b": 32, "c": 32}


class Lazy:
    """What works only while it is iterated, and is no iterator itself."""

    def __init__(self, work: Callable[[], Iterator[Any]]) -> None:
        self._work = work

    def __iter__(self) -> Iterator[Any]:
        return self._work()


def test_result_that_is_iterated_later_is_measured_then(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Lazy:
        def results() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                world.spend(30)
                yield batch

        return Lazy(results)

    assert len(list(world.metered(work)(given_to("arrow", ("a",), ("b",))))) == 2
    assert world.charged_ns() == {"a": 30, "b": 30}


def test_result_that_is_there_is_returned_as_it_is(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        world.spend(8)
        return list(batches)

    assert isinstance(world.metered(work)(given_to("arrow", ("a",), ("b",))), list)
    assert world.charged_ns() == {"a": 4, "b": 4}


def test_rows_that_are_all_taken_before_the_first_result_share_all_the_time(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken = list(batches)
        for batch in taken:
            world.spend(50)
            yield batch

    list(world.metered(work)(given_to("arrow", ("a",), ("b",))))
    assert world.charged_ns() == {"a": 50, "b": 50}


def test_clock_stands_while_spark_makes_rows_and_takes_results(world: World) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        for name in "ab":
            world.spend(7_000)
            yield arrow(name)
        world.spend(9_000)

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            world.spend(5)
            yield batch

    for _ in world.metered(work)(source()):
        world.spend(3_000)
    assert world.charged_ns() == {"a": 5, "b": 5}


def test_what_a_function_says_is_charged_and_only_the_rest_is_divided(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch], meter: Meter) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            with meter.charging("dear"):
                world.spend(SECOND_NS)
            meter.charge("elsewhere", 0.5)
            world.spend(SECOND_NS)
            yield batch

    list(world.metered(work)(given_to("arrow", ("a", "b"))))
    rest_ns = SECOND_NS // 2
    assert world.charged_ns() == {"dear": SECOND_NS, "elsewhere": SECOND_NS // 2, "a": rest_ns // 2, "b": rest_ns // 2}


def test_function_that_says_more_than_was_measured_divides_nothing(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch], meter: Meter) -> None:
        list(batches)
        meter.charge("gpu", 60)
        world.spend(5)

    world.metered(work)(given_to("arrow", ("a",)))
    assert world.charged_ns() == {"a": 0, "gpu": 60 * SECOND_NS}


def test_block_of_code_is_not_charged_for_sparks_turns_nor_for_blocks_inside_it(world: World) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        for name in "ab":
            world.spend(7_000)
            yield arrow(name)

    def work(batches: Iterator[pa.RecordBatch], meter: Meter) -> Iterator[pa.RecordBatch]:
        with meter.charging("gpu"):
            for batch in batches:
                world.spend(5)
                with meter.charging("model"):
                    world.spend(300)
                yield batch

    for _ in world.metered(work)(source()):
        world.spend(3_000)
    assert world.charged_ns() == {"a": 0, "b": 0, "gpu": 10, "model": 600}


def test_time_that_is_charged_after_the_call_is_refused(world: World) -> None:
    kept: list[Meter] = []

    def work(batches: Iterator[pa.RecordBatch], meter: Meter) -> None:
        list(batches)
        kept.append(meter)

    world.metered(work)(given_to("arrow", ("a",)))
    with pytest.raises(ConfigurationError, match="after the metered function's call had ended"):
        kept[0].charge("a", 1)


def test_metered_function_that_calls_another_charges_its_own_time_alone(world: World) -> None:
    def inner(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            world.spend(1_000)
            yield batch

    def outer(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in world.metered(inner)(batches):
            world.spend(3)
            yield batch

    assert len(list(world.metered(outer)(given_to("arrow", ("a",), ("b",))))) == 2
    assert world.charged_ns() == {"a": 1_003, "b": 1_003}


def test_metered_function_that_catches_anothers_error_goes_on_being_charged(world: World) -> None:
    def inner(batches: Iterator[pa.RecordBatch]) -> None:
        list(batches)
        world.spend(1_000)
        raise ValueError("no")

    def outer(batches: Iterator[pa.RecordBatch]) -> None:
        with contextlib.suppress(ValueError):
            world.metered(inner)(batches)
        world.spend(3)

    world.metered(outer)(given_to("arrow", ("a",)))
    assert world.charged_ns() == {"a": 3}


def test_rows_that_are_taken_in_another_thread_leave_the_clock_alone(world: World) -> None:
    """Each thread has a CPU clock of its own, which may be far behind the one of a worker that has long been used."""
    seen_ns = threading.local()
    world.spend(100 * SECOND_NS)
    meters.CLOCKS["cpu"] = lambda: getattr(seen_ns, "of_thread", None) or world.now_ns

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def take() -> pa.RecordBatch | None:
            seen_ns.of_thread = 7
            return next(batches, None)

        with ThreadPoolExecutor(1) as loader:
            while (batch := loader.submit(take).result()) is not None:
                world.spend(5)
                yield batch

    assert len(list(world.metered(work)(given_to("arrow", ("a",), ("b",), ("c",))))) == 3
    assert world.charged_ns() == {"a": 5, "b": 5, "c": 5}


def test_functions_of_one_task_add_up_and_another_attempt_replaces_them(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> None:
        list(batches)
        world.spend(10)

    world.metered(work)(given_to("arrow", ("a",)))
    world.metered(work)(given_to("arrow", ("a",)))
    assert world.charged_ns() == {"a": 20}
    world.task = RunningTask(batch=3, stage=8, partition=0, attempt=21)
    world.metered(work)(given_to("arrow", ("a",)))
    assert world.charged_ns() == {"a": 10}
    world.task = RunningTask(batch=3, stage=8, partition=1, attempt=22)
    world.metered(work)(given_to("arrow", ("b",)))
    assert world.charged_ns() == {"a": 10, "b": 10}


def test_batch_that_another_run_runs_again_replaces_all_its_charges(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> None:
        list(batches)
        world.spend(10)

    world.directory.write("run", b"5e5e5e5e5e5e5e5e")
    world.metered(work)(given_to("arrow", ("a",)))
    world.directory.write("run", b"c4c4c4c4c4c4c4c4")
    world.task = RunningTask(batch=3, stage=2, partition=1, attempt=4)
    world.metered(work)(given_to("arrow", ("b",)))
    assert world.charged_ns() == {"b": 10}


def test_task_that_was_given_no_rows_writes_nothing(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> None:
        list(batches)
        world.spend(10)

    world.metered(work)(iter([]))
    assert world.directory.names("batches") == []


def test_task_that_fails_or_is_cut_short_charges_nothing(world: World) -> None:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            world.spend(10)
            yield batch
            raise KeyError(7)

    results = world.metered(work)(given_to("arrow", ("a",)))
    next(results)
    with pytest.raises(KeyError):
        next(results)
    results = world.metered(work)(given_to("arrow", ("a",)))
    next(results)
    results.close()
    assert world.charged_ns() == {}


def score(ns: pd.Series, value: pd.Series) -> pd.Series:
    return value + len(ns)


def arrow_score(ns: pa.Array, value: pa.Array, meter: Meter) -> pa.Array:
    assert isinstance(meter, Meter)
    assert len(ns) == len(value)
    return value


def iterator_score(batches: Iterator[tuple[pd.Series, pd.Series]]) -> Iterator[pd.Series]:
    for _, value in batches:
        yield value


def test_spark_takes_metered_functions_for_iterator_udfs(world: World) -> None:
    made = [
        (PANDAS_UDF(world.metered(score, 0), LongType()), PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF),
        (PANDAS_UDF(world.metered(iterator_score, 0), LongType()), PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF),
        (ARROW_UDF(world.metered(arrow_score, 0), LongType()), PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF),
    ]
    for udf, kind in made:
        assert udf.evalType == kind


def test_each_batch_of_a_scalar_udf_is_charged_to_its_rows(world: World) -> None:
    def dear(ns: pa.Array, value: pa.Array) -> pa.Array:
        world.spend(len(ns) * 10)
        return value

    batches = [(pa.array(["a", "a", "b"]), pa.array([1, 2, 3])), (pa.array(["b"]), pa.array([4]))]
    results = list(world.metered(dear, 0)(iter(batches)))
    assert [result.to_pylist() for result in results] == [[1, 2, 3], [4]]
    assert world.charged_ns() == {"a": 20, "b": 20}


def test_udf_of_one_argument_is_given_it_without_a_tuple(world: World) -> None:
    def dear(ns: pa.Array) -> pa.Array:
        world.spend(8)
        return ns

    list(world.metered(dear, 0)(iter([pa.array(["a", "b"])])))
    assert world.charged_ns() == {"a": 4, "b": 4}


@pytest.mark.parametrize(
    ("given", "namespace", "seen"),
    [
        (arrow("a"), "tenant", r"'tenant'.*the columns \['ns', 'value'\]"),
        (pd.DataFrame({"ns": ["a"]}), 0, r"0.*the columns \['ns'\]"),
        (pa.array(["a"]), "ns", r"'ns'.*1 arguments of a UDF"),
        ((pa.array(["a"]), pa.array([1])), 2, r"2.*2 arguments of a UDF"),
        (Row(a=1), "ns", r"'ns'.*Row\(a=1\)"),
    ],
)
def test_namespace_that_is_not_in_the_rows_is_an_error_that_says_what_is(
    world: World, given: Any, namespace: str | int, seen: str
) -> None:
    with pytest.raises(ConfigurationError, match=seen):
        world.metered(list, namespace)(iter([given]))


def test_function_whose_rows_have_no_known_namespace_is_refused_in_a_task(world: World) -> None:
    with pytest.raises(ConfigurationError, match=r"does not know the namespaces of its rows.*namespace="):
        world.metered(list, None)(iter([arrow("a")]))


def test_udf_without_type_hints_is_refused_in_a_task(world: World) -> None:
    def untyped(ns, value):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return ns, value

    with pytest.raises(ConfigurationError, match="type hints"):
        world.metered(untyped, 0)(pa.array(["a"]), pa.array([1]))


def test_function_is_tried_out_without_spark(world: World) -> None:
    world.task = None
    assert world.metered(arrow_score, 0)(pa.array(["a"]), pa.array([1])).to_pylist() == [1]


def test_metered_function_travels_with_the_control_directory_of_its_query(world: World, tmp_path: Path) -> None:
    metered = world.metered(len)
    there = pickle.loads(cloudpickle.dumps(metered))  # type: ignore[no-untyped-call]  # noqa: S301 - what was packed one line before
    assert there._query.control_path == str(tmp_path)
    assert there._query is not metered._query


def throttle(**settings: Any) -> Throttle:
    return Throttle({"defaults": {"publish": {"messages_per_second": 10}}}, **{"namespace": "ns", **settings})


@pytest.mark.parametrize("namespace", [-1, 1.5, True, "", ["ns"], len])
def test_namespace_that_is_no_place_of_rows_is_refused_before_any_task(namespace: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"namespace is .*give the name of the column, or the position"):
        throttle().metered(len, namespace=namespace)


def test_function_that_spark_packs_before_its_query_began_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="meter what runs after the throttle"):
        cloudpickle.dumps(throttle().metered(len))  # type: ignore[no-untyped-call]


def test_throttle_with_metered_functions_serves_one_query() -> None:
    shared = throttle()
    shared._metered.begin("/a/throttle")
    shared.metered(len)
    shared._metered.begin("/a/throttle")
    with pytest.raises(ConfigurationError, match="give each query a Throttle of its own"):
        shared._metered.begin("/b/throttle")


def test_namespace_of_a_throttle_is_that_of_its_rows_if_it_is_a_column() -> None:
    own, computed = throttle().metered(len), throttle(namespace="concat(tenant, '/x')").metered(len)
    assert isinstance(own, Metered)
    assert isinstance(computed, Metered)
    assert (own._namespace, computed._namespace) == ("ns", None)


def test_unknown_clock_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="clock is 'gpu'; give 'cpu' or 'wall'"):
        throttle().metered(len, clock="gpu")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_generator", [False, True])
def test_what_a_function_says_of_a_destination_in_a_task_reaches_the_driver_once(
    world: World, is_generator: bool
) -> None:
    def refuse(rows: Iterator[Any]) -> None:
        list(rows)
        raise Backpressure(2.5, "api", "it is locked")

    def refuse_later(rows: Iterator[Any]) -> Iterator[Any]:
        yield from rows
        raise Backpressure(2.5, "api", "it is locked")

    metered = world.metered(refuse_later if is_generator else refuse)
    with pytest.raises(Backpressure):
        list(metered(given_to("arrow", ("a",))))
    found = take_refusal(world.directory, 3)
    assert found is not None
    assert (found.retry_after_seconds, found.scope, found.problem) == (2.5, "api", "it is locked")
    assert take_refusal(world.directory, 3) is None
