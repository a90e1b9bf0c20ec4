"""The division of one level of scopes (the tenants, the groups or the job) among its flows (`shard_parts`)."""

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
from spark_throttle.core.arithmetic.segments import by_row, largest, numbers, once, replaced, rows_of, smallest, sums
from spark_throttle.core.lending.allocation import PLENTY, Filling
from spark_throttle.core.lending.debts import NOBODY, Contestants, Debts, ahead_bound
from spark_throttle.core.lending.debts_in_time import DebtsInTime
from spark_throttle.core.lending.repaying_fill import RepayingFill, Stock
from spark_throttle.core.lending.scope_time import ScopeTime
from spark_throttle.core.quota import MICRO, Bools, Int64s
from spark_throttle.core.state import NO_BOUND

FINE_BITS = 20
"""Demand is counted in *fine units* of ``2**-20`` tokens."""

MOST_TOKENS_BITS = 42
_NO_CREDIT = 1 << 62
_SUM_BITS = 50
"""The bits that the sum of the claims on a scope may take: the claims are at most twice what the scope has."""


@dataclass(frozen=True, slots=True, eq=False)
class Holding:
    """The tokens that the shared scopes have to give; arrays run over the scopes."""

    tokens: Int64s
    """Shape (scopes, 2): the tokens."""

    rate_micro_per_ms: Int64s
    """Shape (scopes, 2): the rates, by which dominant shares are measured."""

    is_limited: Bools
    """Shape (scopes, 2): whether the scope limits the resource."""

    is_shut: Bools
    """Whether the scope admits nothing now."""


@dataclass(frozen=True, slots=True, eq=False)
class LevelParts:
    """The result of dividing a level, in fine units; arrays run over the seats unless they say otherwise."""

    granted: Int64s
    """Shape (n, 2): the tokens that each flow gets."""

    due: Int64s
    """Shape (seats, 2): as `ShardParts.due_micro`."""

    account: Int64s
    """Shape (seats, 2): as `ShardParts.account_micro`."""

    is_counted: Bools
    is_filled: Bools
    ahead_bound_milli: Int64s
    next_ahead: Int64s
    is_short: Bools
    """Shape (scopes,): whether the scope is open and has fewer tokens than its flows claim."""

    before: Int64s
    """Shape (seats, 2): where `is_told_anew`, the account with which the division began."""

    is_told_anew: Bools
    """Shape (seats, 2): whether the account was told anew (`debts_in_time`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Shortage:
    """Which scopes of a level run short, and how their tokens are counted; arrays run over the scopes."""

    is_short: Bools
    """As in `LevelParts`."""

    held: Int64s
    """Shape (scopes, 2): the tokens that the scopes have to give, in their units."""

    bits: Int64s
    """Shape (scopes, 2): each scope counts tokens in units of ``2**-bits``."""

    coarse_bits: Int64s
    """Shape (n, 2): the number of bits that each claim drops when it is counted; shape (1, 2) if all drop as many."""


@dataclass(frozen=True, slots=True, eq=False)
class _Opened:
    """The state of a level as its division begins."""

    flows: Contestants
    owed: Debts
    account: Int64s
    """Shape (seats, 2): how far each seat is ahead of the virtual time at which the division begins."""

    before: Int64s
    """Shape (seats, 2): how far ahead of its scope's virtual time, in scopes that limit both resources."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The claims at one level of scopes: each flow is in one scope, and has its shard's seat there."""

    demand: Int64s
    """Shape (n, 2): the tokens that each flow wants, in fine units."""

    counted_milli: Int64s
    """Shape (n, 2): `ahead_milli`, with messages counted by their prices, if they have any."""

    own_weight: Int64s
    """The flows' weights before prices and scale."""

    ahead_milli: Int64s
    """Shape (n, 2): how far each flow is ahead, in thousandths of a token."""

    weight: Int64s
    scope: Int64s
    seat: Int64s
    """The flow's shard and scope as one number: ``shard * scopes + scope``."""

    holding: Holding
    advance_micro: Int64s
    """Shape (seats, 2): how far each seat is ahead."""

    def shortage(self) -> Shortage:
        """Return which scopes run short, and how their tokens are counted."""
        scopes = len(self.holding.tokens)
        most = largest(self.scope, self.demand, scopes, least=0) >> FINE_BITS
        bits = self._bits(np.arange(len(self.advance_micro)) % scopes, most)
        coarse_bits = self._coarse_bits(bits, most)
        held = np.where(self.holding.is_limited, shifted(self.holding.tokens, bits), PLENTY)
        wanted = sums(self.scope, -(-self.demand >> coarse_bits), scopes)
        return Shortage(by_row(np.logical_or, wanted > held) & ~self.holding.is_shut, held, bits, coarse_bits)

    def divided(self) -> LevelParts:
        """Return the parts of the flows, and the accounts of the seats."""
        shortage = self.shortage()
        scopes, seats, is_shut = len(self.holding.tokens), len(self.advance_micro), self.holding.is_shut
        stands = self._stands(np.arange(seats) % scopes)
        unchanged = np.where(stands, floor_shifted(self.advance_micro, np.full(1, FINE_BITS)), 0)
        here = once(self.scope)
        granted = self.demand * ~is_shut[here][:, None] if is_shut[here].any() else self.demand
        is_short = shortage.is_short[here]
        if not is_short.any():
            nothing, no = np.zeros((seats, 2), dtype=np.int64), np.zeros((seats, 2), dtype=np.bool_)
            no_bound = np.full((seats, 2), NO_BOUND, dtype=np.int64)
            next_ahead = np.full(seats, NOBODY, dtype=np.int64)
            return LevelParts(granted, nothing, unchanged, no, no, no_bound, next_ahead, shortage.is_short, nothing, no)
        if is_short.all():
            return self._divided_short(shortage, unchanged)
        rows = np.flatnonzero(is_short)
        short = Level(
            rows_of(self.demand, rows), rows_of(self.counted_milli, rows), self.own_weight[rows],
            rows_of(self.ahead_milli, rows), self.weight[rows], self.scope[rows], self.seat[rows], self.holding,
            self.advance_micro,
        )  # fmt: skip
        if len(shortage.coarse_bits) > 1:
            shortage = replace(shortage, coarse_bits=rows_of(shortage.coarse_bits, rows))
        parts = short._divided_short(shortage, unchanged)
        return replace(parts, granted=replaced(granted, rows, parts.granted))

    def _divided_short(self, shortage: Shortage, unchanged: Int64s) -> LevelParts:
        """Return `divided` where all flows are in scopes that run short.

        Parameters
        ----------
        unchanged
            Shape (seats, 2): the accounts of the seats that are not counted.
        """
        scopes, seats = len(self.holding.tokens), len(self.advance_micro)
        seat_scope = np.arange(seats) % scopes
        is_short, held, bits = shortage.is_short, shortage.held, shortage.bits
        demand = self.demand >> shortage.coarse_bits
        counts = is_short[seat_scope][:, None] & self.holding.is_limited.take(seat_scope, axis=0)
        has_flow = numbers(self.seat, seats) > 0
        scope_time = ScopeTime(self.holding.rate_micro_per_ms, self.holding.is_limited, bits)
        opened = self._opened(demand, held, is_short, has_flow, scope_time)
        flows, owed, account = opened.flows, opened.owed, opened.account
        credit = _usable(-account, held, seat_scope)
        debt = np.maximum(account, 0)
        fill = RepayingFill(flows, owed, Stock(held, is_short, scope_time), credit).fill()
        filled, is_out, repaid = fill.filled, fill.is_out, fill.repaid
        out = np.flatnonzero(is_out)
        takes_part = numbers(self.seat[~is_out], seats) > 0 if len(out) else has_flow
        # The debts of flows that are too far ahead, and of seats without flows, fall by the level of the others.
        idle = np.flatnonzero(by_row(np.logical_or, debt > 0) & ~has_flow)
        passes = Filling.of_scopes(
            np.concatenate([rows_of(demand, out) + rows_of(repaid.tokens, out), rows_of(debt, idle)]),
            np.concatenate([self.weight[out], np.ones(len(idle), dtype=np.int64)]),
            np.concatenate([self.scope[out], seat_scope[idle]]), fill.available, is_short, fill.stretch,
        )  # fmt: skip
        passed = passes.passed(fill.levels)
        settled = sums(self.seat, filled if repaid is owed else filled + owed.tokens - repaid.tokens, seats)
        settled += sums(np.concatenate([self.seat[out], idle]), passed, seats)
        granted = np.maximum(filled - repaid.tokens, 0)  # nothing is filled of those that are out
        lent = sums(self.seat, granted, seats)
        due = lent + np.where(takes_part[:, None], credit, 0)
        if credit.any():
            granted = np.where(
                by_row(np.logical_or, credit > 0)[self.seat][:, None], _raised(granted, self.seat, lent, due), granted
            )
        granted = np.minimum(granted, demand)
        after = np.where(has_flow[:, None], account - settled, np.maximum(account - settled, 0))
        owes = np.flatnonzero(repaid.time)
        had = rows_of(filled, owes)
        at_out = np.flatnonzero(is_out[owes])
        for to, column in zip(had.T, passed.T, strict=True):
            to[at_out] = column[np.searchsorted(out, owes[at_out])]
        owed_time = np.zeros_like(repaid.time)
        owed_time[owes] = np.maximum(repaid.time[owes] - scope_time.of(had, self.scope[owes]), 0)
        next_ahead = self._next_ahead(owed_time, flows.wants)
        fine = FINE_BITS - bits
        return LevelParts(
            granted << rows_of(fine, once(self.scope)),
            np.where(counts, due << fine.take(seat_scope, axis=0), 0),
            np.where(counts, after << fine.take(seat_scope, axis=0), unchanged),
            counts & has_flow[:, None],
            counts & takes_part[:, None],
            self._ahead_bound(is_out, flows.wants, seat_scope, scope_time),
            np.where(is_short[seat_scope], next_ahead, NOBODY),
            is_short,
            opened.before << fine.take(seat_scope, axis=0),
            counts & by_row(np.logical_and, self.holding.is_limited)[seat_scope][:, None],
        )

    def _opened(self, demand: Int64s, held: Int64s, is_short: Bools, has_flow: Bools, scope_time: ScopeTime) -> _Opened:
        """Return the flows, what they owe, and the accounts with which the division begins.

        Parameters
        ----------
        demand
            Shape (n, 2): the flows' demand, counted in the units of their scopes.
        held
            Shape (scopes, 2): the tokens that the scopes have to give.
        """
        scopes, seats, bits = len(held), len(self.advance_micro), scope_time.bits
        seat_scope = np.arange(seats) % scopes
        counts = is_short[seat_scope][:, None] & self.holding.is_limited.take(seat_scope, axis=0)
        account = np.where(counts, floor_shifted(self.advance_micro, bits.take(seat_scope, axis=0)), 0)
        weights = np.maximum(sums(self.seat, self.weight, seats), 1)
        credit = _common_credit(account, weights, has_flow, seat_scope)
        by_token = np.where(has_flow[:, None], account + credit, account)
        is_both = by_row(np.logical_and, self.holding.is_limited)
        of_both = is_both[seat_scope][:, None]
        most = np.where(is_short[:, None] & self.holding.is_limited, held, 0)
        most += sums(seat_scope, np.maximum(by_token, 0), scopes)
        flows = Contestants(demand, self._ahead(bits, most), self.weight, self.scope, self.seat)
        heaviest = largest(self.scope, self.weight, scopes, least=1)
        most_set_back = most // heaviest[:, None]
        is_timed = is_both[once(self.scope)]
        if is_timed.all():  # the seats of other scopes have no flows: nothing sets them back
            timed = DebtsInTime.of(flows, account, most_set_back, scope_time)
            return _Opened(flows, timed.owed, np.where(of_both, timed.account, by_token), timed.before)
        owed, set_back = Debts.of(flows, np.maximum(by_token, 0), most_set_back, scope_time)
        by_token += set_back
        if not is_timed.any():
            return _Opened(flows, owed, by_token, by_token)
        rows = np.flatnonzero(is_timed)
        timed = DebtsInTime.of(flows.take(rows), account, most_set_back, scope_time)
        return _Opened(flows, owed.replaced(rows, timed.owed), np.where(of_both, timed.account, by_token), timed.before)

    def _ahead(self, bits: Int64s, most: Int64s) -> Int64s:
        """Return how far each flow is ahead of its shard's virtual time.

        The result is at most its scope's `most`, so that no sum leaves int64.
        """
        out = np.zeros((2, len(self.scope)), dtype=np.int64)
        for to, milli, of, bound in zip(out, self.ahead_milli.T, bits.T, most.T, strict=True):
            at = np.flatnonzero(milli)
            if len(at):
                scope = once(self.scope[at])
                tokens, rest_milli = np.divmod(milli[at], 1000)
                fine = of[scope]
                to[at] = np.minimum(shifted(tokens, fine) + shifted(rest_milli, fine) // 1000, bound[scope])
        return out.T

    def _ahead_bound(self, is_out: Bools, wants: Bools, seat_scope: Int64s, scope_time: ScopeTime) -> Int64s:
        """Return, for every seat, the bounds that separate the flows that take part from those left out.

        A seat whose scope no other seat wants anything of has no bound: what is lent to it is due to nobody else, and
        the shard's own order of flows is exact.
        """
        seats = len(seat_scope)
        if not is_out.any():
            return np.full((seats, 2), NO_BOUND, dtype=np.int64)
        wanting = np.bincount(self.seat[wants], minlength=seats) > 0
        has_rival = np.bincount(seat_scope[wanting], minlength=len(self.holding.tokens))[seat_scope] > wanting
        takes_part = np.bincount(self.seat[~is_out & wants], minlength=seats) > 0
        in_milli = replace(scope_time, bits=np.zeros_like(scope_time.bits))
        out = np.flatnonzero(is_out)
        time = in_milli.of_each(rows_of(self.ahead_milli, out), self.scope[out])
        by_weight_milli = self.counted_milli
        if self.own_weight.max(initial=1) > 1:
            by_weight_milli = by_weight_milli // self.own_weight[:, None]
        return ahead_bound(by_weight_milli, time, self.seat, is_out, takes_part & has_rival)

    def _next_ahead(self, owed_time: Int64s, wants: Bools) -> Int64s:
        """Return, for every seat, the least that a flow that wants tokens owes for its weight."""
        each = owed_time // self.weight if owed_time.any() else owed_time
        each = each if wants.all() else np.where(wants, each, NOBODY)
        return smallest(self.seat, each, len(self.advance_micro), most=NOBODY)

    def _stands(self, seat_scope: Int64s) -> Bools:
        """Return whether nothing is lent to a seat, so that its account stands: in shut scopes of this level."""
        is_here = numbers(self.scope, len(self.holding.tokens)) > 0
        return (is_here & self.holding.is_shut)[seat_scope][:, None] & self.holding.is_limited.take(seat_scope, axis=0)

    def _bits(self, seat_scope: Int64s, most: Int64s) -> Int64s:
        """Return the binary places in which each scope counts tokens, shape (scopes, 2): so no sum leaves int64.

        Parameters
        ----------
        most
            Shape (scopes, 2): the largest claim on each scope, in whole tokens.
        """
        scopes = len(self.holding.tokens)
        advance = sums(seat_scope, np.abs(self.advance_micro) // MICRO + 1, scopes)
        top = np.where(self.holding.is_limited, self.holding.tokens + advance, most)
        flows = numbers(self.scope, scopes)
        return np.minimum(_SUM_BITS - bit_length(top) - bit_length(flows)[:, None], FINE_BITS)

    def _coarse_bits(self, bits: Int64s, most: Int64s) -> Int64s:
        """Return the number of bits that each claim drops when it is counted, shape (n, 2).

        A claim for far more than is available keeps its proportion, and is still for more than is available.
        """
        top = np.maximum(np.where(self.holding.is_limited, self.holding.tokens, 1 << MOST_TOKENS_BITS), 1)
        coarse = FINE_BITS - rows_of(bits, once(self.scope))
        if (bit_length(most) - bit_length(top) <= 1).all():
            return coarse
        surplus = bit_length(self.demand >> FINE_BITS) - rows_of(bit_length(top), self.scope)
        surplus = by_row(np.maximum, surplus - 1)
        return coarse + np.maximum(surplus, 0)[:, None]


def _common_credit(account: Int64s, weights: Int64s, has_flow: Bools, seat_scope: Int64s) -> Int64s:
    """Return the credit that all seats of a scope have in common, by their weights: nobody owes it."""
    least = np.full((int(seat_scope.max(initial=0)) + 1, 2), _NO_CREDIT, dtype=np.int64)
    np.minimum.at(
        least, seat_scope[has_flow], np.maximum(-account, 0).compress(has_flow, axis=0) // weights[has_flow, None]
    )
    return np.where(least == _NO_CREDIT, 0, least).take(seat_scope, axis=0) * weights[:, None]


def _usable(credit: Int64s, held: Int64s, seat_scope: Int64s) -> Int64s:
    """Return the part of each seat's credit that a division takes up: together, at most half of what is available."""
    credit = np.maximum(credit, 0)
    claimed = sums(seat_scope, credit, len(held))
    part = quotient(np.minimum(held >> 1, claimed), claimed, FACTOR_BITS)
    return np.where(
        (claimed <= held >> 1).take(seat_scope, axis=0), credit, times(credit, part.take(seat_scope, axis=0))
    )


def _raised(granted: Int64s, seat: Int64s, lent: Int64s, due: Int64s) -> Int64s:
    """Return the flows' parts, raised where `due`, which is more than `lent`, is there for the flows of a seat."""
    gained = quotient(np.minimum(due - lent, lent), lent, FACTOR_BITS, round_up=True)
    return granted + times(granted, gained.take(seat, axis=0))
