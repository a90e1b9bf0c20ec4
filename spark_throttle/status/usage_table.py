"""Usage by scope: the sums of the shards' reports, as rows of the usage table and of `status`.

A namespace counts in its own scope, its tenant's, its group's and the job's. A tenant or group that the policy does not
name has no row; a namespace that was active always has one. Its name is written as `core.names.shown_names` shows it,
because the name of a namespace may not be valid UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.codec import unpack_policy
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import EpochMissingError
from spark_throttle.files.storage import Directory

_COUNTS = ("offered", "admitted", "rejected", "waiting")

USAGE_SCHEMA = pa.schema([
    ("batch_id", pa.int64()), ("batch_time", pa.timestamp("us", tz="UTC")), ("epoch", pa.int64()),
    ("revision", pa.string()), ("level", pa.string()), ("scope", pa.string()),
    *((f"{count}_{unit}", pa.int64()) for count in _COUNTS for unit in ("messages", "bytes")),
    ("observed_messages", pa.int64()), ("delayed_ms", pa.int64()),
])  # fmt: skip
"""The schema of the usage table."""


def usage_rows(reports: Sequence[UsageReport], policy: CompiledPolicy, batch: int) -> pa.Table:
    """Return the usage of a batch, one row per scope; namespaces come last, in the order of `reported_names`."""
    names = shown(reported_names(reports))
    is_active = np.concatenate([report.is_active for report in reports])
    tenant = np.concatenate([report.tenant for report in reports])[is_active]
    group = np.concatenate([report.group for report in reports])[is_active]
    measures = np.concatenate([_measures(report) for report in reports])[is_active]
    levels = [
        ("job", pa.array(["job"]), np.zeros(len(names), dtype=np.int64)),
        ("tenant", policy.tenant_names, tenant),
        ("resource_group", policy.group_names, group),
        ("namespace", names, np.arange(len(names))),
    ]
    tables = []
    for level, scopes, at in levels:
        held = at >= 0
        total = sums(at[held], measures[held], len(scopes))
        if level == "job":
            total[0, 0] += sum(report.invalid_messages for report in reports)
            total[0, 4] += sum(report.invalid_messages for report in reports)
        tables.append(_table(level, scopes, total, reports[0], batch))
    # In one chunk: of a table of several, Spark reads only those before the first empty one.
    return pa.concat_tables(tables).combine_chunks()


def reported_names(reports: Sequence[UsageReport]) -> pa.StringArray:
    """Return the names of the active namespaces in reports; they may not be valid UTF-8."""
    active = [report.names.filter(pa.array(report.is_active)) for report in reports]
    return pa.chunked_array(active, pa.string()).combine_chunks()


def policy_of(directory: Directory, report: UsageReport) -> CompiledPolicy:
    """Return the policy that a report's indices belong to.

    Raises
    ------
    EpochMissingError
        If its file is gone.
    """
    path = f"policies/{report.revision}"
    content = directory.read(path)
    if content is None:
        raise EpochMissingError(report.epoch, directory.path(path))
    return unpack_policy(content, f"the policy revision {directory.path(path)}")


def _measures(report: UsageReport) -> Int64s:
    parts = [report.offered, report.admitted, report.rejected, report.waiting]
    return np.column_stack([*parts, report.observed_messages, report.delayed_ms])


def _table(level: str, scopes: pa.StringArray, total: Int64s, report: UsageReport, batch: int) -> pa.Table:
    n = len(scopes)
    batch_time = pa.array(np.full(n, report.now_ms * 1000), pa.timestamp("us", tz="UTC"))
    constant = [pa.array([batch] * n, pa.int64()), batch_time, pa.array([report.epoch] * n, pa.int64())]
    words = [pa.array([report.revision] * n, pa.string()), pa.array([level] * n, pa.string())]
    counts = [pa.array(total[:, column]) for column in range(total.shape[1])]
    return pa.Table.from_arrays([*constant, *words, scopes, *counts], schema=USAGE_SCHEMA)
