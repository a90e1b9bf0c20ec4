"""What flows owe in a scope that limits messages and bytes: an account that is counted in time.

In such a scope, a shard's account has two numbers, and its flows take the two resources in different proportions. Each
flow's *mixture* is the proportion of its demand. A place (`debts`) is a time here, and stands for tokens in the flow's
mixture. Two accounts cannot both determine the one lag of a shard. So they are added, each as the time in which the
scope earns it::

    time(account of messages) + time(account of bytes) = sum over the flows of share_f * place_f

where ``share_f``, between 1 and 2, is the same sum for a flow that is served for a time of 1. A shard that took more of
one resource and less of the other than its flows' demand predicted is neither ahead nor behind for that.

Both accounts are then told anew, as the tokens for which the places stand. Thus an error of the prediction does not add
up: otherwise one account would fall and the other rise, until the division left out flows that are far behind. The two
credits of a shard that is behind in both resources stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import by_row, largest, numbers, once, sums
from spark_throttle.core.lending.debts import Contestants, Debts
from spark_throttle.core.lending.scope_time import ScopeTime, in_mixture
from spark_throttle.core.quota import Int64s

_SHARE_BITS = 9
"""A flow's share is counted in 512ths, so that sums of products stay in int64."""


@dataclass(frozen=True, slots=True, eq=False)
class DebtsInTime:
    """The debts of the flows of scopes that limit both resources."""

    owed: Debts
    before: Int64s
    """Shape (seats, 2): the seats' accounts, told anew; those of seats without flows as they were."""

    account: Int64s
    """Shape (seats, 2): those accounts, relative to the virtual time at which the division begins."""

    @classmethod
    def of(cls, flows: Contestants, account: Int64s, most_set_back: Int64s, scope_time: ScopeTime) -> DebtsInTime:
        """Return what flows owe; the parameters are those of `Debts.of`, but an account may be negative."""
        scopes, seats = len(most_set_back), len(account)
        scope, seat, weight, wants = flows.scope, flows.seat, flows.weight, flows.wants
        seat_scope, is_ahead = np.arange(seats) % scopes, bool(flows.ahead.any())
        mixture = flows.demand if wants.all() or not is_ahead else np.where(wants[:, None], flows.demand, flows.ahead)
        of_each = scope_time.of_each(mixture, scope)
        whole, share = by_row(np.maximum, of_each), _share(of_each)
        of_demand = whole if mixture is flows.demand else np.where(wants, whole, 0)
        total = by_row(np.add, scope_time.of_each(np.abs(account), seat_scope) * np.sign(account)) << _SHARE_BITS
        in_shares = replace(
            flows,
            demand=(of_demand * share)[:, None],
            ahead=(scope_time.of(flows.ahead, scope) * share if is_ahead else np.zeros_like(share))[:, None],
            weight=weight * share,
        )
        place, counts = in_shares.places(np.maximum(total, 0)[:, None])
        place, counts = place[:, 0] // share if place.any() else place[:, 0], counts[:, 0]
        lag, rest = _behind(total, flows, share, seat_scope)
        is_behind = by_row(np.logical_and, account <= 0)[:, None]
        set_back = np.zeros(scopes, dtype=np.int64)
        if place.min(initial=0) < 0:
            set_back = largest(scope, np.where(wants, -(place // weight), 0), scopes, least=0)
            set_back = np.minimum(set_back, scope_time.of(most_set_back, np.arange(scopes)))
        owes_its_place = not set_back.any()  # where it has any
        moved = place if owes_its_place else (place + set_back[once(scope)] * weight) * counts
        time = np.maximum(moved, 0)

        def tokens(of_time: Int64s) -> Int64s:
            """Return the tokens, of either sign, for which times of the flows stand."""
            if not of_time.any():
                return np.zeros_like(mixture)
            if of_time.min() >= 0:
                return in_mixture(of_time, mixture, whole)
            return in_mixture(np.abs(of_time), mixture, whole) * np.sign(of_time)[:, None]

        owed = tokens(time)
        of_places = owed if owes_its_place and place.min(initial=0) >= 0 else tokens(place)
        of_flows = tokens(np.where(wants, rest[seat] * weight, 0) if rest.any() else rest)
        kept = proportional(-account, rest[:, None], lag[:, None])
        credit = np.where(is_behind, kept, sums(seat, of_flows, seats) if rest.any() else 0)
        has_flow = (numbers(seat, seats) > 0)[:, None]
        of_empty = np.where(account > 0, scope_time.tokens_in(set_back, np.arange(scopes)).take(seat_scope, axis=0), 0)
        return cls(
            Debts(owed, time),
            np.where(has_flow, sums(seat, of_places, seats) - credit, account),
            np.where(has_flow, sums(seat, owed, seats) - credit, account + of_empty),
        )


def _share(of_each: Int64s) -> Int64s:
    """Return the time of both resources together for each time that a flow is served, in 512ths.

    Parameters
    ----------
    of_each
        Shape (n, 2): the times that each resource of a flow's mixture takes.
    """
    lesser, greater = by_row(np.minimum, of_each), by_row(np.maximum, of_each)
    whole = np.full_like(lesser, 1 << _SHARE_BITS)
    return whole + proportional(lesser, whole, greater)


def _behind(total: Int64s, flows: Contestants, share: Int64s, seat_scope: Int64s) -> tuple[Int64s, Int64s]:
    """Return how long each seat is behind, for a weight of 1, and how much longer than all seats of its scope are.

    Nobody owes what all seats are behind. A seat of which no flow wants tokens is not behind.
    """
    wants = flows.wants
    weights = sums(flows.seat, flows.weight * share * wants, len(total))
    is_wanting = weights > 0
    lag = np.where(is_wanting, np.maximum(-total, 0) // np.maximum(weights, 1), 0)
    common = np.full(int(seat_scope.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(common, seat_scope[is_wanting], lag[is_wanting])
    return lag, np.where(is_wanting, lag - common[seat_scope], 0)
