"""An error crosses between Spark and Python in words that the other side can read."""

from __future__ import annotations

import traceback
from typing import Any

import pytest
from pyspark.errors import PySparkException

from spark_throttle.errors import ConfigurationError, NotInstalledError
from spark_throttle.spark.spark_errors import BatchError, ReadableErrors, told_in_one_line

PHRASE = "py4j.protocol.Py4JJavaError: An error occurred while calling"
"""After these words Spark's regular expression needs more stack for each character."""

STACK = "\tat org.apache.spark.scheduler.DAGScheduler.runJob(DAGScheduler.scala:1042)\n" * 200


class Py4JJavaError(Exception):
    __module__ = "py4j.protocol"


def text_of(error: BaseException) -> str:
    """Return what py4j sends to Spark."""
    return "".join(traceback.format_exception(error))


def failing(*problems: Exception) -> ReadableErrors:
    """Return a batch's function that fails with problems of which each comes of the one before."""

    def function(*_: Any) -> None:
        raised = None
        for problem in problems:
            problem.__cause__, raised = raised, problem
        assert raised is not None
        raise raised

    return ReadableErrors(function)


@pytest.mark.parametrize(
    "name",
    [
        "java.lang.InterruptedException",
        "java.io.InterruptedIOException",
        "java.nio.channels.ClosedByInterruptException",
    ],
)
def test_batch_that_the_end_of_its_query_interrupts_says_so_in_a_line(name: str) -> None:
    java = Py4JJavaError(f"An error occurred while calling o123.collectToPython.\n: {name}\n{STACK}")
    with pytest.raises(BatchError) as error:
        failing(java, RuntimeError("x" * 20_000))(None, 3)  # type: ignore[arg-type]
    after = text_of(error.value).partition(PHRASE)[2]
    assert name in after
    assert len(after) < 100


def test_batch_that_fails_in_java_says_why_whatever_the_length_of_its_stack() -> None:
    java = Py4JJavaError(f"An error occurred while calling o1.save.\n: java.io.IOException: No space left\n{STACK}")
    with pytest.raises(BatchError) as error:
        failing(java, RuntimeError("not written"))(None, 3)  # type: ignore[arg-type]
    text = text_of(error.value)
    assert PHRASE not in text
    assert "java.io.IOException: No space left" in text
    assert "RuntimeError: not written" in text


def test_error_of_python_is_raised_as_it_is() -> None:
    problem = ValueError("x" * 20_000)
    with pytest.raises(ValueError, match=r"^x+$") as error:
        failing(problem)(None, 3)  # type: ignore[arg-type]
    assert error.value is problem


SOURCE = "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback:\n  File …\n"
WORKER = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        (f"{SOURCE}ModuleNotFoundError: No module named 'spark_throttle.spark'", "spark_throttle", "data sources"),
        (f"{WORKER}ModuleNotFoundError: No module named 'pyarrow'", "pyarrow", "the Python of the executors"),
        ("[PYTHON_VERSION_MISMATCH] Python in worker has different version", "Python 3", "the executors"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: delta. Make sure", "the jar of Delta", "session"),
    ],
)
def test_error_of_spark_that_names_what_is_not_installed_becomes_one_line(text: str, what: str, where: str) -> None:
    with pytest.raises(NotInstalledError) as told, told_in_one_line():
        raise RuntimeError(text)
    assert told.value.what.startswith(what)
    assert where in told.value.where
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "error",
    [
        PySparkException("the disk is full"),
        ConfigurationError("ModuleNotFoundError: No module named 'x' is in a policy"),
        RuntimeError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: kafka. Make sure"),
    ],
)
def test_other_errors_pass_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as passed, told_in_one_line():
        raise error
    assert passed.value is error
