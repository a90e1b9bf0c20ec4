"""What all tests share: one time zone, Hypothesis' profiles, marks by directory, and the one Spark session.

A session start costs some eight seconds: nothing starts one before a test asks for it, and then all share it.
"""

from __future__ import annotations

import gc
import os
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.sessions import (
    DELTA,
    FOR_FEW_ROWS,
    SMALL_PAGES,
    WITH_ROOM,
    WITHOUT_CALL_SITES,
    checkpoints_without_processes,
    files_without_processes,
    forked_python,
    open_session,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from pyspark.sql import SparkSession

os.environ["TZ"] = "UTC"
time.tzset()

# A change lands or not by what it changes: the suite draws the same examples each time, and `search` draws others.
# A deadline on one example measures the machine: pytest's timeout bounds the test instead.
settings.register_profile("same", deadline=None, derandomize=True, print_blob=True, max_examples=40)
settings.register_profile(
    "search",
    deadline=timedelta(minutes=1),
    max_examples=1_000,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "same")

TESTS = Path(__file__).parent
collect_ignore = [*(f"mutants/{name}.py" for name in ("changes", "run", "trials")), "cluster/proxy.py"]
"""They need packages that `make mutants` and `make cluster-test` install in environments of their own."""

MARKS = {"crash": "jvm", "integration": "jvm", "kafka": "kafka", "notebooks": "jvm", "recovery": "jvm", "tools": "jvm"}
"""The mark that every test under a directory bears."""


FIRST = ("integration", "recovery", "notebooks", "crash")
"""Directories of the tests that take minutes: who shares their processes must begin at once."""


OVER_CONNECT = ("tests/integration/test_connect.py", "tests/integration/test_declared_pipeline.py")
"""They share a server in place of the session."""

FEW_WITH_SESSION = (
    "tests/crash/test_crash.py",
    "tests/docs/test_snippets.py",
    "tests/integration/test_staged.py",
    "tests/kafka/",
    "tests/notebooks/",
    "tests/recovery/",
    "tests/spark/columns/test_recorded_traffic.py",
    "tests/spark/references/test_row_condition.py",
    "tests/spark/rows/test_worker_heap.py",
    "tests/status/test_waiting_in_sql.py",
)
"""Beside the rest of `integration`, what uses the session: so much that neither process ends long after the other."""


def process_of(nodeid: str) -> str:
    """Return what shares a process of pytest with a test, where there are several: a name, or the test's file.

    A session's JVM is warm after minutes: four that each ran a quarter of the tests took twice the time of one. Two
    share them, for as long as the other tests take: one has most of the largest folder.
    """
    file = nodeid.partition("::")[0]
    if file in OVER_CONNECT:
        return "over Connect"
    if file.startswith("tests/admin/test_page"):
        return "the page"  # in one browser
    if file.startswith(FEW_WITH_SESSION):
        return "sessions"
    return "integration" if file.startswith("tests/integration/") else file


class ByProcess(LoadScopeScheduling):  # type: ignore[misc] # it has no types
    """Deals tests out to processes by `process_of`."""

    def _split_scope(self, nodeid: str) -> str:
        return process_of(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByProcess:
    """Deal tests out so, whatever `--dist` says."""
    return ByProcess(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collector of garbage from what is collected: it would look through half a million objects many times."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test by where it stands and by what it drives, so that `-m` can choose, and put the long ones first.

    Where several processes share the files, a long one at the end would leave the others without work.
    """
    for item in items:
        if TESTS in item.path.parents:
            mark = MARKS.get(item.path.relative_to(TESTS).parts[0])
            if mark:
                item.add_marker(mark)
            if _uses(item, "driver"):
                item.add_marker("slow")  # it drives a browser
            if _uses(item, "spark") and process_of(item.nodeid) == item.location[0]:
                msg = f"{item.location[0]} uses the session: add it to FEW_WITH_SESSION"
                raise pytest.UsageError(msg)
    items.sort(key=_place)


def _uses(item: pytest.Item, fixture: str) -> bool:
    return fixture in getattr(item, "fixturenames", ())


def _place(item: pytest.Item) -> int:
    """Return where a test stands among the others: the shorter the later."""
    folder = item.path.relative_to(TESTS).parts[0] if TESTS in item.path.parents else ""
    needs_jvm = item.get_closest_marker("jvm") is not None or _uses(item, "spark")
    if folder in FIRST:
        return FIRST.index(folder)
    if needs_jvm:
        return len(FIRST)
    return len(FIRST) + (1 if item.get_closest_marker("slow") is not None else 2)


NO_DELTA = ("the jar of Delta is missing", "Failed to find the data source: delta", "Provider for delta is not")
"""What a test says that met a Delta table where Spark has no Delta."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip a test that fails for want of Delta, where there is none for the Spark that `make versions` tries.

    One that is marked to need none is not skipped.
    """
    report = yield
    may_skip = not DELTA and item.get_closest_marker("without_delta") is None
    if report.failed and may_skip and any(said in report.longreprtext for said in NO_DELTA):
        report.outcome = "skipped"
        report.longrepr = (str(item.path), item.location[1] or 0, "Skipped: there is no Delta for this Spark")
    return report


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Let no test wait until a disk has what it wrote: none cuts the power, and half of a quick test's time is that.

    Processes that tests start are not concerned.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # a descriptor that is closed is an error still
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield the shared session: local[2], UTC, Delta, everything written below a temporary directory."""
    scratch = tmp_path_factory.mktemp("spark")
    from tests.until_drained import run_until_drained

    with forked_python(scratch) as python:
        own = SMALL_PAGES | WITHOUT_CALL_SITES | files_without_processes()
        session = open_session(scratch, python=python, jvm_options=WITH_ROOM, settings=own)
        for setting in (checkpoints_without_processes() | FOR_FEW_ROWS).items():
            session.conf.set(*setting)
        with pytest.MonkeyPatch.context() as patch:
            run_until_drained(patch, session.version)
            yield session
        session.stop()
