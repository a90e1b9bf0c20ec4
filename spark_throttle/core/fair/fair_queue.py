"""Start-time fair queueing over the dominant of two resources: who goes next when a scope runs short.

A *domain* is the shared scope whose tokens a flow competes for: its resource group if that has a limit,
else its tenant, else the job. Every flow has a virtual clock a resource, kept relative to the virtual time of what it
competes for: its *lead*. Clocks run in one *common time* in all scopes (`fair_order`): a message takes a thousandth of
a second, and the bytes of a scope count in proportion to its own rates. Serving `n` messages of weight `w` advances a
clock by `n / (rate * w)` seconds of it, serving bytes likewise, and the start tag of a message is the larger of the two
clocks before it: the weighted dominant share (DRFQ). Messages are served in the order of their start tags, so two flows
`f` and `g` that stay backlogged get service that differs by at most one message of each::

    |S_f / w_f - S_g / w_g| <= l_f / w_f + l_g / w_g          (start-time fair queueing, Goyal et al. 1996)

1. base: both clocks, the lesser one at most `MEMORY_SECONDS` behind the virtual time, shifted so that the larger is
   not behind it. An idle flow returns without credit and without penalty. Memory of the lesser clock keeps flows that
   alternate between many small and few large messages from being overcharged. The clocks count of the resources that
   scopes which run short limit; where none is short, of the domain's.
2. tag of a message: max over the resources of base + what goes before it in this batch.
3. after the batch: the virtual time of a scope is the largest tag that was served in it; a lead is a finish time less
   that of the scope that stopped the flow first, or would have, of all that it passes.
4. a scope that held nobody back, and owes nothing, forgets leads: its busy period is over.

Flows of several domains may share the tokens of a wider scope: groups those of the job, or of a tenant with namespaces
in several groups. Rows go in the order of their tags over their domains' weights: while the wider scope is short, a
flow is served by its weight times its domain's. Which resource dominates is asked by the rates of the widest scope that
runs short in truth: one that is *loose* has enough for all that others let pass (`lending.shard_parts` finds them).

All of it is integers, in units of ``2**-30`` seconds of the common time (``_vt``). Tags are floored and finish times
rounded up, so that no flow is ever served for free; the error is one unit a batch, a millionth of a message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.quota import MAX_SIZE_BYTES, Bools, Int64s

VT_BITS = 30
VT_SECOND = 1 << VT_BITS
"""Virtual time units in a second."""

MEMORY_SECONDS = 2
"""How far behind the virtual time the lesser of two clocks is remembered, in seconds of the scope's own rate."""

VT_MAX = 1 << 60
"""Where virtual time saturates: 2**30 seconds of service in one batch."""

_WHOLE_TOKENS_FROM = 1 << 30
"""Rates (in millitokens a second) from which service is counted in tokens, to stay inside int64."""

_LOW_25 = (1 << 25) - 1


def _pace(rate_micro_per_ms: Int64s, weight: Int64s) -> tuple[Bools, Int64s]:
    """Return whether service is counted in whole tokens (else in thousandths), and how much of it a second takes.

    The latter is below 2**50: a rate is at most 2**50, a weight at most 1000, and a large rate is divided by 1000.
    """
    in_tokens = rate_micro_per_ms >= _WHOLE_TOKENS_FROM
    return in_tokens, np.where(in_tokens, rate_micro_per_ms // 1000, np.maximum(rate_micro_per_ms, 1)) * weight


def virtual_time(tokens: Int64s, rate_micro_per_ms: Int64s, weight: Int64s, *, round_up: bool = False) -> Int64s:
    """Return the virtual time that serving `tokens` takes at `rate * weight`; 0 at a rate of 0 or without limit.

    `tokens` is at most 2**53 (a burst and a message), a rate at most 2**50 and a weight at most 1000.

    Examples
    --------
    50 tokens of a flow of weight 2 at 100 tokens a second are a quarter of a second:

    >>> virtual_time(np.array([50]), np.array([100_000]), np.array([2])) / VT_SECOND
    array([0.25])
    """
    in_tokens, divisor = _pace(rate_micro_per_ms, weight)
    service = np.where(in_tokens, tokens, tokens * 1000)
    return np.where(rate_micro_per_ms <= 0, 0, _quotient(service, divisor, round_up=round_up))


def virtual_time_of(thousandths: Int64s, rate_micro_per_ms: Int64s, weight: Int64s) -> Int64s:
    """Return `virtual_time` of thousandths of a token, rounded down."""
    in_tokens, divisor = _pace(rate_micro_per_ms, weight)
    service = np.where(in_tokens, thousandths // 1000, thousandths)
    return np.where(rate_micro_per_ms <= 0, 0, _quotient(service, divisor, round_up=False))


def _quotient(service: Int64s, divisor: Int64s, *, round_up: bool) -> Int64s:
    """Return ``service * 2**30 / divisor``, at most `VT_MAX`."""
    whole = service // divisor
    rest = service - whole * divisor
    result = np.where(whole >= VT_SECOND, VT_MAX, whole << VT_BITS)
    # A rest is less than its divisor, so that as many bits of the quotient can be drawn at once as the largest divisor
    # leaves free in 63: 30 at once, 15 twice, or 10 three times.
    free = 63 - int(divisor.max(initial=1)).bit_length()
    bits = next(bits for bits in (30, 15, 10) if bits <= free)
    for shift in range(VT_BITS - bits, -1, -bits):
        digit = (rest << bits) // divisor
        rest = (rest << bits) - digit * divisor
        result += digit << shift
    if round_up:
        result += rest > 0
    return np.minimum(result, VT_MAX)


def least_service(virtual: Int64s, rate_micro_per_ms: Int64s, weight: Int64s) -> Int64s:
    """Return how many thousandths of a token took a virtual time at the least; at most `MAX_SIZE_BYTES` tokens.

    A lead is the difference of a finish time that was rounded up and a tag that was rounded down, two units too long
    at the most. Where a rate is large, a unit is many tokens, which would be owed for hours where it is small.

    Examples
    --------
    A quarter of a second of a flow of weight 2 at 100 tokens a second, and a lead that rounding alone may have made:

    >>> least_service(np.array([VT_SECOND // 4 + 2, 2]), np.array([100_000]), np.array([2])).tolist()
    [50000, 0]
    """
    in_tokens, divisor = _pace(rate_micro_per_ms, weight)
    exact = np.maximum(virtual - 2, 0)
    most = np.where(in_tokens, MAX_SIZE_BYTES, MAX_SIZE_BYTES * 1000)
    seconds = np.minimum(exact >> VT_BITS, most // divisor + 1)
    service = np.minimum(seconds * divisor + _part_of_second(exact & (VT_SECOND - 1), divisor, 0), most)
    return np.where(rate_micro_per_ms <= 0, 0, np.where(in_tokens, service * 1000, service))


def _part_of_second(part: Int64s, divisor: Int64s, less: int) -> Int64s:
    """Return ``(part * divisor - less) / 2**30``, rounded down; `part` is at most 2**30, and a product at least `less`.

    It is taken from 30 bits of `part` and 25 of `divisor` at a time: every product stays below 2**60.
    """
    high, low = part * (divisor >> 25), part * (divisor & _LOW_25)
    return (high >> 5) + ((((high & 31) << 25) + low - less) >> VT_BITS)


@dataclass(frozen=True, slots=True, eq=False)
class ServiceCurve:
    """How many tokens flows are served by a virtual time: the inverse of `virtual_time`.

    Examples
    --------
    A clock that starts at half a second, then as in the example of `virtual_time`:

    >>> one = lambda value: np.array([value])
    >>> served = ServiceCurve.of(one(100_000), one(2), one(1_000), one(VT_SECOND // 2), one(True))
    >>> [served.within(one(at)).tolist() for at in (0, VT_SECOND // 4 * 3, VT_MAX * 2)]
    [[-1], [50], [1000]]
    """

    clock_vt: Int64s
    in_tokens: Bools
    divisor: Int64s
    most: Int64s
    most_service: Int64s
    most_seconds: Int64s
    """Whole seconds of virtual time after which `most` is certainly served; -1 where time does not pass."""

    @classmethod
    def of(
        cls, rate_micro_per_ms: Int64s, weight: Int64s, most: Int64s, clock_vt: Int64s, is_limited: Bools
    ) -> ServiceCurve:
        """Prepare to ask about flows whose clocks stand at `clock_vt` and that are served `most` at the most.

        Where the resource is not limited there is no clock: all of `most` is served at any time.
        """
        in_tokens, divisor = _pace(rate_micro_per_ms, weight)
        most_service = np.where(in_tokens, most, most * 1000)
        most_seconds = np.where(is_limited & (rate_micro_per_ms > 0), most_service // divisor, -1)
        return cls(np.where(is_limited, clock_vt, 0), in_tokens, divisor, most, most_service, most_seconds)

    def take(self, at: Int64s) -> ServiceCurve:
        """Return what is prepared for the flows at `at`."""
        return ServiceCurve(
            self.clock_vt[at], self.in_tokens[at], self.divisor[at], self.most[at], self.most_service[at],
            self.most_seconds[at],
        )  # fmt: skip

    def within(self, tag: Int64s) -> Int64s:
        """Return the most tokens after which the clock is at most `tag`, which is not negative; -1 for none.

        For ``floor(s * 2**30 / d) <= v`` just when ``s <= floor(((v + 1) * d - 1) / 2**30)``.
        """
        virtual = tag - self.clock_vt
        after = np.maximum(virtual, 0) + 1
        seconds, part = after >> VT_BITS, after & (VT_SECOND - 1)
        fraction = _part_of_second(part, self.divisor, 1)
        is_over = (seconds > self.most_seconds) | (virtual >= VT_MAX)
        service = np.minimum(np.where(is_over, 0, seconds) * self.divisor + fraction, self.most_service)
        tokens = np.where(is_over, self.most, np.where(self.in_tokens, service, service // 1000))
        return np.where(virtual < 0, -1, tokens)


def base_clocks(lead_vt: Int64s, is_counted: Bools, memory_vt: Int64s) -> Int64s:
    """Return the clocks at which flows enter a batch, relative to the virtual time.

    Parameters
    ----------
    lead
        Shape (n, 2).
    is_counted
        Shape (n, 2): whether the resource counts in the order; the other one has no clock.
    memory
        Shape (n,): how far behind the virtual time a clock is remembered.

    Examples
    --------
    An idle flow enters at the virtual time; a flow ahead keeps both clocks, the lesser one as far as it is remembered:

    >>> both = np.array([[True, True], [True, True]])
    >>> base_clocks(np.array([[-5, -7], [9, -7]]), both, np.array([10, 6])).tolist()
    [[0, -2], [9, -6]]
    """
    base = np.maximum(lead_vt, -memory_vt[:, None])
    dominant = by_row(np.maximum, np.where(is_counted, base, -memory_vt[:, None]))
    shifted = base + np.maximum(0, -dominant)[:, None]
    return np.where(is_counted, shifted, 0)
