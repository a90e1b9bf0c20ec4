"""PIP-82's three ways to share a quota, which follow what each job used; selectable, to be compared with `max_min`.

- `proportional`: each job keeps its proportion of all usage. Pulsar's brokers do this; here it is as in Pulsar's code,
  to the bit. The arithmetic is Java's float32, and so stands outside the core, which computes in whole numbers; its
  result is cut to whole tokens before anything depends on it.
- `residual`: each job adds the whole of what is unused.
- `steal`: a job that uses less than its counterpart goes half-way towards it.

All of them need several rounds after a change of usage, and the last two may give out more than the quota meanwhile.

Source: PIP-82, "Example of usage distribution"; Pulsar's `ResourceQuotaCalculatorImpl` (commit b46d1eb8), whose answers
are in `tests/conformance`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from spark_throttle.core.arithmetic.fixed_point import FACTOR_BITS, quotient, times
from spark_throttle.core.arithmetic.segments import Segments
from spark_throttle.core.quota import Bools, Int64s

_FLOAT = np.float32


def proportional(quota: Int64s, usage: Int64s, total: Int64s) -> Int64s:
    """Return the quotas that Pulsar's brokers set: ``usage + (quota - total) * usage / total``, at least 1.

    The arithmetic is float32, cut to whole numbers, as in Pulsar. A quota below 0 is no limit, and gives -1. While
    nobody uses anything, every job gets the whole quota. A job that uses nothing while others do gets 1, and so stays
    at 1.

    Parameters
    ----------
    quota, usage, total
        For every seat: the scope's quota, the job's own usage, and the usage of all jobs.

    Raises
    ------
    ValueError
        If a usage or a total is negative, as a total that overflowed is.

    Examples
    --------
    PIP-82's example: 10, 50 and 30 of 100 become 11.11, 55.56 and 33.33.

    >>> usage = np.array([10, 50, 30])
    >>> proportional(np.full(3, 100), usage, np.full(3, usage.sum())).tolist()
    [11, 55, 33]

    A newcomer that wants 500 of 1000 while another uses 900:

    >>> proportional(np.array([1000, 1000]), np.array([900, 1]), np.array([901, 901])).tolist()
    [998, 1]
    """
    is_limited = quota >= 0
    if (is_limited & ((usage < 0) | (total < 0))).any():
        raise ValueError("a job's own usage or the usage of all is negative")
    residual = (quota - total).astype(_FLOAT)
    ratio = usage.astype(_FLOAT) / np.where(total > 0, total, 1).astype(_FLOAT)
    computed = np.maximum(usage.astype(_FLOAT) + residual * ratio, _FLOAT(1))
    return np.where(is_limited, np.where(total == 0, quota, _to_long(computed)), -1)


def _to_long(value: npt.NDArray[np.float32]) -> Int64s:
    """Return whole numbers as Java casts them: a value that is too large becomes the largest."""
    is_over = value >= _FLOAT(2.0**63)
    return np.where(is_over, np.iinfo(np.int64).max, np.where(is_over, 0, value).astype(np.int64))


def drifted(current: Int64s, reported: Int64s, since_ms: Int64s, most_ms: Int64s) -> Bools:
    """Return which usages Pulsar's broker would report: those that drifted by more than 5 %, or were reported long ago.

    As in Pulsar, a usage of 0 is no drift, so its brokers keep for `most_ms` what they no longer use. Our own rule
    (`division.is_news`) reports it.

    Parameters
    ----------
    current, reported
        Shape (n, 2): usage in messages and bytes, now and when last reported.
    """
    last = reported.astype(_FLOAT)
    with np.errstate(divide="ignore", invalid="ignore"):
        drift = np.abs(current - reported).astype(_FLOAT) * _FLOAT(100) / last
    return (since_ms >= most_ms) | ((current > 0) & (drift > _FLOAT(5))).any(axis=1)


def residual(quota: Int64s, usage: Int64s, total: Int64s) -> Int64s:
    """Return the parts where each job adds all that is unused; over the quota, all scale down alike.

    Examples
    --------
    >>> usage = np.array([10, 50, 30])
    >>> residual(np.full(3, 100), usage, np.full(3, usage.sum())).tolist()
    [20, 60, 40]
    """
    part = _proportion(quota, usage, total)
    return np.where(total <= quota, usage + np.maximum(quota - total, 0), part)


def steal(scope: Int64s, quota: Int64s, usage: Int64s, total: Int64s) -> Int64s:
    """Return the parts by PIP-82's second way: a job that uses less than its counterpart goes half-way towards it.

    The counterpart of a scope's lowest user is the highest, that of the second lowest the second highest, and so on. A
    job gets at least its proportion of the quota, which is how the dominant job gives way once the other uses more.

    Examples
    --------
    PIP-82's example, where two jobs use 80 and 20 of 100: the lower one may rise to 50.

    >>> usage = np.array([80, 20])
    >>> steal(np.zeros(2, dtype=int), np.full(2, 100), usage, np.full(2, usage.sum())).tolist()
    [80, 50]
    """
    order = np.lexsort((np.arange(len(scope)), usage, scope))
    scopes = int(scope.max(initial=-1)) + 1
    laid = Segments.by_key(scope[order], scopes)
    mirror = laid.starts[laid.key] + laid.counts[laid.key] - 1 - laid.rank
    counterpart = np.empty_like(usage)
    counterpart[order] = usage[order][mirror]
    half_way = usage + np.maximum(counterpart - usage, 0) // 2
    part = _proportion(quota, usage, total)
    return np.where(counterpart > usage, np.maximum(part, np.minimum(half_way, quota)), part)


def _proportion(quota: Int64s, usage: Int64s, total: Int64s) -> Int64s:
    """Return ``quota * usage / total``, rounded down; the whole quota while nobody uses anything."""
    used = np.minimum(usage, total)
    whole = quotient(used, total, 2 * FACTOR_BITS)
    part = times(quota, whole >> FACTOR_BITS)
    for _ in range(2):
        # The difference fits in 64 bits, and so is right even where the products overflow.
        part += quota * used - (part + 1) * total >= 0
    return np.where(total == 0, quota, part)
