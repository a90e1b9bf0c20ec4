"""Errors between Spark and Python, told in words that the other side can read: one sentence here, no long text there.

What Spark says of an error is a stack of Java's, or of a worker's, of hundreds of lines. Here it is one sentence, and
what is not installed has a remedy. An error that this package raised on an executor comes back as text, as the last
line of that stack. It is raised again as what it was.

Of an error of Python's, Spark gets the traceback as text. When the query is stopped, Spark looks there for an error of
Java's that says that it was interrupted, with a regular expression that needs more stack for each character that
follows. A long text, such as that of an error with a stack of Java's and what came of it, ends the stream's thread with
a `StackOverflowError`. So an error of a batch that was interrupted says so in one line. In all others the words are
changed with which that expression begins.
"""

from __future__ import annotations

import platform
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import pyspark
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from spark_throttle.errors import ConfigurationError, DamagedError, FileUnusableError, NotInstalledError, ThrottleError
from spark_throttle.files.storage import one_line
from spark_throttle.spark.spark_version import delta_remedy

_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
PYTHON_OF_SOURCES: Final = "the Python of Spark's driver, or of the Connect server, which runs Python data sources"
NO_PY_FILES: Final = (
    "install it into that Python, which PYSPARK_PYTHON or the PATH names; --py-files and artifacts do not reach it"
)
_OTHER_PYTHON: Final = "PYTHON_VERSION_MISMATCH"
_NO_DELTA: Final = re.compile(r"DATA_SOURCE_NOT_FOUND\W+Failed to find the data source: delta\b")

_OWN: Final = re.compile(r"^spark_throttle\.errors\.[\w.]+: (.+)$", re.MULTILINE)
_DAMAGED: Final = re.compile(r"(.+) is damaged: (.+); (.+)")
_CAUSE: Final = re.compile(r"^\s*Caused by: (.+)$", re.MULTILINE)
_CALLED: Final = re.compile(r"^An error occurred while calling \S+\.\n: ")

BatchFunction = Callable[[DataFrame, int], None]

_CALLING: Final = "py4j.protocol.Py4JJavaError: An error occurred while calling"
"""What Spark's expression (`StreamExecution.PROXY_ERROR`) begins with; one of the names below is to follow."""

_INTERRUPTIONS: Final = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Turn errors of Spark that say that something is not installed into `NotInstalledError`; others pass.

    Raises
    ------
    NotInstalledError
        In place of such an error.
    """
    try:
        yield
    except ThrottleError:
        raise
    except Exception as error:
        missing = missing_in(str(error))
        if missing is None:
            raise
        raise missing from None


def missing_in(text: str) -> NotInstalledError | None:
    r"""Return what an error of Spark says is not installed; `None` if it says something else.

    Examples
    --------
    >>> error = missing_in("[PYTHON_EXCEPTION] Traceback:\nModuleNotFoundError: No module named 'pyarrow'")
    >>> str(error).partition(":")[0]
    'pyarrow is missing in the Python of the executors'
    """
    if _NO_DELTA.search(text):
        return NotInstalledError("the jar of Delta", "Spark's session", delta_remedy(pyspark.__version__))
    if _OTHER_PYTHON in text:
        version = ".".join(platform.python_version_tuple()[:2])
        return NotInstalledError(
            f"Python {version}, which the driver has,", "the executors", "set PYSPARK_PYTHON to an interpreter of that"
        )
    module = _MODULE.search(text)
    if module is None:
        return None
    name = module[1].partition(".")[0]
    if "PYTHON_DATA_SOURCE" in text:
        return NotInstalledError(name, PYTHON_OF_SOURCES, NO_PY_FILES)
    return NotInstalledError(name, "the Python of the executors", "install it there")


def refused_by_spark(error: AnalysisException) -> ConfigurationError:
    """Return Spark's refusal to start a query as one line, without its plan."""
    line = one_line(error).rstrip(";. ")
    return ConfigurationError(
        f"Spark refuses the query: {line} (docs/streams.md lists what may stand before the throttle)"
    )


def spark_line(error: Exception) -> str:
    r"""Return what an error of Spark says: its last cause, or its first line where it names none.

    Examples
    --------
    >>> java = "An error occurred while calling o7.save.\n: org.apache.spark.SparkException: Job aborted\n\tat x.y(z)\n"
    >>> spark_line(RuntimeError(java))
    'org.apache.spark.SparkException: Job aborted'
    >>> spark_line(RuntimeError(f"{java}Caused by: java.io.IOException: No space left on device\n\tat x.y(z)"))
    'java.io.IOException: No space left on device'
    """
    text = str(error)
    causes = _CAUSE.findall(text)
    line = causes[-1] if causes else _CALLED.sub("", text).strip().split("\n")[0]
    return one_line(RuntimeError(line)).rstrip(";. ") if line else type(error).__name__


def known_error(error: Exception) -> ThrottleError | None:
    """Return the error of this package that an error of Spark carries as text; `None` if it carries none."""
    missing = missing_in(str(error))
    if missing is not None:
        return missing
    own = _OWN.findall(str(error))
    if not own:
        return None
    damaged = _DAMAGED.fullmatch(own[-1])
    return ConfigurationError(own[-1]) if damaged is None else DamagedError(*damaged.groups())


@contextmanager
def reading_state(place: str) -> Iterator[None]:
    """Turn errors of a reader of a checkpoint's states into one sentence.

    Raises
    ------
    DamagedError
        If a file of waiting rows is missing, or is not as it was written.
    FileUnusableError
        If Spark cannot read a state.
    """
    try:
        yield
    except ThrottleError:
        raise
    except Exception as error:  # noqa: BLE001 - PySpark's, or any of the JVM's
        known = known_error(error)
        if known is not None:
            raise known from None
        raise FileUnusableError(
            f"{place.rstrip('/')}/state",
            f"Spark cannot read the states of the query ({spark_line(error)}); where a file of the checkpoint is gone "
            f"or cut, restore the checkpoint from a backup, otherwise mend that, then run this again",
        ) from None


class BatchError(Exception):
    """What a batch's function raised, as text."""


@dataclass(frozen=True, slots=True)
class ReadableErrors:
    """A function for `foreachBatch` that raises what another one does, so that Spark can read it."""

    function: BatchFunction

    def __call__(self, frames: DataFrame, batch: int) -> None:
        """Call the function."""
        try:
            self.function(frames, batch)
        except Exception as error:
            text = readable("".join(traceback.format_exception(error)))
            if text is None:
                raise
            raise BatchError(text) from None


def readable(text: str) -> str | None:
    r"""Return a traceback as Spark can read it; `None` if it can read it as it is.

    Examples
    --------
    >>> java = "py4j.protocol.Py4JJavaError: An error occurred while calling o7.collect.\n: "
    >>> readable(java + "java.lang.InterruptedException\n\tat java.base/…")
    'py4j.protocol.Py4JJavaError: An error occurred while calling a batch: java.lang.InterruptedException'
    >>> readable(java + "java.io.IOException: No space left on device\n\tat …")
    'Py4JJavaError: An error occurred while calling o7.collect.\n: java.io.IOException: No space left on device\n\tat …'
    >>> readable("ValueError: no") is None
    True
    """
    _, called, after = text.partition(_CALLING)
    if not called:
        return None
    for name in _INTERRUPTIONS:
        if name in after:
            return f"{_CALLING} a batch: {name}"
    return text.replace(_CALLING, _CALLING.removeprefix("py4j.protocol."))
