"""How much every shard's flows are due of the tokens in the shared scopes, and how far each shard is ahead of its due.

The division is weighted max-min over the demand of every active flow, one by one (`allocation`): first within the
tenants, then within the resource groups, then within the job, where the narrower levels cut each demand first. What a
wider level keeps a flow from taking in a narrower scope goes to the other flows of that scope, in a second pass. A
scope that has more than is then taken from it is *loose*: nobody competes for it, and it does not determine the order
of flows.

A shard may take more than it was lent: the last message overdraws, and a grant grows while it stands between two
epochs. The scope's bucket repays that; so all shards would repay, again and again, for one shard with large messages.
Therefore a scope in which any flow is held back keeps an *account* for every shard: how far its flows were served
beyond their due. The next division starts from there. The shard's flows owe its account, according to their leads; some
of them may be behind (`debts`). The level to which flows are filled sets what each of them is due. A flow has already
had the part of this that it owes, and the rest is lent to its shard. A flow that owes more than it is due takes no
part, and its debt falls by what it is due::

    lent_k = sum over the flows of max(0, due_f(level) - owed_f),     over all shards what the scope holds

The tokens lent are due to the flows that take part, and the others must leave them. So each grant comes with a bound on
how far ahead a flow may be to take any of it. Thus a small message that waits next to large ones neither lets them
through nor waits for them, and repays none of their debt. What no other flow wants goes to the flows that are too far
ahead, and their debts are forgiven.

A level is a span of virtual time at the scope's rates. So this is start-time fair queueing between shards, as
`fair_queue` is within one: of two namespaces in different shards that stay backlogged, neither ever gets further ahead
than by a message of its shard, whatever the sizes, except for the rounding of levels. In a scope above their domains,
flows count by their own weights times their domains'. The order is inexact in two cases. Where a scope is short of both
resources and the flows of one shard differ in which of them dominates, the mixture in which they will be served is
estimated from their demand (`debts_in_time`), and they may fall behind by some hundredths. Where the first rows of a
flow are of other sizes than all that it has waiting, they may fall behind by that flow's part of the shard, until those
rows have left. Where two levels run short at once and their rates differ in proportion, flows may fall behind by a
fifth, and by more where a shard is lent only a few messages per epoch. A new flow is due nothing in the epoch in which
it first appears: what it takes then is lost to the other flows of its shard, up to its part of one epoch.

An account below 0 is a credit: tokens that rounding withheld, or that a shard was due of one resource while it was too
far ahead in the other. A division takes up credits of at most half of what is available. A shard without demand keeps
no credit, and its debt falls as that of one flow of weight 1 would. When no flow is held back, all accounts are closed,
as leads are forgotten.

Amounts are counted in ``2**-20`` tokens, or in coarser units where a scope holds so much that sums would leave int64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import bit_length
from spark_throttle.core.arithmetic.segments import beside, by_row, largest, numbers, once, replaced, rows_of, sums
from spark_throttle.core.lending.debts import NOBODY
from spark_throttle.core.lending.level_parts import FINE_BITS, MOST_TOKENS_BITS, Holding, Level, LevelParts
from spark_throttle.core.limits.message_prices import MessagePrices
from spark_throttle.core.names.matching import domains_of, enforcing_scopes, weights_in
from spark_throttle.core.quota import MICRO, Bools, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.state import NO_BOUND

_FINE_MASK = (1 << FINE_BITS) - 1
_HALF_MILLI = (1 << FINE_BITS) // 2000
_MOST_WEIGHT = 1000
_EXACT_BITS = 60
"""The bits of a sum that is exact."""

_LOOSE_BITS, _LEAST_BOUND = 4, 15
"""A scope is loose when more than ``2**-4`` of it is left over: rounding leaves less."""


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """The demand of all active flows; arrays run over the flows of all shards."""

    shard: Int64s
    shared_scope: Int64s
    """Shape (n, 3): the shared scopes of each flow, as in `matching.Matches.shared_scope`."""

    weight: Int64s
    demand: Int64s
    """Shape (n, 2): the messages and bytes that each flow wants."""

    ahead_milli: Int64s
    """Shape (n, 2): how far each flow is ahead, as in `UsageReport.ahead_milli`."""

    prices: MessagePrices | None = None
    """The prices of the flows' messages; `None` if no scope is divided by time."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardParts:
    """The result of a division; arrays have the shape (shards, scopes, 2) unless they say otherwise."""

    part_milli: Int64s
    """The tokens to lend to the shard for its flows, in thousandths; the rest of what the scope holds is spare."""

    due_micro: Int64s
    """The tokens that the scope by itself would lend to the shard."""

    account_micro: Int64s
    """How far the shard is ahead once the level has passed and before it has used any of `due_micro`."""

    before_micro: Int64s
    """How far the shard was ahead before the division; in a scope that limits both resources, told anew
    (`debts_in_time`)."""

    is_counted: Bools
    """Whether the tokens lent to the shard count in its account: where its flows run short."""

    is_filled: Bools
    """Whether the shard takes part in the division; else it is too far ahead."""

    ahead_bound_milli: Int64s
    """How far ahead a flow of weight 1 must be to take none of the tokens lent; `NO_BOUND` where no flow is too far
    ahead."""

    next_ahead: Int64s
    """Shape (shards, scopes): how far the shard's least advanced flow is still ahead, for its weight; `NOBODY` where no
    flow runs short. Comparable within a scope."""

    is_light: Bools
    """Shape (shards, scopes): whether a flow that takes part has messages of less than a byte, which pass while the
    shard may take bytes, although it is lent none."""

    is_loose: Bools
    """Shape (scopes,): whether, while any scope runs short, this one has more than is taken from it, because others
    stop its flows first."""


def divide_among_shards(claims: Claims, holding: Holding, advance_micro: Int64s, policy: CompiledPolicy) -> ShardParts:
    """Divide the tokens that the scopes hold.

    What a wider scope keeps a flow from taking in a narrower one is divided, once, among the other flows there.

    Parameters
    ----------
    advance_micro
        Shape (shards, scopes, 2): how far each shard is ahead.
    """
    demand = _in_fine_units(claims)
    found = _Pass.of(claims, demand, holding, advance_micro, policy, is_cut=False)
    can_be_taken = found.can_be_taken(demand, policy)
    if can_be_taken is not None:
        found = _Pass.of(claims, can_be_taken, holding, advance_micro, policy, is_cut=True)
    return found.parts(claims, holding, advance_micro, policy)


@dataclass(frozen=True, slots=True, eq=False)
class OneShard:
    """What is to be known of the scopes of a job with one shard, which is lent all that they hold."""

    is_short: Bools
    """Shape (scopes,): whether the scope is open and has fewer tokens than its flows claim."""

    is_loose: Bools
    """Shape (scopes,): as in `ShardParts`."""

    @classmethod
    def of(cls, claims: Claims, holding: Holding, policy: CompiledPolicy) -> OneShard | None:
        """Return what sums tell without a division; `None` where a flow has several limited scopes, or sums are large.

        Which flows get the tokens is decided in the shard. A division would only tell which of several scopes stops a
        flow first.
        """
        limited, scopes = by_row(np.logical_or, policy.shared.is_limited), len(policy.shared)
        passed = np.append(limited, False)[claims.shared_scope]
        most_bits = int(max(claims.demand.max(initial=0), holding.tokens.max(initial=0))).bit_length()
        is_large = most_bits + len(claims.shard).bit_length() > _EXACT_BITS
        if is_large or int(by_row(np.add, passed.astype(np.int8)).max(initial=0)) > 1:
            return None
        wanted = np.zeros((scopes, 2), dtype=np.int64)
        for scope, is_passed in zip(claims.shared_scope.T, passed.T, strict=True):
            if is_passed.any():
                at = slice(None) if is_passed.all() else np.flatnonzero(is_passed)
                wanted += sums(scope[at], _of_a_byte(claims.demand[at]), scopes)
        is_over = (wanted > holding.tokens) & holding.is_limited
        is_short = by_row(np.logical_or, is_over) & ~holding.is_shut
        passing = np.where(holding.is_shut[:, None], 0, wanted) << _LOOSE_BITS
        is_bound = is_short | by_row(np.logical_or, holding.is_limited & (passing >= holding.tokens * _LEAST_BOUND))
        enforces = policy.shared.on_excess != OnExcess.OBSERVE
        return cls(is_short, (is_short & enforces).any() & ~is_bound)


def _of_a_byte(demand: Int64s) -> Int64s:
    """Return the demand with at least a byte for flows that want a message, which needs a shard that may take bytes."""
    messages, size_bytes = demand.T
    return beside(messages, np.maximum(size_bytes, messages > 0))


def _in_fine_units(claims: Claims) -> Int64s:
    """Return the demand of all flows in fine units, shape (n, 2); at most `MOST_TOKENS_BITS` bits of tokens."""
    demand = claims.demand
    if int(demand.max(initial=0)) >> MOST_TOKENS_BITS:
        surplus_bits = np.maximum(bit_length(by_row(np.maximum, demand)) - MOST_TOKENS_BITS, 0)
        demand = demand >> surplus_bits[:, None]
    fine = _of_a_byte(demand)
    fine <<= FINE_BITS
    return fine


@dataclass(frozen=True, slots=True, eq=False)
class _Seating:
    """The flows that draw on scopes of one level, with their seats; arrays run over those flows."""

    rows: Int64s | None
    """The positions of the flows among all flows; `None` if these are all flows."""

    scope: Int64s
    seat: Int64s

    @classmethod
    def of_level(cls, scope: Int64s, shard: Int64s, scopes: int) -> _Seating:
        """Return the seating of a level, given all flows' scopes there, -1 for none, and their shards."""
        if scope.min(initial=0) >= 0:
            return cls(None, scope, shard * scopes + scope)
        rows = np.flatnonzero(scope >= 0)
        return cls(rows, scope[rows], shard[rows] * scopes + scope[rows])

    def of(self, flows: np.ndarray) -> np.ndarray:
        """Return the values of these flows, given those of all flows; with one column or several."""
        if self.rows is None:
            return flows
        return flows[self.rows] if flows.ndim == 1 else rows_of(flows, self.rows)


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """One pass over all levels, each of which divides the demand that the narrower ones have left."""

    demand: Int64s
    """Shape (n, 2): the demand that is left after all levels."""

    levels: list[tuple[_Seating, LevelParts]]
    """The levels that limit any flow, but for the last column of scopes, the widest, where `has_widest`."""

    has_widest: bool

    @classmethod
    def of(
        cls, claims: Claims, demand: Int64s, holding: Holding, advance_micro: Int64s, policy: CompiledPolicy,
        *, is_cut: bool,
    ) -> _Pass:  # fmt: skip
        """Divide level by level; `is_cut` tells whether `demand` is less than what the flows claim."""
        observes, scopes = policy.shared.on_excess == OnExcess.OBSERVE, len(policy.shared)
        limited, levels, has_widest = by_row(np.logical_or, holding.is_limited), [], False
        domain = None
        if (policy.shared.weight != 1).any():
            domain = domains_of(enforcing_scopes(claims.shared_scope, policy))
        for column, scope in enumerate(claims.shared_scope.T):
            at = _Seating.of_level(scope, claims.shard, scopes)
            is_here = numbers(at.scope, scopes) > 0
            if not (is_here & limited).any():
                continue
            has_widest = column == claims.shared_scope.shape[1] - 1
            wanted, own, ahead_milli = at.of(demand), at.of(claims.weight), at.of(claims.ahead_milli)
            own = own if domain is None else weights_in(at.scope, own, at.of(domain), policy)
            if is_cut:
                # A flow that a narrower scope stops takes nothing here: it is ahead of others there, but of none here.
                is_stopped = by_row(np.logical_and, wanted == 0) & by_row(np.logical_or, at.of(claims.demand) > 0)
                ahead_milli = ahead_milli * ~is_stopped[:, None]
            prices = claims.prices if claims.prices is None or at.rows is None else claims.prices.take(at.rows)
            counted_milli = ahead_milli if prices is None else prices.counted(ahead_milli, at.scope)
            weight = own if prices is None else prices.weights(own, at.scope)
            parts = Level(
                wanted, counted_milli, own, ahead_milli, _scaled(weight, at.scope, scopes), at.scope, at.seat, holding,
                advance_micro.reshape(-1, 2),
            ).divided()  # fmt: skip
            levels.append((at, parts))
            if parts.granted is not wanted:
                is_cut = True
                passed = parts.granted
                if (is_here & observes).any():
                    passed = np.where(observes[once(at.scope)][:, None], wanted, passed)
                demand = passed if at.rows is None else replaced(demand, at.rows, passed)
        return cls(demand, levels, has_widest)

    def can_be_taken(self, demand: Int64s, policy: CompiledPolicy) -> Int64s | None:
        """Return the demand less what wider levels keep flows from taking, if other flows want that; else `None`.

        An observing scope keeps nothing from any flow, so it has nothing for the others to take up.
        """
        enforces = policy.shared.on_excess != OnExcess.OBSERVE
        out, is_wanted = demand, False
        for at, parts in self.levels[:-1] if self.has_widest else self.levels:
            scopes, passed = len(parts.is_short), at.of(self.demand)
            if passed is parts.granted or not (parts.is_short & enforces).any():
                continue
            is_kept = by_row(np.logical_or, passed + (parts.granted >> _LOOSE_BITS) < parts.granted)
            is_cut = by_row(np.logical_or, parts.granted < at.of(demand)) & ~is_kept
            leaves, lacks = (np.bincount(at.scope[each], minlength=scopes) > 0 for each in (is_kept, is_cut))
            taken_up = parts.is_short & enforces & leaves & lacks
            if taken_up.any():
                is_kept &= taken_up[at.scope]
                kept = np.flatnonzero(is_kept) if at.rows is None else at.rows[is_kept]
                out = replaced(out, kept, np.minimum(rows_of(out, kept), rows_of(self.demand, kept)))
                is_wanted = True
        return out if is_wanted else None

    def parts(self, claims: Claims, holding: Holding, advance_micro: Int64s, policy: CompiledPolicy) -> ShardParts:
        """Return the result of all levels, in arrays of the shape of `advance_micro`."""
        shape = advance_micro.shape
        seats = shape[0] * shape[1]
        observes = policy.shared.on_excess == OnExcess.OBSERVE
        part, due, account = np.zeros((3, seats, 2), dtype=np.int64)
        is_counted, is_filled = np.zeros((2, seats, 2), dtype=np.bool_)
        bound = np.full((seats, 2), NO_BOUND, dtype=np.int64)
        next_ahead = np.full(seats, NOBODY, dtype=np.int64)
        is_short = np.zeros(shape[1], dtype=np.bool_)
        is_light = np.zeros(seats, dtype=np.bool_)
        passes_light = (claims.demand[:, Dimension.BYTES] < claims.demand[:, Dimension.MESSAGES]) & (
            self.demand[:, Dimension.MESSAGES] > 0
        )
        before_micro = advance_micro.reshape(-1, 2)
        for at, level in self.levels:
            passing = at.of(self.demand)
            if observes.any():
                passing = np.where(observes[once(at.scope)][:, None], level.granted, passing)
            part += sums(at.seat, passing, seats)
            due, account = due + level.due, account + level.account
            is_counted, is_filled = is_counted | level.is_counted, is_filled | level.is_filled
            bound, next_ahead = np.minimum(bound, level.ahead_bound_milli), np.minimum(next_ahead, level.next_ahead)
            before_micro = np.where(level.is_told_anew, _in_units(level.before, MICRO), before_micro)
            is_short |= level.is_short & ~observes
            if passes_light.any():
                is_light[at.seat[at.of(passes_light)]] = True
        part = np.where(is_counted, np.minimum(part, due), part)  # flows' parts are rounded up
        passing = sums(np.arange(seats) % shape[1], part >> FINE_BITS - _LOOSE_BITS, shape[1])
        is_bound = holding.is_limited & (passing >= holding.tokens * _LEAST_BOUND)
        return ShardParts(
            _in_units(part + _HALF_MILLI, 1000).reshape(shape), _in_units(due, MICRO).reshape(shape),
            _in_units(account, MICRO).reshape(shape), before_micro.reshape(shape),
            is_counted.reshape(shape), is_filled.reshape(shape), bound.reshape(shape),
            next_ahead.reshape(shape[:2]), is_light.reshape(shape[:2]),
            is_short.any() & ~by_row(np.logical_or, is_bound),
        )  # fmt: skip


def _scaled(weight: Int64s, scope: Int64s, scopes: int) -> Int64s:
    """Return the weights, scaled down where one in the same scope is larger than `_MOST_WEIGHT`."""
    if weight.max(initial=1) <= _MOST_WEIGHT:
        return weight
    most = largest(scope, weight, scopes, least=1)[once(scope)]
    return np.where(most > _MOST_WEIGHT, np.maximum(weight * _MOST_WEIGHT // most, 1), weight)


def _in_units(fine: Int64s, unit: int) -> Int64s:
    """Return amounts in fine units as parts of a token, of which `unit` make one; rounded down."""
    return (fine >> FINE_BITS) * unit + ((fine & _FINE_MASK) * unit >> FINE_BITS)
