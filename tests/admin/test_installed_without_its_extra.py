"""The command is installed with the package, and its packages only with the extra `admin`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from spark_throttle import command_line
from spark_throttle.admin.refusals import Exit
from spark_throttle.command_line.app import app


def test_command_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "spark_throttle.command_line.app", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"^error: typer is not installed: pip install 'spark-throttle\[admin\]'"):
        command_line.main()


def test_missing_module_of_the_package_itself_is_a_fault_and_is_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_throttle.command_line.app", None)
    with pytest.raises(ModuleNotFoundError, match=r"spark_throttle\.command_line\.app"):
        command_line.main()


DRAIN = ["drain", "--checkpoint", "/lake/checkpoint", "--into", "/lake/waiting"]


def test_command_that_starts_spark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    result = CliRunner().invoke(app, DRAIN)
    assert result.exit_code == Exit.INVALID
    assert "error: pyspark is not installed, and this command starts Spark: pip install 'spark-" in result.stderr


@pytest.mark.slow
def test_command_says_in_one_line_that_spark_does_not_start() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "spark_throttle.command_line", *DRAIN],
        env={**os.environ, "JAVA_HOME": "/nowhere"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, "Traceback" in done.stderr) == (Exit.INVALID, False)
    assert done.stderr.splitlines()[-1].startswith("error: Spark does not start ([JAVA_GATEWAY_EXITED] ")
