"""A plugin of pytest that writes which lines of the mutated packages each test runs: ``-p tests.mutants.covering``.

A line of JSON for each test that passes, with its CPU seconds, in the file of ``--covering``. A test that stands there
already does not run again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

import coverage
import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = "spark_throttle"
MUTATED: Final = ("core", "control", "sharing")
"""The packages whose lines decide."""

_coverage: Final = coverage.Coverage(
    data_file=None, include=[f"{ROOT}/{PACKAGE}/{name}/*" for name in MUTATED], config_file=False
)
_coverage.set_option("run:disable_warnings", ["no-data-collected"])  # a test may run none of these lines


def pytest_addoption(parser: pytest.Parser) -> None:
    """Ask for the file."""
    parser.addoption("--covering", type=Path, required=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that stand in the file."""
    path: Path = config.getoption("--covering")
    known = {json.loads(line)["test"] for line in path.read_text().splitlines()} if path.exists() else set()
    items[:] = [item for item in items if item.nodeid not in known]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test, and write which lines it ran."""
    begun = time.process_time()
    _coverage.erase()
    _coverage.start()
    try:
        result = yield
    finally:
        _coverage.stop()
    data = _coverage.get_data()
    lines = {
        str(Path(name).relative_to(ROOT)): sorted(data.lines(name) or ())
        for name in sorted(data.measured_files())
        if data.lines(name)
    }
    told = {"test": item.nodeid, "seconds": round(time.process_time() - begun, 3), "lines": lines}
    if lines:
        with item.config.getoption("--covering").open("a") as out:
            out.write(json.dumps(told, separators=(",", ":")) + "\n")
    return result
