"""One scope over time: as the server saw its batches, or further back from the job's usage table, which outlives it.

A range of the table is summed in steps by DataFusion, which comes with `deltalake`: it reads the files whose statistics
fit the range. A step's rates count from the newest batch before it to its own newest batch, so they are right however
long batches take. The steps are counted back from the end of the range.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError

from spark_throttle.admin.watch.batch_numbers import BatchNumbers
from spark_throttle.checkpoint.manifest import bound_manifest
from spark_throttle.core.quota import Dimension
from spark_throttle.errors import ConfigurationError, FileUnusableError
from spark_throttle.files.storage import Directory
from spark_throttle.status.ranking import Key
from spark_throttle.status.usage_table import AT

Counted: TypeAlias = Literal["messages", "bytes", "units"]
Rates: TypeAlias = list[float | None]

COUNTS: Final = ("offered", "admitted", "rejected")
MOST_STEPS: Final = 300
MOST_ROWS: Final = 50_000_000
"""The most rows of a table that one range may read: DataFusion takes some seconds for them."""

_GAP: Final = 10
"""Where the time between two points is this many times that beside it, the job stood still."""


@dataclass(frozen=True, slots=True)
class ScopeHistory:
    """A scope over time; lists run over the points."""

    time_ms: list[int]
    """Time of the newest batch of each point."""

    offered: Rates
    """This and the other rates are per second; `None` where it is not known how long a batch took, or none ran."""

    admitted: Rates
    rejected: Rates
    quota: Rates
    """What its quota earned, `None` without one; of a job that shares its quotas, its share."""

    waiting: Rates
    """The most that waited after a batch of the point: no rate, but messages or bytes."""

    changes_ms: list[int]
    """Times of the first batches that other policies decided."""


def seen_history(batches: Sequence[BatchNumbers], key: Key, dimension: Counted) -> ScopeHistory:
    """Return a scope over some batches that the server saw, a point for each.

    Where a clock was put back, those before have times that come again: they are left out.
    """
    batches = list(batches)
    begins = [at for at, (one, later) in enumerate(pairwise(batches), 1) if later.now_ms <= one.now_ms]
    batches = batches[begins[-1] if begins else 0 :]
    counts = np.array([kept.shared[key] if key in kept.shared else 0 * kept.shared["job", "job"] for kept in batches])
    elapsed_ms = np.array([kept.elapsed_ms for kept in batches], np.float64)

    def rates(count: str) -> Rates:
        with np.errstate(divide="ignore", invalid="ignore"):
            return _numbers(counts[:, AT[f"{count}_{dimension}"]] * 1000 / elapsed_ms)

    at = Dimension[dimension.upper()]
    return ScopeHistory(
        time_ms=[kept.now_ms for kept in batches],
        offered=rates("offered"),
        admitted=rates("admitted"),
        rejected=rates("rejected"),
        quota=[kept.quotas[key][at] if key in kept.quotas else None for kept in batches],
        waiting=counts[:, AT[f"waiting_{dimension}"]].tolist(),
        changes_ms=[later.now_ms for one, later in pairwise(batches) if one.revision != later.revision],
    )


class UsageTable:
    """The rows of a job in its usage table, a Delta table, as the server reads it; several threads read in turn.

    Parameters
    ----------
    directory
        The job's control directory, which says how the rows name it: others may write to the table too.
    """

    def __init__(self, location: str, directory: Directory) -> None:
        self._location, self._directory = location, directory
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None

    def history(self, key: Key, dimension: Counted, *, since_ms: int, until_ms: int) -> ScopeHistory:
        """Return a scope over a range, in at most `MOST_STEPS` points; what the table no longer has is missing.

        Raises
        ------
        ConfigurationError
            If the files of the range have more than `MOST_ROWS` rows.
        FileUnusableError
            If the table cannot be read.
        """
        with self._read() as (table, files):
            begun_ms = max(since_ms, _oldest_ms(files) or since_ms)
            query = _query(self._job(), key, dimension, begun_ms, max(until_ms, begun_ms + 1))
            return _summed(_found(table, files, query, begun_ms))

    def sums(self, *, since_ms: int, until_ms: int, interval_ms: int) -> pa.Table:
        """Return what each namespace was offered in each interval of a range (`what_if.traffic.SUMS`).

        Units are those that rows came with: where their costs are known late, what they were estimated at.

        Raises
        ------
        ConfigurationError, FileUnusableError
            As `history`.
        """
        with self._read() as (table, files):
            return _found(table, files, _sums_query(self._job(), since_ms, until_ms, interval_ms), since_ms)

    def corrected_units(self, *, since_ms: int, until_ms: int) -> tuple[int, int]:
        """Return by how many units the costs that came in a range are less than they were estimated at, and more.

        Raises
        ------
        ConfigurationError, FileUnusableError
            As `history`.
        """
        query = " ".join((
            "SELECT sum(given_back_units) AS less, sum(overdrawn_units) AS more FROM usage",
            f"WHERE job = {_literal(self._job())} AND level = 'job' AND {_between(since_ms * 1000, until_ms * 1000)}",
        ))  # fmt: skip
        with self._read() as (table, files):
            (found,) = _found(table, files, query, since_ms).to_pylist()
        return found["less"] or 0, found["more"] or 0

    def _job(self) -> str:
        return bound_manifest(self._directory).job

    @contextmanager
    def _read(self) -> Iterator[tuple[DeltaTable, pa.Table]]:
        """Yield the table as it is now and what its log says of its files, while no other thread has it."""
        try:
            with self._lock:
                if self._table is None:
                    self._table = DeltaTable(self._location)
                self._table.update_incremental()
                yield self._table, pa.table(self._table.get_add_actions(flatten=True))
        except (DeltaError, OSError, pa.ArrowException) as error:
            self._table = None
            raise FileUnusableError(self._location, f"as a usage table: {error}") from error


def _oldest_ms(files: pa.Table) -> int | None:
    """Return the time of the oldest batch in files, `None` if they do not tell."""
    if "min.batch_time" not in files.column_names or files["min.batch_time"].null_count:
        return None
    oldest_us = pc.min(files["min.batch_time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())).as_py()
    return None if oldest_us is None else int(oldest_us // 1000)


def _found(table: DeltaTable, files: pa.Table, query: str, since_ms: int) -> pa.Table:
    """Return what a query finds, unless the files that have batches of the range, or do not say, have too many rows."""
    if "max.batch_time" in files.column_names:
        since = pa.scalar(since_ms * 1000, pa.timestamp("us", tz="UTC"))
        files = files.filter(pc.fill_null(pc.greater_equal(files["max.batch_time"], since), fill_value=True))
    rows = pc.sum(files["num_records"]).as_py() or 0
    if rows > MOST_ROWS:
        raise ConfigurationError(
            f"the usage table has {rows:,} rows of that time, more than {MOST_ROWS:,}; ask for less time"
        )
    return pa.table(QueryBuilder().register("usage", table).execute(query).read_all())


def _query(job: str, key: Key, dimension: Counted, since_ms: int, until_ms: int) -> str:
    """Return the sums of a scope by step, the newest first; a step before the range tells when its first one began."""
    step_us = 1000 * -(-(until_ms - since_ms) // MOST_STEPS)
    level, scope = (_literal(text) for text in key)
    of_scope = f"FILTER (WHERE level = {level} AND scope = {scope})"
    sums = ", ".join(f"sum({count}_{dimension}) {of_scope} AS {count}" for count in (*COUNTS, "granted"))
    return " ".join((
        f"SELECT ({until_ms * 1000} - arrow_cast(batch_time, 'Int64')) / {step_us} AS step,",
        f"max(arrow_cast(batch_time, 'Int64')) / 1000 AS time_ms, {sums},",
        f"max(waiting_{dimension}) {of_scope} AS waiting,",
        "min(revision) AS first, max(revision) AS last",
        f"FROM usage WHERE job = {_literal(job)} AND {_between(since_ms * 1000 - step_us, until_ms * 1000)}",
        f"AND (level = 'job' OR (level = {level} AND scope = {scope})) GROUP BY step ORDER BY step DESC",
    ))  # fmt: skip


def _sums_query(job: str, since_ms: int, until_ms: int, interval_ms: int) -> str:
    """Return the sums of what namespaces were offered, by interval; a batch's messages count by their mean size."""
    size = "ceil(offered_bytes / arrow_cast(offered_messages, 'Float64'))"
    return " ".join((
        f"SELECT arrow_cast(batch_time, 'Int64') / {1000 * interval_ms} AS \"interval\", scope AS namespace,",
        "sum(offered_messages) AS messages, sum(offered_bytes) AS bytes,",
        f"arrow_cast(max({size}), 'Int64') AS largest_bytes,",
        f"sum(offered_units) AS units, arrow_cast(max({size.replace('bytes', 'units')}), 'Int64') AS largest_units",
        f"FROM usage WHERE job = {_literal(job)} AND {_between(since_ms * 1000, until_ms * 1000)}",
        "AND level = 'namespace' AND offered_messages > 0 GROUP BY \"interval\", namespace",
    ))  # fmt: skip


def _literal(text: str) -> str:
    """Return a literal of SQL, which ends at no quote that is doubled, and knows no other escape."""
    return "'" + text.replace("'", "''") + "'"


def _between(since_us: int, until_us: int) -> str:
    since, until = (f"arrow_cast({us}, 'Timestamp(Microsecond, Some(\"UTC\"))')" for us in (since_us, until_us))
    return f"batch_time > {since} AND batch_time <= {until}"


def _summed(steps: pa.Table) -> ScopeHistory:
    """Return the points of steps; the first is only where the second begins."""
    time_ms = steps["time_ms"].to_numpy()
    elapsed_ms = np.diff(time_ms)
    # A point without numbers, a moment after the last one, interrupts the lines where the job stood still: for much
    # longer than between the points beside it.
    beside_ms = np.maximum(np.append(elapsed_ms[1:], 0), np.insert(elapsed_ms[:-1], 0, 0))
    gaps = np.flatnonzero(elapsed_ms > _GAP * np.maximum(beside_ms, 1)) if len(elapsed_ms) > 1 else elapsed_ms[:0]

    def with_gaps(numbers: np.ndarray) -> Rates:
        return _numbers(np.insert(numbers.astype(np.float64), gaps, np.nan))

    def rates(name: str) -> np.ndarray:
        counts = pc.fill_null(steps[name].cast(pa.float64()), np.nan if name == "granted" else 0.0).to_numpy()
        return counts[1:] * 1000 / elapsed_ms

    first, last = steps["first"].to_pylist(), steps["last"].to_pylist()
    is_changed = np.array([len({last[at - 1], first[at], last[at]}) > 1 for at in range(1, len(steps))], np.bool_)
    waiting = pc.fill_null(steps["waiting"].cast(pa.float64()), 0.0).to_numpy()[1:]
    return ScopeHistory(
        time_ms=np.insert(time_ms[1:], gaps, time_ms[gaps] + 1).tolist(),
        offered=with_gaps(rates("offered")),
        admitted=with_gaps(rates("admitted")),
        rejected=with_gaps(rates("rejected")),
        quota=with_gaps(rates("granted")),
        waiting=with_gaps(waiting),
        changes_ms=time_ms[1:][is_changed].tolist(),
    )


def _numbers(values: np.ndarray) -> Rates:
    """Return numbers, `None` in place of those that are none."""
    return [each if np.isfinite(each) else None for each in values.tolist()]
