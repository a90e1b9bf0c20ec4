"""What `spark-throttle simulate` refuses, it refuses in the words of the command line, before Spark starts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_throttle.command_line import simulate
from spark_throttle.command_line.app import app


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--interval", "100ms"], "--interval: '100ms' is less than 1000 ms; give more"),
        (["--propose", "soon"], "--propose: 'soon'"),
        (["--since", "0s"], "--since: '0s' is less than 1 ms; give more"),
        ([], "tenants: 3 stands where a mapping belongs"),
    ],
)
def test_wrong_argument_is_refused_before_spark_starts(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_session(*_: object) -> AbstractContextManager[None]:
        raise AssertionError("Spark starts")

    monkeypatch.setattr(simulate, "spark_session", no_session)
    policy = tmp_path / "policy.yaml"
    policy.write_text("{version: 1, tenants: {}}" if arguments else "{version: 1, tenants: 3}")
    where = ["--events", str(tmp_path), "--time", "at", "--namespace", "ns"]
    told = CliRunner().invoke(app, ["simulate", str(policy), *where, *arguments])
    assert told.exit_code != 0
    assert said in f"{told.output}{told.exception}"
