"""What the commands `drain` and `reshard` answer, with the work itself and its session made up."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from spark_throttle import spark as spark_package
from spark_throttle.command_line import checkpoints
from spark_throttle.command_line.app import app
from spark_throttle.spark.offline.drain import DrainedQuery


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the arguments with which the tools are called."""
    found: list[Any] = []
    monkeypatch.setattr(checkpoints, "_session", lambda *_: nullcontext("session"))

    def reshard(*arguments: Any, **named: Any) -> int:
        found.append((arguments, named))
        return 5

    def drain(*arguments: Any, **named: Any) -> DrainedQuery:
        found.append((arguments, named))
        return DrainedQuery(12, 200, "/out", (cast("Any", "option x"),))

    monkeypatch.setattr(spark_package, "reshard", reshard)
    monkeypatch.setattr(spark_package, "drain", drain)
    return found


def test_reshard_says_with_how_many_shards_the_query_is_started(asked: list[Any]) -> None:
    command = ["reshard", "--checkpoint", "/ckpt", "--shards", "1"]
    said = CliRunner().invoke(app, command)
    assert (said.exit_code, said.stdout) == (0, "/ckpt had 5 shards and has 1: start the query with shards=1\n")
    answer = CliRunner().invoke(app, [*command, "--control-path", "/control", "-o", "json"])
    assert json.loads(answer.stdout) == {"former_shards": 5, "shards": 1}
    assert asked == [(("session", "/ckpt", 1), {"control_path": control_path}) for control_path in (None, "/control")]


def test_drain_says_where_the_rows_are_and_from_where_the_source_goes_on(asked: list[Any]) -> None:
    command = ["drain", "--checkpoint", "/ckpt", "--into", "/out", "--format", "parquet"]
    said = CliRunner().invoke(app, command)
    assert said.stdout.splitlines() == [
        "200 rows that waited after batch 12 are in /out",
        "the source goes on from there with option x",
    ]
    assert asked == [(("session", "/ckpt", "/out"), {"format": "parquet", "control_path": None})]
