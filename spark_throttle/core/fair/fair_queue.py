"""Start-time fair queueing over the dominant of two resources: which row goes next when a scope runs short.

A *domain* is the shared scope whose tokens a flow competes for: its resource group if that has a limit,
else its tenant, else the job. Every flow has a virtual clock per resource, kept relative to the virtual time of the
scope in which it competes: its *lead*. Clocks run in one *common time* in all scopes (`fair_order`): a message takes a
thousandth of a second, and the bytes of a scope count in proportion to its own rates. Serving `n` messages of a flow of
weight `w` advances its clock by `n / (rate * w)` seconds of that time, and serving bytes likewise. The start tag of a
message is the larger of the two clocks before it: the weighted dominant share (DRFQ). Messages are served in the order
of their start tags, so two flows `f` and `g` that stay backlogged get service that differs by at most one message of
each::

    |S_f / w_f - S_g / w_g| <= l_f / w_f + l_g / w_g          (start-time fair queueing, Goyal et al. 1996)

1. Base: both clocks, the lesser one at most `MEMORY_SECONDS` behind the virtual time, shifted so that the larger is
   not behind it. An idle flow returns without credit and without penalty. Memory of the lesser clock keeps flows that
   alternate between many small and few large messages from being overcharged. The clocks that count are those of the
   resources that the scopes running short limit, or, if no scope runs short, that the domain limits.
2. Tag of a message: the larger, over the resources, of the base plus the service before the message in this batch.
3. After the batch: the virtual time of a scope is the largest tag that was served in it. A lead is a finish time less
   the virtual time of the scope that, of all scopes that the flow passes, stopped it first or would have.
4. A scope that held no flow back, and owes nothing, forgets leads: its busy period is over.

Flows of several domains may share the tokens of a wider scope: groups share those of the job, or of a tenant with
namespaces in several groups. Rows go in the order of their tags over their domains' weights: while the wider scope is
short, a flow is served by its weight times its domain's. The dominant resource is determined by the rates of the widest
scope that runs short.

All values are integers, in units of ``2**-30`` seconds of the common time (``_vt``). Tags are rounded down and finish
times rounded up, so that no flow is ever served for free; the error is one unit per batch, a millionth of a message.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.quota import MAX_SIZE_BYTES, Bools, Int64s

VT_BITS = 30
VT_SECOND = 1 << VT_BITS
"""The number of virtual time units in a second."""

MEMORY_SECONDS = 2
"""How far behind the virtual time the lesser of two clocks is remembered, in seconds of the scope's own rate."""

VT_MAX = 1 << 60
"""The value at which virtual time saturates: 2**30 seconds of service in one batch."""

_WHOLE_TOKENS_FROM = 1 << 30
"""The rate, in millitokens per second, from which service is counted in whole tokens, to stay inside int64."""

_LOW_25 = (1 << 25) - 1


def _pace(rate_micro_per_ms: Int64s, weight: Int64s) -> tuple[Bools, Int64s]:
    """Return whether service is counted in whole tokens (else in thousandths), and the amount of it in a second.

    That amount is below 2**50: a rate is at most 2**50, a weight at most 1000, and a large rate is divided by 1000.
    """
    in_tokens = rate_micro_per_ms >= _WHOLE_TOKENS_FROM
    return in_tokens, np.where(in_tokens, rate_micro_per_ms // 1000, np.maximum(rate_micro_per_ms, 1)) * weight


def service_units(rate_micro_per_ms: Int64s, weight: Int64s) -> tuple[Int64s, Int64s]:
    """Return the service of a token, and that of a second of virtual time, at `rate * weight`.

    A token is no service where the rate is 0 or unlimited, so no virtual time passes there. A rate is at most 2**50, a
    weight at most 1000.
    """
    in_tokens, second = _pace(rate_micro_per_ms, weight)
    return np.where(rate_micro_per_ms <= 0, 0, np.where(in_tokens, 1, 1000)), second


def virtual_time(tokens: Int64s, token_service: Int64s, second_service: Int64s, *, round_up: bool = False) -> Int64s:
    """Return the virtual time that serving `tokens` takes, given the `service_units` of its rate.

    `tokens` is at most 2**53 (a burst and a message).

    Examples
    --------
    50 tokens of a flow of weight 2, at 100 tokens per second, take a quarter of a second:

    >>> virtual_time(np.array([50]), *service_units(np.array([100_000]), np.array([2]))) / VT_SECOND
    array([0.25])
    """
    return _quotient(tokens * token_service, second_service, round_up=round_up)


def virtual_time_of(thousandths: Int64s, rate_micro_per_ms: Int64s, weight: Int64s) -> Int64s:
    """Return the `virtual_time` of thousandths of a token, rounded down."""
    in_tokens, divisor = _pace(rate_micro_per_ms, weight)
    service = np.where(in_tokens, thousandths // 1000, thousandths)
    return np.where(rate_micro_per_ms <= 0, 0, _quotient(service, divisor))


def _quotient(service: Int64s, divisor: Int64s, *, round_up: bool = False) -> Int64s:
    """Return ``service * 2**30 / divisor``, at most `VT_MAX`."""
    if int(service.max(initial=0)) >> (63 - VT_BITS) == 0:  # the product fits in int64
        product = service << VT_BITS
        result = product // divisor
        if round_up:
            result += result * divisor < product
        return np.minimum(result, VT_MAX)
    whole = service // divisor
    rest = service - whole * divisor
    result = np.where(whole >= VT_SECOND, VT_MAX, whole << VT_BITS)
    # A rest is less than its divisor, so the number of quotient bits that can be computed in one step is the number
    # that the largest divisor leaves free of 63: 30 bits in one step, 15 in two, or 10 in three.
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
    """Return the least service that may have taken a virtual time, in thousandths; at most `MAX_SIZE_BYTES` tokens.

    A lead is the difference between a finish time that was rounded up and a tag that was rounded down, so it is at most
    two units too long. Where the rate is large, a unit is many tokens; if the rate becomes small, these would be owed
    for hours.

    Examples
    --------
    A quarter of a second of a flow of weight 2 at 100 tokens per second, and a lead that may be due to rounding alone:

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
    """Return ``(part * divisor - less) / 2**30``, rounded down; `part` is at most 2**30, the product at least `less`.

    It is computed from 30 bits of `part` and 25 bits of `divisor` at a time, so every product stays below 2**60.
    """
    high, low = part * (divisor >> 25), part * (divisor & _LOW_25)
    return (high >> 5) + ((((high & 31) << 25) + low - less) >> VT_BITS)


@dataclass(frozen=True, slots=True, eq=False)
class ServiceCurve:
    """The number of tokens that flows are served by a virtual time: the inverse of `virtual_time`.

    Examples
    --------
    The flow of the example of `virtual_time`, with a clock that starts at half a second:

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
    """The whole seconds of virtual time after which `most` is certainly served; -1 where time does not pass."""

    @classmethod
    def of(
        cls, rate_micro_per_ms: Int64s, weight: Int64s, most: Int64s, clock_vt: Int64s, is_limited: Bools
    ) -> ServiceCurve:
        """Return the curves of flows whose clocks stand at `clock_vt` and that are served at most `most` tokens.

        Where the resource is not limited, there is no clock: all of `most` is served at any time.
        """
        in_tokens, divisor = _pace(rate_micro_per_ms, weight)
        most_service = np.where(in_tokens, most, most * 1000)
        most_seconds = np.where(is_limited & (rate_micro_per_ms > 0), most_service // divisor, -1)
        return cls(np.where(is_limited, clock_vt, 0), in_tokens, divisor, most, most_service, most_seconds)

    def take(self, at: Int64s) -> ServiceCurve:
        """Return the curves of the flows at `at`."""
        return ServiceCurve(
            self.clock_vt[at], self.in_tokens[at], self.divisor[at], self.most[at], self.most_service[at],
            self.most_seconds[at],
        )  # fmt: skip

    def within(self, tag: Int64s) -> Int64s:
        """Return the most tokens after which the clock is at most `tag`, which is not negative; -1 if no number is.

        It holds that ``floor(s * 2**30 / d) <= v`` if and only if ``s <= floor(((v + 1) * d - 1) / 2**30)``.
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
    """Return the clocks with which flows enter a batch, relative to the virtual time.

    Parameters
    ----------
    lead_vt
        Shape (n, 2): the leads of the flows.
    is_counted
        Shape (n, 2): whether the resource counts in the order; one that does not has no clock.
    memory_vt
        Shape (n,): how far behind the virtual time a clock is remembered.

    Examples
    --------
    An idle flow enters at the virtual time; a flow that is ahead keeps both clocks, the lesser one as far back as it is
    remembered:

    >>> both = np.array([[True, True], [True, True]])
    >>> base_clocks(np.array([[-5, -7], [9, -7]]), both, np.array([10, 6])).tolist()
    [[0, -2], [9, -6]]
    """
    base = np.maximum(lead_vt, -memory_vt[:, None])
    dominant = by_row(np.maximum, np.where(is_counted, base, -memory_vt[:, None]))
    shifted = base + np.maximum(0, -dominant)[:, None]
    return np.where(is_counted, shifted, 0)
