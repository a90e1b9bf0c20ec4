"""What all tests share: one time zone, Hypothesis' profiles, and marks by directory. Nothing here starts Spark."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["TZ"] = "UTC"
time.tzset()

# A deadline on one example measures the machine: pytest's timeout bounds the test instead.
settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile(
    "nightly",
    deadline=timedelta(minutes=1),
    max_examples=2_000,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "default"))

TESTS = Path(__file__).parent
MARKS = {"integration": "jvm", "kafka": "kafka", "notebooks": "jvm", "recovery": "jvm"}
"""The mark that every test under a directory bears."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by the directory that it stands in, so that `-m` can choose."""
    for item in items:
        if TESTS in item.path.parents:
            mark = MARKS.get(item.path.relative_to(TESTS).parts[0])
            if mark:
                item.add_marker(mark)
