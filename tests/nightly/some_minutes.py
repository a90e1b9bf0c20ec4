"""A plugin of pytest that ends a run when its minutes are over, and tells in one line of JSON, the last, what ran."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the minutes."""
    parser.addoption("--minutes", type=float, required=True, help="begin no test after so many minutes")


def pytest_configure(config: pytest.Config) -> None:
    """Watch the run."""
    config.pluginmanager.register(SomeMinutes(60 * config.getoption("--minutes")), "some minutes of tests")


class SomeMinutes:
    """The tests that some minutes are enough for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = float("inf")
        self._counts: Counter[str] = Counter()
        self._failed: list[str] = []
        self._collected = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note how many tests there are, and count the time from here: to find thousands of them takes a minute."""
        self._collected = len(session.items)
        self._end = time.monotonic() + self._seconds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Begin no test when the time is over; what has begun ends, and what was set up is taken down."""
        if time.monotonic() < self._end:
            return None
        item.session.shouldstop = "the time is over"
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once, whatever part of it failed."""
        if report.failed and report.nodeid not in self._failed:
            self._failed.append(report.nodeid)
        elif report.when == "call":
            self._counts[report.outcome] += 1

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that cannot be read as a failure."""
        if report.failed:
            self._failed.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Tell what ran."""
        ran = self._counts["passed"] + self._counts["skipped"] + len(self._failed)
        told: dict[str, Any] = {"passed": self._counts["passed"], "failed": len(self._failed)}
        told |= {"left": max(0, self._collected - ran), "failures": self._failed[:20]}
        sys.stdout.write(f"\n{json.dumps(told)}\n")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """End well where only the time was over."""
        if session.exitstatus == pytest.ExitCode.INTERRUPTED and session.shouldstop and not self._failed:
            session.exitstatus = pytest.ExitCode.OK
