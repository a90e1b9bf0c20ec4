"""What one level of scopes comes to, the tenants, the groups or the job, when its flows divide it (`shard_parts`)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import (
    FACTOR_BITS,
    bit_length,
    floor_shifted,
    quotient,
    shifted,
    times,
)
from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.lending.allocation import PLENTY, Filling
from spark_throttle.core.lending.debts import NOBODY, Contestants, Debts, ahead_bound
from spark_throttle.core.lending.repaying_fill import RepayingFill, Stock
from spark_throttle.core.lending.scope_time import ScopeTime
from spark_throttle.core.quota import MICRO, Bools, Int64s
from spark_throttle.core.state import NO_BOUND

FINE_BITS = 20
"""Demand is counted in ``2**-20`` tokens."""

MOST_TOKENS_BITS = 42
_NO_CREDIT = 1 << 62
_SUM_BITS = 50
"""What the claims on a scope together may take: they are at most twice what it has."""


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """What the shared scopes have to give; arrays run over the scopes."""

    tokens: Int64s
    """Shape (scopes, 2)."""

    rate_micro_per_ms: Int64s
    """Shape (scopes, 2): what dominant shares are measured by."""

    is_limited: Bools
    """Shape (scopes, 2)."""

    is_shut: Bools
    """Whether the scope admits nothing now."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelParts:
    """What a level comes to, in fine units."""

    granted: Int64s
    """Of every flow, shape (n, 2)."""

    due: Int64s
    """Of every seat, as are the others: shape (seats, 2)."""

    account: Int64s
    is_counted: Bools
    is_filled: Bools
    ahead_bound_milli: Int64s
    next_ahead: Int64s
    is_short: Bools
    """Of every scope."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The claims at one level of scopes: a flow is in one of them, and has its seat there with its shard."""

    demand: Int64s
    """Shape (n, 2), in fine units."""

    ahead_by_weight_milli: Int64s
    """Shape (n, 2), as is `ahead_milli`."""

    ahead_milli: Int64s
    weight: Int64s
    scope: Int64s
    seat: Int64s
    """A shard and a scope: ``shard * scopes + scope``."""

    holding: Holding
    advance_micro: Int64s
    """Shape (seats, 2)."""

    def divided(self) -> LevelParts:
        """Return what the flows get, and what becomes of the seats."""
        scopes, seats = len(self.holding.tokens), len(self.advance_micro)
        seat_scope = np.arange(seats) % scopes
        bits = self._bits(seat_scope)
        coarse_bits = self._coarse_bits(bits)
        demand, rounded_up = self.demand >> coarse_bits, -(-self.demand >> coarse_bits)
        held = np.where(self.holding.is_limited, shifted(self.holding.tokens, bits), PLENTY)
        is_shut = self.holding.is_shut
        is_short = (sums(self.scope, rounded_up, scopes) > held).any(axis=1) & ~is_shut
        counts = is_short[seat_scope][:, None] & self.holding.is_limited[seat_scope]
        account = np.where(counts, floor_shifted(self.advance_micro, bits[seat_scope]), 0)
        has_flow = np.bincount(self.seat, minlength=seats) > 0
        weights = np.maximum(sums(self.seat, self.weight, seats), 1)
        account = np.where(has_flow[:, None], account + _common_credit(account, weights, has_flow, seat_scope), account)
        scope_time = ScopeTime(self.holding.rate_micro_per_ms, self.holding.is_limited, bits)
        most = np.where(is_short[:, None] & self.holding.is_limited, held, 0)
        most += sums(seat_scope, np.maximum(account, 0), scopes)
        flows = Contestants(demand, self._ahead(bits, most), self.weight, self.scope, self.seat)
        heaviest = np.ones(scopes, dtype=np.int64)
        np.maximum.at(heaviest, self.scope, self.weight)
        owed, set_back = Debts.of(flows, np.maximum(account, 0), most // heaviest[:, None], scope_time)
        account += set_back
        credit = _usable(-account, held, seat_scope)
        debt = np.maximum(account, 0)
        fill = RepayingFill(flows, owed, Stock(held, is_short, scope_time), credit).fill()
        filled, is_out, repaid = fill.filled, fill.is_out, fill.repaid
        takes_part = np.bincount(self.seat[~is_out], minlength=seats) > 0
        claimed = demand + repaid.tokens
        # What flows that are too far ahead, and seats without flows, are ahead by passes at the level of the others.
        idle = np.flatnonzero(by_row(np.logical_or, debt > 0) & ~has_flow)
        out = np.flatnonzero(is_out)
        passes = Filling.of_scopes(
            np.concatenate([claimed[out], debt[idle]]),
            np.concatenate([self.weight[out], np.ones(len(idle), dtype=np.int64)]),
            np.concatenate([self.scope[out], seat_scope[idle]]), fill.available, is_short, fill.stretch,
        )  # fmt: skip
        passed = passes.passed(fill.levels)
        settled = sums(self.seat, filled + owed.tokens - repaid.tokens, seats)
        settled += sums(np.concatenate([self.seat[out], idle]), passed, seats)
        granted = np.where(is_out[:, None], 0, np.maximum(filled - repaid.tokens, 0))
        lent = sums(self.seat, granted, seats)
        due = lent + np.where(takes_part[:, None], credit, 0)
        granted = np.where(
            by_row(np.logical_or, credit > 0)[self.seat][:, None], _raised(granted, self.seat, lent, due), granted
        )
        granted = np.minimum(granted, demand)
        after = np.where(has_flow[:, None], account - settled, np.maximum(account - settled, 0))
        had = filled.copy()
        had[out] = passed[: len(out)]
        next_ahead = self._next_ahead(np.maximum(repaid.time - scope_time.of(had, self.scope), 0), flows.wants)
        stands = self._stands(seat_scope)
        fine = FINE_BITS - bits
        is_whole = ~is_short[self.scope] & ~is_shut[self.scope]
        granted = np.where(is_shut[self.scope][:, None], 0, granted << fine[self.scope])
        unchanged = np.where(stands, floor_shifted(self.advance_micro, np.full(1, FINE_BITS)), 0)
        return LevelParts(
            np.where(is_whole[:, None], self.demand, granted),
            np.where(counts, due << fine[seat_scope], 0),
            np.where(counts, after << fine[seat_scope], unchanged),
            counts & has_flow[:, None],
            counts & takes_part[:, None],
            self._ahead_bound(is_out, np.bincount(self.seat[~is_out & flows.wants], minlength=seats) > 0, scope_time),
            np.where(is_short[seat_scope], next_ahead, NOBODY),
            is_short,
        )

    def _ahead(self, bits: Int64s, most: Int64s) -> Int64s:
        """Return how far each flow is ahead of its shard's virtual time.

        It is no more than `most` of its scope, so that no sum leaves int64.
        """
        tokens, rest_milli = np.divmod(self.ahead_milli, 1000)
        fine = bits[self.scope]
        return np.minimum(shifted(tokens, fine) + shifted(rest_milli, fine) // 1000, most[self.scope])

    def _ahead_bound(self, is_out: Bools, takes_part: Bools, scope_time: ScopeTime) -> Int64s:
        """Return the bounds, by seat, between flows that take part and those that are out."""
        if not is_out.any():
            return np.full((len(takes_part), 2), NO_BOUND, dtype=np.int64)
        in_milli = replace(scope_time, bits=np.zeros_like(scope_time.bits))
        time = in_milli.of_each(self.ahead_milli, self.scope)
        return ahead_bound(self.ahead_by_weight_milli, time, self.seat, is_out, takes_part)

    def _next_ahead(self, owed_time: Int64s, wants: Bools) -> Int64s:
        """Return what those flows that want something, and owe least for their weight, owe; by seat."""
        least = np.full(len(self.advance_micro), NOBODY, dtype=np.int64)
        np.minimum.at(least, self.seat[wants], (owed_time // self.weight)[wants])
        return least

    def _stands(self, seat_scope: Int64s) -> Bools:
        """Return where nothing is lent, so that no account changes: in scopes of this level that are shut."""
        is_here = np.bincount(self.scope, minlength=len(self.holding.tokens)) > 0
        return (is_here & self.holding.is_shut)[seat_scope][:, None] & self.holding.is_limited[seat_scope]

    def _bits(self, seat_scope: Int64s) -> Int64s:
        """Return in how fine parts of a token each scope counts, shape (scopes, 2): so that no sum leaves int64."""
        scopes = len(self.holding.tokens)
        advance = sums(seat_scope, np.abs(self.advance_micro) // MICRO + 1, scopes)
        most = np.zeros((scopes, 2), dtype=np.int64)
        np.maximum.at(most, self.scope, self.demand >> FINE_BITS)
        top = np.where(self.holding.is_limited, self.holding.tokens + advance, most)
        flows = np.bincount(self.scope, minlength=scopes)
        return np.minimum(_SUM_BITS - bit_length(top) - bit_length(flows)[:, None], FINE_BITS)

    def _coarse_bits(self, bits: Int64s) -> Int64s:
        """Return by how many bits each claim is counted coarser, shape (n, 2).

        A claim of far more than there is keeps its proportion, and is still more than there is.
        """
        top = np.maximum(np.where(self.holding.is_limited, self.holding.tokens, 1 << MOST_TOKENS_BITS), 1)
        surplus = (bit_length(self.demand >> FINE_BITS) - bit_length(top)[self.scope] - 1).max(axis=1, initial=0)
        return FINE_BITS - bits[self.scope] + np.maximum(surplus, 0)[:, None]


def _common_credit(account: Int64s, weights: Int64s, has_flow: Bools, seat_scope: Int64s) -> Int64s:
    """Return the credit that all seats of a scope have, by their weights: it is owed by nobody."""
    least = np.full((int(seat_scope.max(initial=0)) + 1, 2), _NO_CREDIT, dtype=np.int64)
    np.minimum.at(least, seat_scope[has_flow], np.maximum(-account, 0)[has_flow] // weights[has_flow, None])
    return np.where(least == _NO_CREDIT, 0, least)[seat_scope] * weights[:, None]


def _usable(credit: Int64s, held: Int64s, seat_scope: Int64s) -> Int64s:
    """Return what of each seat's credit a division takes up: together, half of what there is."""
    credit = np.maximum(credit, 0)
    claimed = sums(seat_scope, credit, len(held))
    part = quotient(np.minimum(held >> 1, claimed), claimed, FACTOR_BITS)
    return np.where((claimed <= held >> 1)[seat_scope], credit, times(credit, part[seat_scope]))


def _raised(granted: Int64s, seat: Int64s, lent: Int64s, due: Int64s) -> Int64s:
    """Return what the flows of every seat get when not `lent` but `due` is there for them, which is more."""
    gained = quotient(np.minimum(due - lent, lent), lent, FACTOR_BITS, round_up=True)
    return granted + times(granted, gained[seat])
