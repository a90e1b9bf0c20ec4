"""The filling of claims to a common level, of which every flow has already had what it owes (`shard_parts`)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row, numbers, once, rows_of, sums
from spark_throttle.core.lending.allocation import Filling
from spark_throttle.core.lending.debts import Contestants, Debts
from spark_throttle.core.lending.scope_time import ScopeTime
from spark_throttle.core.quota import Bools, Int64s

_LOST_BITS, _LOST_UNITS = 28, 4
"""Rounding takes at most ``2**-28`` of what a level gives out, and 4 units, from one claim (`allocation`)."""


@dataclass(frozen=True, slots=True, eq=False)
class Stock:
    """The tokens that the scopes have to give; arrays run over the scopes."""

    held: Int64s
    """Shape (scopes, 2): the tokens."""

    is_short: Bools
    """Whether the tokens are fewer than the claims on them."""

    time: ScopeTime


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """The result of filling claims; arrays run over the claims, or over the scopes."""

    filled: Int64s
    """Shape (n, 2): the tokens due to each claim that takes part, including those that it owes; 0 for the others."""

    repaid: Debts
    """The debt that each claim is held to: what it owes, or nothing where that is forgiven."""

    is_out: Bools
    """Whether the claim owes more than the level gives, and so takes no part."""

    is_cut: Bools
    """Whether the claim takes part and gets less than it claims."""

    levels: Int64s
    available: Int64s
    """Shape (scopes, 2): the tokens from which the claims are filled."""

    stretch: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class RepayingFill:
    """The claims of flows, what they owe, and the tokens that are there for them."""

    flows: Contestants
    owed: Debts
    stock: Stock
    credit: Int64s
    """Shape (seats, 2): what a seat that takes part gets in addition to what its level gives."""

    def fill(self) -> Fill:
        """Fill the claims of the flows that owe no more than their level gives them.

        What all of these leave goes to the other flows, which are too far ahead: nobody is left to whom they owe
        anything, so their debts are forgiven.
        """
        flows, scopes = self.flows, len(self.stock.held)
        wants, owed = flows.wants, self.owed
        is_forgiven = np.zeros(scopes, dtype=np.bool_)
        while True:
            fill = self._filled(owed, wants)
            if not fill.is_out.any():
                return fill
            is_left = np.bincount(flows.scope[fill.is_out & wants], minlength=scopes) > 0
            is_left &= self.stock.is_short & (np.bincount(flows.scope[fill.is_cut], minlength=scopes) == 0)
            if not is_left.any():
                return fill
            is_forgiven |= is_left
            owes = ~is_forgiven[flows.scope]
            owed = Debts(self.owed.tokens * owes[:, None], self.owed.time * owes)

    def _filled(self, owed: Debts, wants: Bools) -> Fill:
        """Fill claims, round by round, until no flow that takes part owes more than is due to it.

        Some flow that wants tokens always takes part: if all of them in a scope owe more, they all do.
        """
        flows, stock, time = self.flows, self.stock, self.stock.time
        scope, seat = flows.scope, flows.seat
        scopes, seats = len(stock.held), len(self.credit)
        seat_scope = np.arange(seats) % scopes
        owes = bool(owed.tokens.any())
        claimed = flows.demand + owed.tokens if owes else flows.demand
        is_out, filled = np.zeros(len(claimed), dtype=np.bool_), np.zeros_like(claimed)
        rows: Int64s | None = None
        levels, again = np.zeros(scopes, dtype=np.int64), np.ones(scopes, dtype=np.bool_)
        while True:
            stays = None if rows is None else ~is_out
            takes_part = numbers(seat if stays is None else seat[stays], seats) > 0
            held_to = owed.tokens if stays is None else owed.tokens * stays[:, None]
            repaid = sums(scope, held_to, scopes) if owes else np.zeros_like(stock.held)
            lacking = sums(seat_scope, np.where(takes_part[:, None], self.credit, 0), scopes)
            available = np.maximum(stock.held + repaid - lacking, 0)
            stretch = time.stretch(available)
            asked, weight, at = claimed, flows.weight, scope
            if rows is not None:
                asked, weight, at = rows_of(claimed, rows), weight[rows], scope[rows]
            filling = Filling.of_scopes(asked, weight, at, available, stock.is_short, stretch)
            # Where all flows are too far ahead, no time passes.
            found = np.where(numbers(at, scopes) > 0, filling.levels(), 0)
            levels = np.where(again, found, levels)
            granted = filling.granted(levels)
            if rows is None:
                filled = granted
            else:
                is_idle = is_out & again[scope]
                for to, column in zip(filled.T, granted.T, strict=True):
                    to[is_idle] = 0
                    to[rows] = column
            lost = time.of((available >> _LOST_BITS) + _LOST_UNITS, np.arange(scopes))
            is_over = self._is_over(owed, filled, lost)
            is_over &= ~is_out & again[once(scope)]
            if is_over.any():
                stays_in = numbers(scope[~is_out & ~is_over & wants], scopes) > 0
                is_over &= stays_in[once(scope)] | ~wants
            if not is_over.any():
                is_cut = ~is_out & by_row(np.logical_or, filled < claimed)
                return Fill(filled, owed, is_out, is_cut, levels, available, stretch)
            is_out |= is_over
            again = np.bincount(scope[is_over], minlength=scopes) > 0
            rows = np.flatnonzero(~is_out & again[scope])

    def _is_over(self, owed: Debts, filled: Int64s, lost: Int64s) -> Bools:
        """Return which flows owe for longer than the time in which they are filled, and what rounding loses."""
        is_over = np.zeros(len(filled), dtype=np.bool_)
        at = np.flatnonzero(owed.time)
        if len(at):
            scope = once(self.flows.scope[at])
            is_over[at] = owed.time[at] > self.stock.time.of(rows_of(filled, at), scope) + lost[scope]
        return is_over
