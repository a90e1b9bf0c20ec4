"""The command `capacity` divides a broker's time among tenants as KIP-124 counts it."""

from __future__ import annotations

import json
from typing import Final

import pytest
from typer.testing import CliRunner

from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line.app import app

RUNNER: Final = CliRunner()


@pytest.mark.parametrize(
    ("arguments", "capacity", "share"),
    [
        (["--io-threads", "8", "--network-threads", "3", "--tenants", "120"], 1100, 9.1),
        (["--cores", "32", "--tenants", "50"], 6400, 128),
        (["--cores", "32", "--tenants", "100"], 6400, 64),
        (["--cores", "32", "--tenants", "115"], 6400, 55.6),
        (["--cores", "32", "--tenants", "52", "--fixed", "200", "--fixed", "1200%"], 6400, 100),
        (["--cores", "1", "--tenants", "3000"], 200, 0.0666),
        (["--cores", "32", "--tenants", "1", "--fixed", "200"], 6400, None),
    ],
)
def test_capacity_is_divided_as_kip_124_has_it(arguments: list[str], capacity: int, share: float | None) -> None:
    result = RUNNER.invoke(app, ["capacity", *arguments, "--output", "json"])
    assert result.exit_code == Exit.DONE, result.output
    found = json.loads(result.stdout)
    assert (found["capacity_percent"], found["variable_percent"]) == (capacity, share)
    assert found["promised_percent"] + found["unpromised_percent"] == capacity


@pytest.mark.parametrize(
    "arguments",
    [
        ["--cores", "1", "--tenants", "0"],
        ["--cores", "0", "--tenants", "1"],
        ["--cores", "1", "--tenants", "1", "--fixed", "50", "--fixed", "50"],
        ["--cores", "1", "--tenants", "2", "--fixed", "201"],
        ["--cores", "1", "--tenants", "2", "--fixed", "200"],
        ["--cores", "1", "--tenants", "2", "--fixed", "x"],
        ["--cores", "1", "--tenants", "2", "--fixed", "nan"],
        ["--cores", "1", "--io-threads", "1", "--tenants", "2"],
    ],
)
def test_capacity_that_cannot_be_divided_is_refused(arguments: list[str]) -> None:
    result = RUNNER.invoke(app, ["capacity", *arguments, "--output", "json"])
    assert (result.exit_code, result.stdout) == (Exit.INVALID, "")
    assert json.loads(result.stderr)["exit_code"] == Exit.INVALID
