"""When executors are asked what they see, and what is said of it; the job itself is an integration test."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_throttle.errors import ConfigurationError
from spark_throttle.spark.start import executor_sight
from spark_throttle.spark.start.executor_sight import _Look, check_executors_see


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
