"""A plugin of pytest that runs the tests of a file, in its order, and writes which one fails: ``--in-order FILE``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ask for the file."""
    parser.addoption("--in-order", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Watch the tests."""
    config.pluginmanager.register(_InOrder(config.getoption("--in-order")))


class _InOrder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.place = {test: number for number, test in enumerate(json.loads(path.read_text()))}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the tests that are asked for, in their order."""
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place), key=lambda item: self.place[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the test that fails."""
        if report.failed:
            self.path.with_suffix(".failed").write_text(report.nodeid)
