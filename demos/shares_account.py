"""The account of `make shares`: each number from the jobs' tables and checkpoints, none from a program's counters.

The rows admitted by all jobs are merged by the times of their batches. A group exceeds its limit by as much as a window
of any length admitted beyond ``burst + rate * length``; each job may overdraw by one message.

A demand is *known* from the moment at which the batch with its first row was planned: nothing in the tables is earlier,
and the job itself learns of the demand one batch later. Shares are right from the moment at which a batch was planned
under the last of them. The time between the two is counted in cycles (`exchange.interval`), rounded up.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from demos.tables import read_batches, read_rows

Int64s: TypeAlias = npt.NDArray[np.int64]
Float64s: TypeAlias = npt.NDArray[np.float64]

GROUPS: Final = {"gold": 1000, "silver": 500}
"""Quotas of the groups, in messages per second."""

BURST_SECONDS: Final = 10
_NEAR: Final = 0.01


@dataclass(frozen=True, slots=True)
class Moments:
    """The times of the scenario's events, in ms of the wall clock."""

    began_ms: int
    at: dict[str, int]

    def save(self, out: Path) -> None:
        """Write the times next to the tables."""
        (out / "moments.json").write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, out: Path) -> Moments:
        """Return the times that `save` wrote."""
        fields = json.loads((out / "moments.json").read_text())
        return cls(fields["began_ms"], fields["at"])


@dataclass(frozen=True, slots=True)
class SharesRun:
    """The locations of a run's tables."""

    out: Path
    jobs: tuple[str, ...]
    interval_seconds: float
    lease_seconds: float
    moments: Moments


@dataclass(frozen=True, slots=True, eq=False)
class Admissions:
    """The messages of a group that a job admitted, by batch."""

    time_ms: Int64s
    messages: Int64s

    def rate(self, start_ms: int, end_ms: int) -> float:
        """Return the messages per second between the job's first and last batch within a period."""
        inside = np.flatnonzero((self.time_ms >= start_ms) & (self.time_ms <= end_ms))
        if len(inside) < 2:
            return 0.0
        span_ms = self.time_ms[inside[-1]] - self.time_ms[inside[0]]
        return float(self.messages[inside[1:]].sum() * 1000 / span_ms)


@dataclass(frozen=True, slots=True)
class SharesAccount:
    """The results of the scenario."""

    over_quota_worst: float
    """Largest excess of a window over its limit, in messages per job; at most 1."""

    cycles_to_1_percent: int | None
    """Cycles from the moment at which beta's new demand was known until every share was within 1 % of its fair part."""

    utilisation_steady: float
    utilisation_after_kill: float
    """Utilisation from one lease after the kill until the killed job is restarted."""

    jain: float
    """Jain's index of the service of all namespaces, while all three jobs want more than the quota."""

    @property
    def is_as_wanted(self) -> bool:
        """Whether every number meets its target."""
        return (
            self.over_quota_worst <= 1
            and self.cycles_to_1_percent is not None
            and self.cycles_to_1_percent <= 2
            and min(self.utilisation_steady, self.utilisation_after_kill) >= 0.98
        )

    def to_json(self) -> str:
        """Return the account as one line of JSON."""
        rounded = {key: round(value, 4) if isinstance(value, float) else value for key, value in asdict(self).items()}
        return json.dumps(rounded, separators=(",", ":"))


@dataclass(frozen=True, slots=True, eq=False)
class SharesBooks:
    """The account and the data behind it."""

    account: SharesAccount
    run: SharesRun
    admitted: dict[tuple[str, str], Admissions]
    """Admitted messages, by job and group."""

    shares: dict[tuple[str, str], tuple[Int64s, Float64s]]
    """Batch times, and the job's share in messages per second at each, by job and group."""


def take_shares_account(run: SharesRun) -> SharesBooks:
    """Recount a finished run."""
    admitted: dict[tuple[str, str], Admissions] = {}
    by_namespace: dict[str, float] = {}
    at = run.moments.at
    first_ms: int | None = None
    # From here all three jobs want more than the quota: gamma's session has started and has its share.
    crowded_ms = at["gamma runs"] + int(2 * run.interval_seconds * 1000), at["alpha is killed"]
    for job in run.jobs:
        batches = read_batches(run.out / job / "checkpoint")
        rows = read_rows(run.out / job / "admitted", batches)
        times = np.array([batch.time_ms for batch in batches], dtype=np.int64)
        if job == "beta":
            first_ms = _first_row_ms(rows.rows, at["beta wakes"])
        group_of = pc.list_element(pc.split_pattern(rows.rows["namespace"], "-", max_splits=1), 0)
        for group in GROUPS:
            mine = np.asarray(pc.equal(group_of, group))
            admitted[job, group] = Admissions(times, np.bincount(rows.batch[mine], minlength=len(times)))
        inside = np.flatnonzero((times >= crowded_ms[0]) & (times <= crowded_ms[1]))
        in_window = (rows.batch > inside[0]) & (rows.batch <= inside[-1])
        seconds = (times[inside[-1]] - times[inside[0]]) / 1000
        served = rows.rows["namespace"].filter(pa.array(in_window)).value_counts()
        for each in served.to_pylist():
            by_namespace[each["values"]] = each["counts"] / seconds / GROUPS[each["values"].partition("-")[0]]
    shares = {key: value for job in run.jobs for key, value in _shares(run.out / job / "usage", job).items()}
    service = np.array(list(by_namespace.values()))
    after_ms = at["alpha is killed"] + int(run.lease_seconds * 1000)
    account = SharesAccount(
        over_quota_worst=max(_worst(admitted, run, group) for group in GROUPS),
        cycles_to_1_percent=None if first_ms is None else _cycles(run, shares, first_ms),
        utilisation_steady=_utilisation(admitted, run.jobs, *crowded_ms),
        utilisation_after_kill=_utilisation(admitted, ("beta", "gamma"), after_ms, at["alpha starts again"]),
        jain=float(service.sum() ** 2 / (len(service) * (service**2).sum())),
    )
    return SharesBooks(account, run, admitted, shares)


def _worst(admitted: dict[tuple[str, str], Admissions], run: SharesRun, group: str) -> float:
    """Return the largest excess of a window over ``burst + rate * length``, in messages per job."""
    parts = [admitted[job, group] for job in run.jobs]
    times = np.concatenate([part.time_ms for part in parts])
    messages = np.concatenate([part.messages for part in parts])
    order = np.argsort(times, kind="stable")
    earned = GROUPS[group] * times[order] / 1000
    total = np.cumsum(messages[order])
    lowest = np.minimum.accumulate(total - messages[order] - earned)
    excess = float((total - earned - lowest).max()) - GROUPS[group] * BURST_SECONDS
    return max(0.0, excess) / len(run.jobs)


def _utilisation(admitted: dict[tuple[str, str], Admissions], jobs: Sequence[str], start_ms: int, end_ms: int) -> float:
    """Return the part of its quota that was admitted, for the group that used the smaller part."""
    return min(
        sum(admitted[job, group].rate(start_ms, end_ms) for job in jobs) / quota for group, quota in GROUPS.items()
    )


def _shares(usage: Path, job: str) -> dict[tuple[str, str], tuple[Int64s, Float64s]]:
    rows = DeltaTable(str(usage)).to_pyarrow_table(
        columns=["batch_id", "batch_time", "level", "scope", "share_messages_per_second"]
    )
    rows = rows.filter(pc.equal(rows["level"], "resource_group")).sort_by("batch_id")
    found = {}
    for group in GROUPS:
        mine = rows.filter(pc.equal(rows["scope"], group))
        time_ms = mine["batch_time"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_numpy()
        found[job, group] = time_ms, mine["share_messages_per_second"].fill_null(0.0).to_numpy()
    return found


def _first_row_ms(rows: pa.Table, since_ms: int) -> int | None:
    """Return the time of the first row written after `since_ms`; `None` if there is none."""
    written_ms = np.asarray(rows["ts"].cast(pa.int64())) // 1000
    later = written_ms[written_ms > since_ms]
    return int(later.min()) if len(later) else None


def _cycles(run: SharesRun, shares: dict[tuple[str, str], tuple[Int64s, Float64s]], first_ms: int) -> int | None:
    """Return the cycles from when beta's new demand was known until alpha and beta each had half."""
    until_ms = run.moments.at["gamma starts"]
    worst = 0
    for group, quota in GROUPS.items():
        times = shares["beta", group][0]
        known_ms = int(times[times >= first_ms][0])
        moments = np.unique(np.concatenate([shares[job, group][0] for job in ("alpha", "beta")]))
        fair = [
            at_ms
            for at_ms in moments[(moments > known_ms) & (moments < until_ms)].tolist()
            if all(_is_near(shares[job, group], at_ms, quota / 2) for job in ("alpha", "beta"))
        ]
        if not fair:
            return None
        worst = max(worst, -(-(fair[0] - known_ms) // int(run.interval_seconds * 1000)))
    return worst


def _is_near(share: tuple[Int64s, Float64s], at_ms: int, wanted: float) -> bool:
    times, rates = share
    index = int(np.searchsorted(times, at_ms, side="right")) - 1
    return index >= 0 and abs(float(rates[index]) - wanted) <= _NEAR * wanted
