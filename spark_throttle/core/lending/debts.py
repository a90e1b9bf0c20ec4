"""What each flow owes of its shard's account, and which flows are too far ahead to take part in a division.

A scope's virtual time is the service that a flow of weight 1 has been due. A shard's account is how far its flows
together are ahead of that time; a flow's lead is how far it is ahead of its shard's own virtual time. The shard's time
lags behind the scope's where one flow took the tokens that were due to the shard's other flows: a large message of a
new flow takes all that the shard was lent. So the account and the leads determine the lag, and with it each flow's
*place*::

    account = sum over the flows of place_f,     place_f = ahead_f - weight_f * lag

The flows that count in a shard are those that would not have had all they want by the scope's virtual time. A flow owes
its place. A flow that is behind has a credit, but no flow may owe less than nothing: the division begins at an earlier
virtual time, at which the flow that is furthest behind owes nothing, and every other flow owes that much more.

Whether a flow takes part is decided by time, not by tokens: how long its scope takes to earn what the flow owes. Flows
owe time in the order in which the shard itself serves them: a flow that is further ahead owes more. So the flow that a
division leaves out is never the one whose turn it is in its shard. In a scope that limits both resources, places are
times, too (`debts_in_time`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import (
    Segments,
    beside,
    by_row,
    in_order,
    largest,
    numbers,
    once,
    rows_of,
    smallest,
    sums,
    total_in_order,
)
from spark_throttle.core.lending.scope_time import ScopeTime
from spark_throttle.core.quota import Bools, Int64s
from spark_throttle.core.state import NO_BOUND

NOBODY = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Contestants:
    """The flows that divide one level of scopes; arrays run over them."""

    demand: Int64s
    """Shape (n, 2): the tokens that each flow claims."""

    ahead: Int64s
    """Shape (n, 2): how far each flow is ahead of its shard's virtual time."""

    weight: Int64s
    scope: Int64s
    seat: Int64s
    """The flow's shard and scope as one number: ``shard * scopes + scope``."""

    @property
    def wants(self) -> Bools:
        """Whether the flow claims any tokens."""
        return by_row(np.logical_or, self.demand > 0)

    def take(self, at: Int64s) -> Contestants:
        """Return the flows at the positions `at`."""
        demand, ahead = rows_of(self.demand, at), rows_of(self.ahead, at)
        return Contestants(demand, ahead, self.weight[at], self.scope[at], self.seat[at])

    def places(self, account: Int64s) -> tuple[Int64s, Bools]:
        """Return the flows' places, and whether each flow counts; both have the shape (n, k) of `demand` and `ahead`.

        Parameters
        ----------
        account
            Shape (seats, k): how far each seat is ahead.

        Examples
        --------
        A large message of the first flow took the 3,000 bytes that its neighbour was due. The third flow is alone in
        its shard:

        >>> flows = Contestants(
        ...     demand=np.array([[0], [9_000], [9_000]]),
        ...     ahead=np.array([[30_000], [0], [500]]),
        ...     weight=np.array([1, 1, 1]),
        ...     scope=np.array([0, 0, 0]),
        ...     seat=np.array([0, 0, 1]),
        ... )
        >>> flows.places(np.array([[24_000], [200]]))[0][:, 0].tolist()
        [27000, -3000, 200]
        """
        columns = [self._places(*each) for each in zip(self.demand.T, self.ahead.T, account.T, strict=True)]
        place, counts = zip(*columns, strict=True)
        return beside(*place), beside(*counts)

    def _places(self, demand: Int64s, ahead: Int64s, account: Int64s) -> tuple[Int64s, Bools]:
        """Return the places, and whether each flow counts, in one resource.

        A flow counts while the lag is less than the lag at which it would have had all it wants. To leave out the flows
        that have had it never makes the lag smaller. So the flows that count are the last ones in the order of those
        lags, from the first flow whose own lag is more than the lag of it and all flows behind it.
        """
        wanted, seats = demand + ahead, len(account)
        counts = wanted > 0
        enough = wanted if self.weight.max(initial=1) == 1 else (wanted + (self.weight - 1)) // self.weight
        lag = (sums(self.seat, ahead, seats) - account) // np.maximum(sums(self.seat, self.weight * counts, seats), 1)
        is_settled = smallest(self.seat, np.where(counts, enough, NOBODY), seats, most=NOBODY) > lag
        if not is_settled.all():
            at = np.flatnonzero(counts & ~is_settled[self.seat])
            counts[at], found = _counting(self.seat[at], enough[at], ahead[at], self.weight[at], account)
            lag = np.where(is_settled, lag, found)
        if not lag.any():
            return ahead * counts, counts
        return (ahead - lag[self.seat] * self.weight) * counts, counts


def _counting(seat: Int64s, enough: Int64s, ahead: Int64s, weight: Int64s, account: Int64s) -> tuple[Bools, Int64s]:
    """Return which flows count, and the lag of each seat, given the lag at which each flow has enough, above 0."""
    by_lag = in_order(enough)
    seats = Segments.by_key(seat[by_lag], len(account))
    order, of = by_lag[seats.order], seats.key
    end = (seats.starts + seats.counts)[of]
    of_all, ahead_of_all = (total_in_order(each, order) for each in (weight, ahead))
    weights, ahead_of_rest = of_all[end] - of_all[:-1], ahead_of_all[end] - ahead_of_all[:-1]
    lag = (ahead_of_rest - account[of]) // weights
    first = seats.first(enough[order] > lag)
    counts = np.empty_like(by_lag, dtype=np.bool_)
    counts[order] = seats.rank >= first[of]
    return counts, np.append(lag, 0)[np.minimum(seats.starts + first, len(lag))]


@dataclass(frozen=True, slots=True, eq=False)
class Debts:
    """What flows owe; arrays run over the flows of one level of scopes."""

    tokens: Int64s
    """Shape (n, 2): the tokens that each flow owes."""

    time: Int64s
    """The time in which the flow's scope earns what the flow owes."""

    def replaced(self, at: Int64s, debts: Debts) -> Debts:
        """Return these debts, with `debts` in place of those at the positions `at`."""
        tokens, time = self.tokens.copy(), self.time.copy()
        tokens[at], time[at] = debts.tokens, debts.time
        return Debts(tokens, time)

    @classmethod
    def of(
        cls, flows: Contestants, account: Int64s, most_set_back: Int64s, scope_time: ScopeTime
    ) -> tuple[Debts, Int64s]:
        """Return what flows owe, and how much further the seats are ahead of the time at which the division begins.

        Parameters
        ----------
        account
            Shape (seats, 2): how far each seat is ahead of its scope's virtual time; not negative.
        most_set_back
            Shape (scopes, 2): how much earlier than the scope's virtual time a division may begin.

        Returns
        -------
        tuple of Debts and Int64s
            The second has the shape (seats, 2).
        """
        place, counts = flows.places(account)
        weight, wants, scope = flows.weight[:, None], flows.wants, flows.scope
        if place.min(initial=0) >= 0:  # nobody is behind; the place of one that does not count is 0
            time = scope_time.of(place, scope) if place.any() else np.zeros_like(scope)
            return cls(place, time), np.zeros_like(account)
        set_back = largest(scope, -(place // weight) * wants[:, None], len(most_set_back), least=0)
        set_back = np.minimum(set_back, most_set_back)
        back = rows_of(set_back, once(scope)) * weight * counts
        tokens = np.maximum(place + back, 0) * counts
        scopes, seats = len(most_set_back), len(account)
        is_empty = numbers(flows.seat, seats) == 0
        of_empty = np.where(account > 0, set_back.take(np.arange(seats) % scopes, axis=0), 0)
        added = np.where(is_empty[:, None], of_empty, sums(flows.seat, back, seats))
        return cls(tokens, scope_time.of(tokens, scope)), added


def ahead_bound(ahead_milli: Int64s, time: Int64s, seat: Int64s, is_out: Bools, takes_part: Bools) -> Int64s:
    """Return the bounds on how far ahead a flow may be, which separate the flows that take part from those left out.

    Parameters
    ----------
    ahead_milli
        Shape (n, 2): how far each flow is ahead for its weight.
    time
        The time in which its scope earns what each flow that is left out is ahead, for each resource.
    takes_part
        Whether, for every seat, any flow that wants tokens takes part.

    Returns
    -------
    Int64s
        Shape (seats, 2): the bounds for a flow of weight 1; `NO_BOUND` where there is none.
    """
    seats, out, stays = len(takes_part), np.flatnonzero(is_out), np.flatnonzero(~is_out)
    is_dominant = time == by_row(np.maximum, time)[:, None]
    bound = -largest(
        seat[out],
        -np.where(is_dominant, rows_of(ahead_milli, out), NO_BOUND),
        seats,
        least=-NO_BOUND,
    )
    most = largest(seat[stays], rows_of(ahead_milli, stays), seats, least=-1)
    between = np.where(bound > most, most + (bound - most + 1) // 2, most + 1)
    return np.where((bound < NO_BOUND) & takes_part[:, None], between, NO_BOUND)
