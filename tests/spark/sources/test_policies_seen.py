"""Policies that are not there are told before Spark starts, where the driver sees what the query will see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession as ClassicSession
from pyspark.sql.connect.session import SparkSession as ServedSession

from spark_throttle.errors import ConfigurationError, PolicyError, StoreUnavailableError
from spark_throttle.policy.model import PolicyDocument
from spark_throttle.spark import Throttle
from spark_throttle.spark.pipeline import queue_room

CLASSIC: Any = object.__new__(ClassicSession)
SERVED: Any = object.__new__(ServedSession)


@pytest.mark.parametrize(
    ("missing", "error"),
    [("{tmp}/{{env}}.yaml", ConfigurationError), ("delta:{tmp}/nowhere", StoreUnavailableError)],
)
def test_driver_tells_what_is_missing_and_a_client_leaves_it_to_its_server(
    tmp_path: Path, missing: str, error: type[Exception]
) -> None:
    throttle = Throttle(missing.format(tmp=tmp_path), namespace="ns")
    with pytest.raises(error, match=r"which does not exist|there is no policy store"):
        queue_room(throttle.policies, CLASSIC)
    assert queue_room(throttle.policies, SERVED) is None


def test_what_is_there_and_cannot_be_applied_is_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("jobs: {}")
    given: tuple[Any, ...] = (path, str(path), "jobs: {}", {"jobs": {}})
    for policies in given:
        with pytest.raises(PolicyError, match="jobs: unknown key"):
            Throttle(policies, namespace="ns")


def test_bounds_of_the_queue_are_those_of_the_policies(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("queue: {messages: 7}")
    given: tuple[Any, ...] = (path, "queue: {messages: 7}")
    for policies in given:
        for session in (CLASSIC, SERVED):
            room = queue_room(Throttle(policies, namespace="ns").policies, session)
            assert room is not None
            assert room.messages == 7
    assert queue_room(Throttle(PolicyDocument(), namespace="ns").policies, CLASSIC) is not None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"order_by": "id"}, r"order_by is 'id'; give a list of columns: \['id'\]"),
        ({"exchange": 5}, "exchange is 5; give a path, or a mapping"),
        ({"direction": "up"}, "direction is 'up'; give 'publish' or 'dispatch'"),
    ],
)
def test_argument_that_cannot_be_meant_is_refused_with_what_to_give(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Throttle(PolicyDocument(), namespace="ns", **wrong)
