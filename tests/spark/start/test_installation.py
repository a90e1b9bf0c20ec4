"""What is not installed is said in one line, with its place and the remedy; other errors of Spark pass as they are."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import spark_throttle
from spark_throttle.errors import ConfigurationError, NotInstalledError
from spark_throttle.spark import spark_version
from spark_throttle.spark.spark_version import check_installed, check_version
from spark_throttle.spark.start import installation
from spark_throttle.spark.start.installation import check_installation, missing_in, told_in_one_line

SOURCE = "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback:\n  File …\n"
WORKER = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"


def session(*, master: str = "local[2]", version: str = "4.2.0", py_files: str = "") -> Any:
    return SimpleNamespace(conf={"spark.master": master, "spark.submit.pyFiles": py_files}, version=version)


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


@pytest.mark.parametrize("version", ["4.0.5", "4.1.4", "4.20.0", "5.0.0", "3.5.1"])
def test_other_spark_is_refused_by_name(version: str) -> None:
    with pytest.raises(NotInstalledError, match=rf"^Spark 4\.2 is missing in the cluster: it has Spark {version}, "):
        check_version(version, "the cluster")
    with pytest.raises(NotInstalledError, match=version):
        check_installation(session(version=version))


def test_python_without_pyspark_is_told_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    check_installed()
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(NotInstalledError, match=r"pyspark is missing in this Python: .*spark-throttle\[spark\]"):
        spark_version.check_installed()


@pytest.mark.parametrize("name", ["spark_throttle.zip", "spark_throttle-0.1.0-py3-none-any.whl"])
def test_package_that_came_by_py_files_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    shipped = session(py_files=f"file:/jobs.zip,file:/dist/{name}")
    check_installation(shipped)
    monkeypatch.setattr(spark_throttle, "__file__", f"/spark/userFiles-1/{name}/spark_throttle/__init__.py")
    with pytest.raises(NotInstalledError, match=rf"it came by {name}; .*--py-files and artifacts do not reach it"):
        check_installation(shipped)


def test_executors_of_other_machines_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(installation, "on_executors", lambda *_: found)
    check_installation(session(master="spark://host:7077"))
    found.append(("worker-7", "pandas"))
    check_installation(session())
    with pytest.raises(NotInstalledError, match="pandas is missing in the Python of the executors on worker-7: "):
        check_installation(session(master="spark://host:7077"))


def test_executor_names_what_it_lacks() -> None:
    def lacks(version: str | None, python: tuple[str, ...]) -> list[str]:
        inspect = installation._inspection(version, python)
        (batch,) = inspect([pa.record_batch({"id": [1]})])
        return list(batch.column("problem").to_pylist())

    here = tuple(map(str, sys.version_info[:2]))
    assert lacks(installation._version(), here) == []
    assert lacks(None, ("3", "1")) == ["Python 3.1"]
    assert lacks("0.0.0", here) == [f"spark-throttle 0.0.0 (there is {installation._version()})"]


def test_hint_names_the_module_of_the_driver_and_no_other() -> None:
    assert missing_in("ValueError: No module named 'x'") is None
