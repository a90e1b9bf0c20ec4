"""When executors are asked what they see, and what is said of it; the job itself is an integration test."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.start import executor_sight
from spark_throttle.spark.start.executor_sight import _Look, _Try, check_executors_see, control_problem, on_executors


def session(master: str) -> Any:
    return SimpleNamespace(conf={"spark.master": master})


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]"])
def test_session_of_one_machine_is_not_asked(master: str) -> None:
    check_executors_see(session(master), "/checkpoint/throttle")


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://host:7077", "yarn", ""])
def test_other_machines_are_asked_and_what_they_miss_is_named(monkeypatch: pytest.MonkeyPatch, master: str) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(executor_sight, "look", lambda *_: found)
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
    monkeypatch.setattr(executor_sight, "task_slots", lambda _: 6)
    assert on_executors(spark, _Look(()), "host string, path string") == []
    assert asked == [6]


# Long queues


def test_executors_of_one_machine_reach_the_control_directory() -> None:
    assert control_problem(session("local[2]"), "s3://lake/checkpoint/throttle", is_seen=False) is None


def test_control_directory_that_executors_do_not_see_or_cannot_write_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[tuple[str, str]] = []
    monkeypatch.setattr(executor_sight, "look", lambda *_: found)
    monkeypatch.setattr(executor_sight, "on_executors", lambda *_: found)
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
    monkeypatch.setattr(executor_sight, "look", lambda _, path, *__: looks.append(path))
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
