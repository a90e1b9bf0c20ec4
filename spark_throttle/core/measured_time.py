"""Processing time is charged by an estimate, and corrected as soon as it was measured.

What a row takes of processing time is known only after it was processed. So a batch charges each row the *price* of its
namespace, and the epoch after it pins what was measured. Then every bucket that was charged the estimate is charged the
difference, as of that batch: before it earns anything more. A scope may end in debt, by at most what one batch used. A
debt is repaid as a whole, however short the window is: KIP-124 cuts its throttle time to a window, and so forgives what
is beyond it, all the more the shorter the window::

    throttle time = (used - quota) / quota * window = debt / rate

The price of a message is the time of the last batch over its messages, if that is higher than before: it rises at once.
It falls by at most half in the shortest window of the namespace's scopes, or in `_MOST_WINDOW_MS`, so that rows which
are cheap for a while do not buy as many dear ones; whatever they buy is one batch's, and is repaid. Time that the rows
of a batch take together makes nobody dear: each message of the job costs its part of the last batch (`MeanPrices`). A
namespace of which nothing was measured has the mean price of the job, so that new names are no cheaper than old ones.
While nothing was measured at all, only a debt or a quota of 0 holds anything back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.corrections import CorrectedRows, Owed, corrected_balances, in_dimension, with_owed
from spark_throttle.core.limits.token_bucket import full, refill
from spark_throttle.core.names.matching import Matches, match, positions_in
from spark_throttle.core.quota import MOST_NS, CompiledPolicy, Dimension, Int64s, Limits
from spark_throttle.core.time_charges import TimeCharges, sums_of_time
from spark_throttle.core.usage import UsageReport

if TYPE_CHECKING:
    from spark_throttle.core.state import DeciderState

REMEMBERED_MS: Final = 600_000
"""How long the price of an idle namespace is remembered."""

_NO_WINDOW_MS: Final = 1_000
"""The time in which a price falls by half where no scope has a window: their quotas are 0."""

_MOST_WINDOW_MS: Final = 10_000
"""A window that is longer counts as this: else one dear batch, such as the first of a run, counts for many minutes."""

_TIME: Final = Dimension.TIME


@dataclass(frozen=True, slots=True)
class MeanPrices:
    """What a message of the job takes of processing time."""

    common_ns: int = 0
    """Its part of the time that the rows of the last batch took together: every message costs it, whosever it is."""

    specific_ns: int = 0
    """The mean of all other time: the price of a namespace of which nothing was measured; it moves as theirs do."""

    priced_ms: int = 0
    """The paying time at which they were told last."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredTime:
    """What an epoch pins of the batches that it settles; arrays run over the namespaces that pass a limit on time."""

    names: pa.StringArray
    """Each once."""

    measured_ns: Int64s
    estimated_ns: Int64s
    """What the batches charged."""

    messages: Int64s
    """The messages that the time is for."""

    common_ns: Int64s
    """The part of `measured_ns` that the rows of a batch took together."""

    @classmethod
    def none(cls) -> MeasuredTime:
        """Return what is pinned where nothing is settled."""
        nothing = np.zeros(0, dtype=np.int64)
        return cls(pa.array([], pa.string()), nothing, nothing, nothing, nothing)

    @classmethod
    def of(cls, charges: TimeCharges, reports: Sequence[UsageReport], policy: CompiledPolicy) -> MeasuredTime:
        """Return what was measured of batches of a policy, given their reports."""
        names = [pa.array([], pa.string()), charges.names, *(report.names for report in reports)]
        coded = pa.concat_arrays(names).dictionary_encode()
        key, count = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(coded.dictionary)
        charged, admitted = key[: len(charges.names)], key[len(charges.names) :]
        moved = np.concatenate(
            [np.zeros((0, len(Dimension)), dtype=np.int64), *(report.admitted for report in reports)]
        )
        columns = (
            sums_of_time(charged, charges.time_ns, count), sums_of_time(admitted, moved[:, _TIME], count),
            sums_of_time(admitted, moved[:, Dimension.MESSAGES], count),
            sums_of_time(charged, charges.time_ns - charges.specific_ns, count),
        )  # fmt: skip
        is_used = by_row(np.logical_or, np.column_stack(columns) > 0)
        kept = np.flatnonzero(
            is_used & by_row(np.logical_or, _windows_ms(match(coded.dictionary, policy), policy) >= 0)
        )
        return cls(coded.dictionary.take(pa.array(kept)), *(column[kept] for column in columns))

    @property
    def owed_ns(self) -> Int64s:
        """What each namespace used beyond the estimate; negative where it used less."""
        return self.measured_ns - self.estimated_ns

    @property
    def specific_ns(self) -> Int64s:
        """The time of each namespace that was not common to a batch."""
        return self.measured_ns - self.common_ns

    def left_ns(self, reports: Sequence[UsageReport], policy: CompiledPolicy, *, now_ms: int) -> Int64s:
        """Return what is left of the namespaces' own quotas, given the reports of their batches."""
        limits = match(self.names, policy).own_limits(policy)
        left, as_of_ms = full(limits.rate_micro_per_ms, limits.burst_micro), now_ms
        for report in reports:
            if report.own_time_ns is not None:
                at = positions_in(report.names, self.names)
                left[at >= 0, _TIME], as_of_ms = report.own_time_ns[at[at >= 0]], report.as_of_ms
        left = corrected_balances(left, in_dimension(self.owed_ns, _TIME), limits)
        filled: Int64s = refill(left, limits.rate_micro_per_ms, limits.burst_micro, now_ms - as_of_ms)[:, _TIME]
        return filled

    def owed_by_scope(self, policy: CompiledPolicy) -> Int64s:
        """Return what was used beyond the estimate in every shared scope, shape (scopes,)."""
        return time_by_scope(self.names, self.measured_ns, policy) - time_by_scope(
            self.names, self.estimated_ns, policy
        )


def time_by_scope(names: pa.StringArray, time_ns: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return the sums of namespaces' times, or of messages, by shared scope, shape (scopes,)."""
    total = np.zeros(len(policy.shared) + 1, dtype=np.int64)  # with one more position for no scope
    for scope in match(names, policy).shared_scope.T:
        total += sums_of_time(scope % len(total), time_ns, len(total))
    return total[:-1]


def corrected(state: DeciderState, measured: MeasuredTime, policy: CompiledPolicy) -> DeciderState:
    """Return the state that the last batch left under a policy, with what was measured in place of the estimate."""
    if not len(measured.names):
        return state
    owed = Owed(_TIME, measured.names, measured.owed_ns, measured.owed_by_scope(policy))
    state = with_owed(state, owed, policy)
    flows = state.flows
    at, matches = positions_in(flows.names, measured.names), match(measured.names, policy)
    price, priced_ms = flows.price_ns.copy(), flows.priced_ms.copy()
    tells, window_ms = measured.messages > 0, _shortest_ms(matches, policy)
    moved = moved_prices(
        price[at], measured.specific_ns, measured.messages, window_ms, passed_ms=state.advanced_to_ms - priced_ms[at]
    )
    price[at] = np.where(tells, moved, price[at])
    priced_ms[at] = np.where(tells, state.advanced_to_ms, priced_ms[at])
    prices = _moved_means(state.prices, measured, int(window_ms.min()), now_ms=state.advanced_to_ms)
    # Nobody is ahead for what the rows of a batch took together beyond the price of that.
    most = MOST_NS // max(state.prices.common_ns, 1)
    common_ns = np.minimum(measured.common_ns, np.minimum(measured.messages, most) * state.prices.common_ns)
    fair = CorrectedRows.of(
        _TIME, at, measured.messages, measured.estimated_ns, measured.specific_ns + common_ns
    ).with_more(state.corrected)
    return replace(state, prices=prices, flows=replace(flows, price_ns=price, priced_ms=priced_ms), corrected=fair)


def _moved_means(prices: MeanPrices, measured: MeasuredTime, window_ms: int, *, now_ms: int) -> MeanPrices:
    """Return the prices of the job's messages after a batch.

    The common one is the last batch's. Batches that take long together, such as the first of a run, are rare, and one
    that is followed slowly would be the larger part of every price: then time would be divided by messages.
    """
    columns = (measured.common_ns, measured.specific_ns, measured.messages)
    one = np.zeros(len(measured.names), dtype=np.int64)
    common_ns, specific_ns, messages = (sums_of_time(one, column, 1) for column in columns)
    if not messages[0]:
        return prices
    moved_ns = moved_prices(
        np.array([prices.specific_ns]), specific_ns, messages, np.array([window_ms]),
        passed_ms=np.array([now_ms - prices.priced_ms]),
    )  # fmt: skip
    return MeanPrices(-int(-common_ns[0] // messages[0]), int(moved_ns[0]), now_ms)


def moved_prices(
    price_ns: Int64s, time_ns: Int64s, messages: Int64s, window_ms: Int64s, *, passed_ms: Int64s
) -> Int64s:
    """Return the prices of messages after a batch.

    Parameters
    ----------
    time_ns, messages
        What was measured, and for how many messages.
    window_ms
        The time in which each price falls by half at most.
    passed_ms
        The time since each was told last.

    Examples
    --------
    Ten messages took 1 s. A second later, in a window of 2 s, a hundred take as long:

    >>> took_ns, window_ms = np.array([10**9]), np.array([2_000])
    >>> price = moved_prices(np.array([0]), took_ns, np.array([10]), window_ms, passed_ms=np.array([0]))
    >>> price.tolist(), moved_prices(price, took_ns, np.array([100]), window_ms, passed_ms=np.array([1_000])).tolist()
    ([100000000], [75000000])
    """
    told = np.maximum(-(-time_ns // np.maximum(messages, 1)), 1)  # 0 is the price of which nothing is known
    twice_ms, passed_ms = 2 * window_ms, np.clip(passed_ms, 0, window_ms)
    whole, rest = np.divmod(price_ns, twice_ms)
    return np.maximum(told, price_ns - whole * passed_ms - rest * passed_ms // twice_ms)


def _windows_ms(matches: Matches, policy: CompiledPolicy) -> Int64s:
    """Return the windows of the limits on time of namespaces' scopes, their own the first; -1 where there is none."""
    own = _window_ms(matches.own_limits(policy))
    shared = np.append(_window_ms(policy.shared), -1)[matches.shared_scope]
    return np.column_stack([own, shared])


def _shortest_ms(matches: Matches, policy: CompiledPolicy) -> Int64s:
    windows_ms = _windows_ms(matches, policy)
    shortest_ms = by_row(np.minimum, np.where(windows_ms > 0, windows_ms, _MOST_WINDOW_MS + 1))
    return np.where(shortest_ms > _MOST_WINDOW_MS, _NO_WINDOW_MS, shortest_ms)


def _window_ms(limits: Limits) -> Int64s:
    """Return the time in which the buckets of time fill, 0 for a rate of 0, -1 where there is no limit."""
    rate, burst = limits.rate_micro_per_ms[:, _TIME], limits.burst_micro[:, _TIME]
    fills_ms = np.clip(burst // np.maximum(rate, 1), 1, _MOST_WINDOW_MS)
    return np.where(rate > 0, fills_ms, rate)
