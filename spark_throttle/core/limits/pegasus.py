"""Pegasus' throttling rules: beyond one number of units per wall-clock second, delay; beyond another, reject.

A namespace's second starts at ``floor(now_ms / 1000)`` with nothing counted. A row adds its units (1, or its
size). If the total then exceeds the reject threshold, the units are taken back and the row is rejected; else,
if it exceeds the delay threshold, the row waits `delay_ms`. Rejection is tested first, so equal thresholds
never delay. A threshold of 0 is off (Apache Pegasus, `throttling_controller`). The rule by count is tested before the
rule by size, and a row that either rejects is counted in neither.

Units that are taken back leave room for a smaller row, so the rows that pass by size are not a prefix. They are found
in rounds over all namespaces at once. A round passes each namespace's rows up to the first that does not fit,
and drops every later row that would not fit even alone; each round but the last passes at least one row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import Segments, running_total
from spark_throttle.core.quota import Bools, Dimension, Int64s, WindowRules

_NO_THRESHOLD = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class WindowVerdicts:
    """The verdicts of the rules on the rows of a batch, and the windows after it."""

    rejected_by: Int64s
    """The `Dimension` whose rule rejects the row, -1 where none does."""

    release_ms: Int64s
    """The batch time before which the row may not leave; 0 where no rule delays it."""

    units: Int64s
    """Shape (flows, 2): the units that have passed in this second."""


def plan_windows(flow: Int64s, size_bytes: Int64s, used: Int64s, rules: WindowRules, *, now_ms: int) -> WindowVerdicts:
    """Apply the rules to the arrivals of a batch.

    Parameters
    ----------
    flow, size_bytes
        The flow and the size of every arrival, in order.
    used
        Shape (flows, 2): the units that have already passed in the second of `now_ms`.
    rules
        The rules, one position per flow.

    Examples
    --------
    Under ``2*delay*100,3*reject*50``, two rows pass, one waits, and the fourth is rejected:

    >>> pair = lambda n: np.array([[n, 0]])
    >>> rules = WindowRules(pair(2), pair(100), pair(3), pair(50))
    >>> w = plan_windows(np.zeros(4, int), np.ones(4, int), pair(0), rules, now_ms=1_000)
    >>> w.release_ms.tolist(), w.rejected_by.tolist()
    ([0, 0, 1100, 0], [-1, -1, -1, 0])
    """
    flows = len(rules)
    rejected_by = np.full(len(flow), -1, dtype=np.int64)
    release_ms = np.zeros(len(flow), dtype=np.int64)
    rows = np.flatnonzero(rules.has_rule[flow])
    if not len(rows):
        return WindowVerdicts(rejected_by, release_ms, used)
    layout = Segments.by_key(flow[rows], flows)
    key = layout.key
    cost = np.stack([np.ones(len(rows), dtype=np.int64), size_bytes[rows][layout.order]], axis=1)
    limit = np.where(rules.reject_units > 0, rules.reject_units, _NO_THRESHOLD)
    passed, refused_by, total = _fill(layout, cost, used, limit)
    delay_units = rules.delay_units[key]
    is_delayed = passed[:, None] & (delay_units > 0) & (total > delay_units)
    wait_until = np.where(is_delayed, now_ms + rules.delay_ms[key], 0).max(axis=1)
    at = rows[layout.order]
    rejected_by[at] = refused_by
    release_ms[at] = wait_until
    units = used.copy()
    np.add.at(units, key[passed], cost[passed])
    return WindowVerdicts(rejected_by, release_ms, units)


def _fill(layout: Segments, cost: Int64s, used: Int64s, limit: Int64s) -> tuple[Bools, Int64s, Int64s]:
    """Return which laid-out rows pass, the dimension that refuses each other row, and the totals once a row passed."""
    rows = len(cost)
    passed = np.zeros(rows, dtype=np.bool_)
    total = np.zeros((rows, 2), dtype=np.int64)
    filled = used.copy()
    pending = np.arange(rows)
    laid_out = layout.key
    while len(pending):
        key = laid_out[pending]
        counts = np.bincount(key, minlength=len(layout.counts))
        starts = np.cumsum(counts) - counts
        inclusive = np.stack([running_total(cost[pending, d]) for d in Dimension], axis=1)
        would = filled[key] + inclusive[1:] - inclusive[starts[key]]
        fits = (would <= limit[key]).all(axis=1)
        current = Segments(pending, starts, counts)
        passes = current.rank < current.first(~fits)[key]
        now_passing = pending[passes]
        passed[now_passing] = True
        total[now_passing] = would[passes]
        np.add.at(filled, key[passes], cost[now_passing])
        fits_alone = (filled[key] + cost[pending] <= limit[key]).all(axis=1)
        pending = pending[~passes & fits_alone]
    before = running_total(passed.astype(np.int64))
    count = used[laid_out, Dimension.MESSAGES] + before[:-1] - before[layout.starts[laid_out]] + 1
    is_over_count = count > limit[laid_out, Dimension.MESSAGES]
    refused_by = np.where(passed, -1, np.where(is_over_count, Dimension.MESSAGES, Dimension.BYTES))
    return passed, refused_by, total
