"""What must be installed where for a query to run, and one line that says what is missing.

A query runs Python in four places: this process, Spark's process for Python data sources beside the driver, the
executors and, with Spark Connect, the server. Without this package there, Spark fails in its own words, at length, and
for the executors only in the first batch. So this module asks the executors when a query starts, by a function that
travels by value and needs nothing of this package, and turns Spark's errors into one line.

What ``--py-files`` ships reaches neither of Spark's processes for streaming sources (tried on 4.2.0): the start is
refused if this package came that way. `docs/install.md` says how to install instead.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark.sql import SparkSession

import spark_throttle
from spark_throttle.errors import NotInstalledError, ThrottleError
from spark_throttle.spark.spark_version import check_version
from spark_throttle.spark.start.executor_sight import is_one_machine, on_executors

if TYPE_CHECKING:
    import pyarrow as pa

_PACKAGE: Final = "spark-throttle"
_NEEDED: Final = ("numpy", "pyarrow", "pandas", "spark_throttle")
_PY_FILES_CONF: Final = "spark.submit.pyFiles"
_MODULE: Final = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")
_PYTHON_OF_SOURCES: Final = "the Python of Spark's driver, or of the Connect server, which runs Python data sources"
_NO_PY_FILES: Final = "install it into that Python; --py-files and artifacts do not reach it"
_OTHER_PYTHON: Final = "PYTHON_VERSION_MISMATCH"
_NO_DELTA: Final = re.compile(r"DATA_SOURCE_NOT_FOUND\W+Failed to find the data source: delta\b")
_DELTA_JAR: Final = (
    "set spark.jars.packages to io.delta:delta-spark_4.2_2.13:4.4.0 before the session starts; spark-submit takes it "
    "by --packages, and not from the program"
)


def check_installation(spark: SparkSession) -> None:
    """Check the version of Spark, how this package came here, and what the executors have.

    The executors are asked by one small Spark job, unless they are on this machine.

    Raises
    ------
    NotInstalledError
        If something is missing, or of another version.
    """
    check_version(spark.version, "the cluster")
    here = str(spark_throttle.__file__)
    for shipped in str(spark.conf.get(_PY_FILES_CONF, "") or "").split(","):
        name = shipped.rpartition("/")[2]
        if name and f"/{name}/" in here:
            raise NotInstalledError("spark_throttle", _PYTHON_OF_SOURCES, f"it came by {name}; {_NO_PY_FILES}")
    if is_one_machine(spark):
        return
    found = on_executors(spark, _inspection(_version(), platform.python_version_tuple()[:2]), _INSPECTED)
    if found:
        host, what = found[0]
        raise NotInstalledError(
            what, f"the Python of the executors on {host}", "install there what the driver has, in the same versions"
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
        return NotInstalledError("the jar of Delta", "Spark's session", _DELTA_JAR)
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
        return NotInstalledError(name, _PYTHON_OF_SOURCES, _NO_PY_FILES)
    return NotInstalledError(name, "the Python of the executors", "install it there")


def _version() -> str | None:
    """Return the version of this package; `None` if it is not known, because nothing was installed."""
    try:
        return importlib.metadata.version(_PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


_INSPECTED: Final = "host string, problem string"


def _inspection(
    version: str | None, python: tuple[str, ...]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function for executors that yields what they lack.

    It is defined here so that it is pickled by value: an executor without this package could not load it otherwise.
    """
    needed = _NEEDED

    def inspect(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.metadata
        import importlib.util
        import platform

        import pyarrow as pa

        for _ in batches:
            problems = [name for name in needed if importlib.util.find_spec(name) is None]
            if platform.python_version_tuple()[:2] != python:
                problems.append(f"Python {'.'.join(python)}")
            try:
                there: str | None = importlib.metadata.version("spark-throttle")
            except importlib.metadata.PackageNotFoundError:
                there = None
            if None not in (version, there) and version != there:
                problems.append(f"spark-throttle {version} (there is {there})")
            hosts = [platform.node()] * len(problems)
            yield pa.record_batch({"host": pa.array(hosts, pa.string()), "problem": pa.array(problems, pa.string())})

    return inspect
