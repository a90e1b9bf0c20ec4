"""The command is installed with the package, and its packages only with the extra `admin`."""

from __future__ import annotations

import sys

import pytest

from spark_throttle import command_line


def test_command_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "spark_throttle.command_line.app", raising=False)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"^error: typer is not installed: pip install 'spark-throttle\[admin\]'"):
        command_line.main()


def test_missing_module_of_the_package_itself_is_a_fault_and_is_shown_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spark_throttle.command_line.app", None)
    with pytest.raises(ModuleNotFoundError, match=r"spark_throttle\.command_line\.app"):
        command_line.main()
