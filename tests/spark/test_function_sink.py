"""A function for `foreachBatch` that refuses a batch of which nothing can be set aside, with a clock of the test's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PythonException

from spark_throttle.checkpoint.batch_mark import BatchMark
from spark_throttle.control.epochs import Epochs
from spark_throttle.errors import Backpressure, DeliveryError
from spark_throttle.files.storage import Directory
from spark_throttle.spark.function_sink import FunctionSink
from spark_throttle.spark.metering.charging import note_refusal

ROWS: Any = object()
MARK = BatchMark("6f1c", 7, "9a3e")


class Refuses:
    """Refuses a batch so often, each time with the next of some exceptions."""

    def __init__(self, *refusals: Exception) -> None:
        self.left = list(refusals)
        self.calls: list[tuple[Any, int]] = []

    def __call__(self, rows: Any, batch: int) -> None:
        self.calls.append((rows, batch))
        if self.left:
            raise self.left.pop(0)


class World:
    def __init__(self, root: Path) -> None:
        self.directory = Directory(str(root))
        self.now_seconds = 0.0
        self.pauses: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_seconds += seconds

    def write(self, function: Callable[[Any, int], None], patience_seconds: float = 60) -> None:
        """Call a function for a batch whose policy has no destinations."""
        namespace: Any = None
        sink = FunctionSink(
            function, "the function write", namespace, Epochs(self.directory), patience_seconds,
            clock_seconds=lambda: self.now_seconds, sleep=self.sleep,
        )  # fmt: skip
        sink.write(lambda: ROWS, self.directory, MARK, None, is_again=False)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_is_called_again_with_the_same_rows_until_it_takes_them(world: World) -> None:
    function = Refuses(Backpressure(), Backpressure(2.5), Backpressure(), Backpressure(scope="elsewhere"))
    world.write(function)
    assert function.calls == [(ROWS, 7)] * 5
    assert world.pauses == [0.1, 2.5, 0.4, 0.8]


def test_pauses_grow_to_five_seconds(world: World) -> None:
    world.write(Refuses(*[Backpressure()] * 10))
    assert world.pauses[5:] == [3.2, 5.0, 5.0, 5.0, 5.0]


def test_its_patience_ends_the_query_with_what_it_said(world: World) -> None:
    function = Refuses(*[Backpressure(problem="the table is locked")] * 100)
    with pytest.raises(
        DeliveryError, match="the function write did not take the rows of call 6f1c/7: the table is lock"
    ):
        world.write(function, patience_seconds=10)
    assert world.now_seconds <= 10
    assert sum(world.pauses) > 5


def test_a_time_that_is_longer_than_its_patience_is_not_waited_for(world: World) -> None:
    with pytest.raises(DeliveryError, match="the call had no rows for a destination of the policy"):
        world.write(Refuses(Backpressure(61)))
    assert not world.pauses


def test_a_name_for_which_nothing_can_be_set_aside_is_told(world: World) -> None:
    with pytest.raises(DeliveryError, match="nothing can be set aside for 'acme', for the call had no rows"):
        world.write(Refuses(Backpressure(61, scope="acme")))


def test_anything_else_that_it_raises_ends_the_query_as_it_is(world: World) -> None:
    with pytest.raises(ValueError, match="wrong"):
        world.write(Refuses(ValueError("wrong")))


def test_what_a_metered_function_says_in_a_task_counts_as_if_the_function_had_said_it(world: World) -> None:
    note_refusal(world.directory, MARK.batch, Backpressure(3, "elsewhere", "busy"))
    world.write(Refuses(PythonException("a task failed")))
    assert world.pauses == [3]


def test_a_task_that_failed_otherwise_ends_the_query_even_if_one_of_another_batch_said_something(world: World) -> None:
    note_refusal(world.directory, MARK.batch - 1, Backpressure(3))
    with pytest.raises(PythonException):
        world.write(Refuses(PythonException("a task failed")))
    note_refusal(world.directory, MARK.batch, Backpressure(3))
    with pytest.raises(PythonException):  # what was said is taken away with the first failure
        world.write(Refuses(PythonException("a task failed"), PythonException("another")))
