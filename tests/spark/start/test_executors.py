"""Executors are asked what they have and see unless they are on this machine, and what they lack is named."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

import spark_throttle
from spark_throttle.errors import ConfigurationError, NotInstalledError
from spark_throttle.spark import spark_version
from spark_throttle.spark.spark_errors import missing_in
from spark_throttle.spark.spark_version import check_installed, check_version
from spark_throttle.spark.start import executors
from spark_throttle.spark.start.executors import (
    _Look,
    _Try,
    check_executors_see,
    check_installation,
    cluster_cores,
    control_problem,
    on_executors,
    task_slots,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(master: str = "local[2]", *, version: str = "4.2.0", py_files: str = "") -> Any:
    return SimpleNamespace(conf={"spark.master": master, "spark.submit.pyFiles": py_files}, version=version)


@pytest.mark.parametrize("version", ["4.0.5", "3.5.1"])
def test_older_spark_is_refused_by_name(version: str) -> None:
    expected = rf"^Spark 4\.1 or newer is missing in the cluster: it has Spark {version}, "
    with pytest.raises(NotInstalledError, match=expected):
        check_version(version, "the cluster")
    with pytest.raises(NotInstalledError, match=version):
        check_installation(session(version=version))


@pytest.mark.parametrize(
    ("version", "is_untried"),
    [("4.1.4", False), ("4.2.1", False), ("4.3.0", False), ("4.4.0", True), ("4.20.0", True), ("5.0.0", True)],
)
def test_spark_that_nobody_tried_is_used_with_a_warning(
    caplog: pytest.LogCaptureFixture, version: str, *, is_untried: bool
) -> None:
    check_installation(session(version=version))
    assert [line.startswith(f"Spark {version} is newer than 4.3, ") for line in caplog.messages] == [True] * is_untried


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
    monkeypatch.setattr(executors, "on_executors", lambda *_: found)
    check_installation(session(master="spark://host:7077"))
    found.append(("worker-7", "pandas"))
    check_installation(session())
    with pytest.raises(NotInstalledError, match="pandas is missing in the Python of the executors on worker-7: "):
        check_installation(session(master="spark://host:7077"))


def test_executor_names_what_it_lacks() -> None:
    def lacks(version: str | None, python: tuple[str, ...]) -> list[str]:
        inspect = executors._inspection(version, python)
        (batch,) = inspect([pa.record_batch({"id": [1]})])
        return list(batch.column("problem").to_pylist())

    here = tuple(map(str, sys.version_info[:2]))
    assert lacks(executors._version(), here) == []
    assert lacks(None, ("3", "1")) == ["Python 3.1"]
    assert lacks("0.0.0", here) == [f"spark-throttle 0.0.0 (there is {executors._version()})"]


def test_hint_names_the_module_of_the_driver_and_no_other() -> None:
    assert missing_in("ValueError: No module named 'x'") is None


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_session_of_one_machine_is_not_asked(master: str) -> None:
    check_executors_see(session(master), "/checkpoint/throttle")


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://host:7077", "yarn", ""])
def test_other_machines_are_asked_and_what_they_miss_is_named(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(executors, "look", lambda *_: found)
    check_executors_see(session(master), "/checkpoint/throttle")
    found.append(("worker-7", "/lake/orders/_delta_log"))
    with pytest.raises(
        ConfigurationError, match=r"on worker-7 do not see /lake/orders/_delta_log, .* all machines reach"
    ):
        check_executors_see(session(master), "/checkpoint/throttle", ["/lake/orders"])


def test_task_names_what_is_not_there(tmp_path: Path) -> None:
    look = _Look((str(tmp_path), str(tmp_path / "none")))
    (batch,) = look([pa.record_batch({"id": [1]})])
    assert batch.column("path").to_pylist() == [str(tmp_path / "none")]


def test_every_slot_of_the_executors_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def rows(_first: int, _end: int, _step: int, tasks: int) -> Any:
        asked.append(tasks)
        return SimpleNamespace(mapInArrow=lambda *_: SimpleNamespace(collect=list))

    spark: Any = SimpleNamespace(range=rows)
    monkeypatch.setattr(executors, "task_slots", lambda _: 6)
    assert on_executors(spark, _Look(()), "host string, path string") == []
    assert asked == [6]


# Long queues


def test_executors_of_one_machine_reach_the_control_directory() -> None:
    assert control_problem(session("local[2]"), "s3://lake/checkpoint/throttle", is_seen=False) is None


def test_control_directory_that_executors_do_not_see_or_cannot_write_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(executors, "look", lambda *_: found)
    monkeypatch.setattr(executors, "on_executors", lambda *_: found)
    for path in ("/checkpoint/throttle", "s3://lake/checkpoint/throttle"):
        assert control_problem(session("yarn"), path, is_seen=False) is None
    found.append(("worker-7", "Access Denied"))
    unseen = control_problem(session("yarn"), "/checkpoint", is_seen=False)
    assert unseen == "the executors on worker-7 do not see the driver's disk"
    for is_seen in (False, True):
        found_out = control_problem(session("yarn"), "s3://lake/checkpoint", is_seen=is_seen)
        assert found_out == "on worker-7: Access Denied", "whether one may write there is another question"


def test_control_directory_on_a_shared_disk_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(executors, "look", lambda _, path, *__: looks.append(path))
    check_executors_see(session("yarn"), "/checkpoint")
    assert control_problem(session("yarn"), "/checkpoint", is_seen=True) is None
    assert looks == ["/checkpoint"]


def test_task_tries_the_control_directory_and_leaves_nothing_there(tmp_path: Path) -> None:
    rows = [pa.record_batch({"id": [1]})]
    (batch,) = _Try(str(tmp_path / "control"))(rows)
    assert batch.num_rows == 0
    assert list((tmp_path / "control").iterdir()) == []
    (tmp_path / "file").touch()
    (batch,) = _Try(str(tmp_path / "file"))(rows)
    assert "file" in batch.column("problem")[0].as_py()
    (batch,) = _Try("nowhere://lake/control")(rows)
    assert "cannot be reached without Spark" in batch.column("problem")[0].as_py()


@pytest.mark.parametrize(
    ("master", "cpus", "cores"),
    [("local", "1", 1), ("local[4]", "1", 4), ("local[2, 8]", "2", 2), ("local[*]", "1", 6), ("spark://x", "2", 12)],
)
def test_cores_are_those_that_the_master_names_or_those_of_the_task_slots(
    monkeypatch: pytest.MonkeyPatch, master: str, cpus: str, cores: int
) -> None:
    conf = {"spark.master": master, "spark.task.cpus": cpus}
    monkeypatch.setattr("spark_throttle.spark.start.executors.task_slots", lambda _: 6)
    assert cluster_cores(cast("SparkSession", SimpleNamespace(conf=conf))) == cores


@pytest.mark.parametrize(("master", "cpus", "slots"), [("local", "1", 1), ("local[4]", "1", 4), ("local[4]", "3", 1)])
def test_task_slots_of_one_machine_are_known_without_a_job(master: str, cpus: str, slots: int) -> None:
    conf = {"spark.master": master, "spark.task.cpus": cpus}
    assert task_slots(cast("SparkSession", SimpleNamespace(conf=conf))) == slots
