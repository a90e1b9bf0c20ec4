"""Usage by scope and the status of a query: what a report adds up to, with the quotas that were in force."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_throttle.admin.watch.batch_numbers import numbers_of
from spark_throttle.admin.watch.job_numbers import namespaces_of
from spark_throttle.admin.watch.job_watch import Window
from spark_throttle.control.reports import write_report
from spark_throttle.core.names.matching import match
from spark_throttle.core.usage import UsageReport, pack_usage, unpack_usage
from spark_throttle.errors import DamagedError
from spark_throttle.files.storage import Directory, write_block
from spark_throttle.status.status import ScopeStatus, Status, read_status
from spark_throttle.status.usage_table import FIRST_COLUMNS, MEASURES, USAGE_SCHEMA, usage_rows
from tests.oracle.worlds import Namespace, Tenant, limit, make_policy

START_MS = 1_760_000_000_123
POLICY = make_policy(
    job=limit(messages_per_second=100),
    tenants={"acme": Tenant(limit(bytes_per_second=0.5))},
    groups={"gold": limit(messages_per_second=0), "idle": limit()},
    namespaces={"acme/a": Namespace(limit(messages_per_second=7), "gold"), "never/seen": Namespace()},
    default=Namespace(limit(messages_per_second=3)),
)


def report(flows: dict[str, tuple[int, int, int, int]], *, invalid: int = 0) -> UsageReport:
    """Return a report of (offered, admitted, rejected, waiting) messages of 10 bytes."""
    names = pa.array(list(flows), pa.string())
    found = match(names, POLICY)
    counts = np.array(list(flows.values()), dtype=np.int64).reshape(-1, 4)
    offered, admitted, rejected, waiting = (np.stack([n, 10 * n, 0 * n], axis=1) for n in counts.T)
    one = np.ones(len(names), dtype=np.int64)
    return UsageReport(
        4, POLICY.revision, START_MS, names, found.tenant, found.group, one, offered, admitted, rejected,
        waiting, waiting, one, 100 * one, np.zeros((len(POLICY.shared), 3), np.int64), 0, 0, 0, invalid,
    )  # fmt: skip


REPORT = report({"acme/a": (5, 3, 1, 1), "solo": (2, 2, 0, 0), "acme/b": (4, 4, 0, 0)}, invalid=6)


def row(rows: pa.Table, level: str, scope: str) -> dict[str, Any]:
    (found,) = [r for r in rows.to_pylist() if (r["level"], r["scope"]) == (level, scope)]
    return dict(found)


def test_namespace_is_counted_in_its_tenant_its_group_and_the_job() -> None:
    rows = usage_rows(REPORT, POLICY, 12)
    assert rows.schema == USAGE_SCHEMA
    assert [(r["level"], r["scope"]) for r in rows.to_pylist()] == [
        ("job", "job"), ("tenant", "acme"), ("resource_group", "gold"), ("resource_group", "idle"),
        ("namespace", "acme/a"), ("namespace", "solo"), ("namespace", "acme/b"),
    ]  # fmt: skip
    assert row(rows, "tenant", "acme") == dict.fromkeys((measure.name for measure in MEASURES), 0) | {
        "batch_id": 12, "batch_time": datetime(2025, 10, 9, 8, 53, 20, 123_000, tzinfo=UTC), "epoch": 4,
        "revision": "r1", "level": "tenant", "scope": "acme",
        "offered_messages": 9, "offered_bytes": 90, "admitted_messages": 7, "admitted_bytes": 70,
        "rejected_messages": 1, "rejected_bytes": 10, "waiting_messages": 1, "waiting_bytes": 10,
        "observed_messages": 2, "delayed_ms": 200, "request_percentage": None, "used_time_ns": None,
        "throttle_time_ms": None, "exempt_time_ns": None, "unattributed_time_ns": None,
        "oldest_waiting_ms": None, "held_messages": 0, "granted_messages": None, "granted_bytes": None,
        "granted_units": None,
        "waited_p50_ms": 0, "waited_p95_ms": 0, "waited_p99_ms": 0, "waited": [], "job": None,
    }  # fmt: skip
    assert row(rows, "resource_group", "gold")["offered_messages"] == 5
    assert row(rows, "resource_group", "idle")["offered_messages"] == 0


def test_columns_of_the_first_release_stand_before_all_others() -> None:
    """A table that lacks one of these is no usage table; one that lacks a later one is widened."""
    assert USAGE_SCHEMA.names[:FIRST_COLUMNS] == [
        "batch_id", "batch_time", "epoch", "revision", "level", "scope",
        "offered_messages", "offered_bytes", "offered_units", "admitted_messages", "admitted_bytes", "admitted_units",
        "rejected_messages", "rejected_bytes", "rejected_units", "waiting_messages", "waiting_bytes", "waiting_units",
        "observed_messages", "delayed_ms",
    ]  # fmt: skip


def test_rows_without_a_namespace_are_offered_to_the_job_and_rejected_by_it() -> None:
    job = row(usage_rows(REPORT, POLICY, 12), "job", "job")
    assert (job["offered_messages"], job["admitted_messages"], job["rejected_messages"]) == (11 + 6, 9, 1 + 6)
    assert (job["offered_bytes"], job["rejected_bytes"]) == (110, 10)


def odd_report() -> UsageReport:
    """Return a report of two namespaces that look alike, one of which is no UTF-8, and of another that is none."""
    names = pa.array([b"acme/\xe9", b"acme/\\xE9", b"\xff"], pa.binary()).view(pa.string())
    usual = report({"acme/x": (1, 1, 0, 0), "acme/y": (2, 2, 0, 0), "z": (3, 3, 0, 0)})
    return unpack_usage(pack_usage(replace(usual, names=names)), "it")


def test_namespace_that_is_no_utf8_is_shown_and_counts_in_its_tenant() -> None:
    rows = usage_rows(odd_report(), POLICY, 0)
    rows.validate(full=True)
    assert row(rows, "namespace", "acme/\\xE9")["offered_messages"] == 1
    assert row(rows, "namespace", "acme/\\\\xE9")["offered_messages"] == 2
    assert row(rows, "namespace", "\\xFF")["offered_messages"] == 3
    assert row(rows, "tenant", "acme")["offered_messages"] == 3


def test_batch_in_which_nothing_happened_has_rows_of_the_policys_scopes() -> None:
    rows = usage_rows(report({}), POLICY, 0)
    assert rows.column("level").to_pylist() == ["job", "tenant", "resource_group", "resource_group"]
    assert set(rows.column("offered_messages").to_pylist()) == {0}


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    directory = Directory(str(tmp_path))
    write_block(directory, f"policies/{POLICY.revision}", POLICY)
    return directory


def test_status_is_of_the_newest_batch(directory: Directory) -> None:
    write_report(directory, 11, pack_usage(report({"old/news": (1, 1, 0, 0)})))
    write_report(directory, 12, pack_usage(REPORT))
    status = read_status(directory.location)
    assert (status.batch_id, status.batch_time_ms, status.epoch, status.revision) == (12, START_MS, 4, "r1")
    assert status.of_level("namespace").keys() == {"acme/a", "acme/b", "solo"}
    assert status.of_level("namespace")["acme/a"] == ScopeStatus(
        "namespace", "acme/a", 5, 50, 0, 3, 30, 0, 1, 10, 0, 1, 10, 0, 1, 100,
        messages_per_second=7.0, bytes_per_second=None,
    )  # fmt: skip


def test_status_names_the_quota_of_every_scope(directory: Directory) -> None:
    write_report(directory, 1, pack_usage(REPORT))
    quotas = {
        (s.level, s.scope): (s.messages_per_second, s.bytes_per_second) for s in read_status(directory.location).scopes
    }
    assert quotas == {
        ("job", "job"): (100.0, None),
        ("tenant", "acme"): (None, 0.5),
        ("resource_group", "gold"): (0.0, None),
        ("resource_group", "idle"): (None, None),
        ("namespace", "acme/a"): (7.0, None),
        ("namespace", "acme/b"): (3.0, None),  # of those that the policy does not name
        ("namespace", "solo"): (3.0, None),
    }


def test_status_and_page_show_a_namespace_that_is_no_utf8(directory: Directory) -> None:
    write_report(directory, 1, pack_usage(odd_report()))
    found = read_status(directory.location).of_level("namespace")
    assert {name: status.messages_per_second for name, status in found.items()} == {
        "acme/\\xE9": 3.0, "acme/\\\\xE9": 3.0, "\\xFF": 3.0
    }  # fmt: skip
    numbers = numbers_of(1, odd_report(), POLICY, 1_000)
    window = Window(
        POLICY, 1, 1_000, numbers.names, numbers.counts, numbers.waiting, numbers.oldest_ms, numbers.held_by,
        numbers.counts, numbers.elapsed_ms, numbers.budgets,
    )  # fmt: skip
    page = namespaces_of(window, resource_group=None, tenant="acme", is_throttled=False, limit=5)
    assert [each.namespace for each in page.namespaces] == ["acme/\\\\xE9", "acme/\\xE9"]


def test_status_before_the_first_batch_is_empty(tmp_path: Path) -> None:
    assert read_status(str(tmp_path)) == Status(-1, 0, 0, "", ())


def test_damaged_policy_revision_is_refused(directory: Directory) -> None:
    write_report(directory, 1, pack_usage(REPORT))
    directory.write(f"policies/{POLICY.revision}", b"")
    with pytest.raises(DamagedError):
        read_status(directory.location)
