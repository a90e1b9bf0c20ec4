"""The division by which Pulsar's brokers share a quota: PIP-82's proportional one, as Pulsar's code has it, to the bit.

The arithmetic is Java's float32, and so stands outside the core, which computes in whole numbers. The result of
`proportional` is cut to whole tokens before anything depends on it.

Source: Pulsar's `ResourceQuotaCalculatorImpl` (commit b46d1eb8), whose answers are in `tests/conformance`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

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
