"""Start-time fair queueing over the dominant of two resources: who goes next when a scope runs short.

A *domain* is the shared scope whose tokens a flow competes for: its resource group if that has a limit,
else its tenant, else the job. Every flow has a virtual clock a resource, in units of a `VT_SECOND`th of a
second of the domain's own rate, kept relative to the domain's virtual time: its *lead*. Serving `n`
messages of weight `w` advances it by `n / (rate * w)` seconds, serving bytes likewise, and the start tag
of a message is the larger of the two clocks before it: the weighted dominant share (DRFQ). Messages
are served in the order of their start tags, so two flows `f` and `g` that stay backlogged get service that
differs by at most one message of each::

    |S_f / w_f - S_g / w_g| <= l_f / w_f + l_g / w_g          (start-time fair queueing, Goyal et al. 1996)

1. base: both clocks, the lesser one at most `DELTA` behind the virtual time, shifted so that the larger is
   not behind it. An idle flow returns without credit and without penalty. Memory of the lesser clock keeps flows that
   alternate between many small and few large messages from being overcharged.
2. tag of a message: max over the resources of base + what goes before it in this batch.
3. after the batch: the virtual time is the largest tag that was served; leads are finish times less that.
4. a domain that held nobody back forgets its leads: its busy period is over.

All of it is integers. Tags are floored and finish times rounded up, so that no flow is ever served for free;
the error is one unit a batch, a billionth of a second of the domain's rate.
"""

from __future__ import annotations

import numpy as np

from spark_throttle.core.quota import Int64s

VT_BITS = 30
VT_SECOND = 1 << VT_BITS
"""Virtual time units in a second of a domain's rate."""

DELTA = 2 * VT_SECOND
"""How far behind the virtual time the lesser of two clocks is remembered."""

VT_MAX = 1 << 60
"""Where virtual time saturates: 2**30 seconds of service in one batch."""

_WHOLE_TOKENS_FROM = 1 << 30
"""Rates (in millitokens a second) from which service is counted in tokens, to stay inside int64."""


def virtual_time(tokens: Int64s, rate_micro_per_ms: Int64s, weight: Int64s, *, round_up: bool = False) -> Int64s:
    """Return the virtual time that serving `tokens` takes at `rate * weight`; 0 at a rate of 0 or without limit.

    `tokens` is at most 2**53 (a burst and a message), a rate at most 2**50 and a weight at most 1000.

    Examples
    --------
    50 tokens of a flow of weight 2 at 100 tokens a second are a quarter of a second:

    >>> virtual_time(np.array([50]), np.array([100_000]), np.array([2])) / VT_SECOND
    array([0.25])
    """
    in_tokens = rate_micro_per_ms >= _WHOLE_TOKENS_FROM
    divisor = np.where(in_tokens, rate_micro_per_ms // 1000, np.maximum(rate_micro_per_ms, 1)) * weight
    service = np.where(in_tokens, tokens, tokens * 1000)
    whole, rest = np.divmod(service, divisor)
    saturated = whole >= VT_SECOND
    result = np.where(saturated, VT_MAX, whole << VT_BITS)
    fraction = np.zeros_like(result)
    # A divisor may take 52 bits, so 30 bits of quotient are drawn 10 at a time.
    for shift in (20, 10, 0):
        digit, rest = np.divmod(rest << 10, divisor)
        fraction += digit << shift
    if round_up:
        fraction += rest > 0
    return np.where(rate_micro_per_ms <= 0, 0, np.where(saturated, VT_MAX, np.minimum(result + fraction, VT_MAX)))


def base_clocks(lead: Int64s, is_limited: np.ndarray) -> Int64s:
    """Return the clocks at which flows enter a batch, relative to the virtual time.

    Parameters
    ----------
    lead
        Shape (n, 2).
    is_limited
        Shape (n, 2): whether the flow's domain limits the resource; the other resource has no clock.

    Examples
    --------
    An idle flow enters at the virtual time; a flow ahead keeps both clocks:

    >>> both = np.array([[True, True], [True, True]])
    >>> base_clocks(np.array([[-5, -7], [9, -7]]), both).tolist()
    [[0, -2], [9, -7]]
    """
    base = np.maximum(lead, -DELTA)
    dominant = np.where(is_limited, base, -DELTA).max(axis=1)
    shifted = base + np.maximum(0, -dominant)[:, None]
    return np.where(is_limited, shifted, 0)
