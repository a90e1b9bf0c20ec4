"""The command `drain` answers what the work returns, with the work and its session made up."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from spark_throttle import spark as spark_package
from spark_throttle.command_line import drain as drain_command
from spark_throttle.command_line.app import app
from spark_throttle.spark.drained_query import DrainedQuery


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the arguments with which the work is called."""
    found: list[Any] = []
    monkeypatch.setattr(drain_command, "spark_session", lambda *_: nullcontext("session"))

    def drain(*arguments: Any, **named: Any) -> DrainedQuery:
        found.append((arguments, named))
        return DrainedQuery(12, 200, "/out", (cast("Any", "option x"),))

    monkeypatch.setattr(spark_package, "drain", drain)
    return found


def test_drain_says_where_the_rows_are_and_from_where_the_source_goes_on(asked: list[Any]) -> None:
    command = ["drain", "--checkpoint", "/ckpt", "--into", "/out", "--format", "parquet"]
    said = CliRunner().invoke(app, command)
    assert said.stdout.splitlines() == [
        "200 rows that waited after batch 12 are in /out",
        "the source goes on from there with option x",
    ]
    assert asked == [(("session", "/ckpt", "/out"), {"format": "parquet", "control_path": None})]
    answer = CliRunner().invoke(app, [*command, "--control-path", "/control", "-o", "json"])
    assert json.loads(answer.stdout)["messages"] == 200
    assert asked[-1] == (("session", "/ckpt", "/out"), {"format": "parquet", "control_path": "/control"})
