"""Usage by scope: what the shards' reports add up to, as rows of the usage table and of `status`.

A namespace is counted in its own scope, its tenant's, its group's and the job's; scopes that the policy does not name
have no row of their own, a namespace that was active always has. Its name stands there as `core.names.shown_names` has
it: what a namespace is called may be no text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import sums
from spark_throttle.core.codec import unpack_policy
from spark_throttle.core.names.shown_names import shown
from spark_throttle.core.quota import CompiledPolicy, Int64s
from spark_throttle.core.usage import UsageReport
from spark_throttle.errors import EpochMissingError
from spark_throttle.files.storage import Directory


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a batch that every scope has; a scope's is the sum of its namespaces'."""

    name: str
    """The column of the usage table, and the field of `status.ScopeStatus`."""

    of: Callable[[UsageReport], Int64s]
    """Returns the number of every namespace of a report; zeros where an older release has written none."""

    counter: str = ""
    """What Prometheus is told of its sum since the server began to watch; empty: it is no counter."""


def _by_dimension(count: str, of: Callable[[UsageReport], Int64s], verb: str = "") -> tuple[Measure, ...]:
    """Return a count of messages and one of bytes."""
    return tuple(
        Measure(f"{count}_{unit}", partial(_column, of, at), f"{unit.capitalize()} that {verb}" if verb else "")
        for at, unit in enumerate(("messages", "bytes"))
    )


def _column(of: Callable[[UsageReport], Int64s], at: int, report: UsageReport) -> Int64s:
    return of(report)[:, at]


MEASURES: Final = (
    *_by_dimension("offered", lambda report: report.offered, "arrived"),
    *_by_dimension("admitted", lambda report: report.admitted, "were admitted"),
    *_by_dimension("rejected", lambda report: report.rejected, "were rejected"),
    *_by_dimension("waiting", lambda report: report.waiting),
    Measure("observed_messages", lambda report: report.observed_messages),
    Measure("delayed_ms", lambda report: report.delayed_ms),
)
"""All there is to say of a scope's batch. What is added stands behind what tables have already."""

AT: Final[Mapping[str, int]] = {measure.name: at for at, measure in enumerate(MEASURES)}
"""The position in `MEASURES` of each, by its name."""

USAGE_SCHEMA = pa.schema([
    ("batch_id", pa.int64()), ("batch_time", pa.timestamp("us", tz="UTC")), ("epoch", pa.int64()),
    ("revision", pa.string()), ("level", pa.string()), ("scope", pa.string()),
    *((measure.name, pa.int64()) for measure in MEASURES),
])  # fmt: skip
"""Of the usage table."""

FIRST_COLUMNS: Final = 16
"""How many columns the first release wrote. A table may lack those behind them, and is widened."""


def by_dimension(count: str) -> slice:
    """Return the positions in `MEASURES` of a count of messages and of the one of bytes.

    Examples
    --------
    >>> [measure.name for measure in MEASURES[by_dimension("admitted")]]
    ['admitted_messages', 'admitted_bytes']
    """
    return slice(AT[f"{count}_messages"], AT[f"{count}_bytes"] + 1)


def usage_rows(reports: Sequence[UsageReport], policy: CompiledPolicy, batch: int) -> pa.Table:
    """Return the usage of a batch, a row a scope; the namespaces last, as `reported_names` has them."""
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
            invalid_messages = sum(report.invalid_messages for report in reports)
            total[0, [AT["offered_messages"], AT["rejected_messages"]]] += invalid_messages
        tables.append(_table(level, scopes, total, reports[0], batch))
    # In one chunk: Spark reads a table of several only up to the first that is empty.
    return pa.concat_tables(tables).combine_chunks()


def reported_names(reports: Sequence[UsageReport]) -> pa.StringArray:
    """Return the active namespaces of reports, which may be no UTF-8."""
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
    return np.column_stack([measure.of(report) for measure in MEASURES])


def _table(level: str, scopes: pa.StringArray, total: Int64s, report: UsageReport, batch: int) -> pa.Table:
    n = len(scopes)
    batch_time = pa.array(np.full(n, report.now_ms * 1000), pa.timestamp("us", tz="UTC"))
    constant = [pa.array([batch] * n, pa.int64()), batch_time, pa.array([report.epoch] * n, pa.int64())]
    words = [pa.array([report.revision] * n, pa.string()), pa.array([level] * n, pa.string())]
    counts = [pa.array(total[:, column]) for column in range(total.shape[1])]
    return pa.Table.from_arrays([*constant, *words, scopes, *counts], schema=USAGE_SCHEMA)
