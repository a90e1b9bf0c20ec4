"""What every shard's flows are due of what the shared scopes hold, and how far each shard is ahead of its due.

The division is weighted max-min over the demand of every active flow, one by one (`allocation`): first within the
tenants, then within the resource groups, then within the job, each demand being cut by the levels before. What a wider
level keeps a flow from taking of a narrower one goes to the others of that, in a second pass. A scope that has more
than is then taken of it is *loose*: nobody competes for it, and it does not say in which order flows go.

A shard may take more than it was lent: the last message overdraws, and what stands between two epochs grows. The
scope's bucket repays that; so all shards would, again and again, for one that has large messages. So a scope in which
somebody is held back keeps an *account* for every shard: how far its flows were served beyond their due. The next
division starts from there. The account is owed by its flows as their leads say, some of which may be behind (`debts`).
At the level that flows are filled to, each is due so much, has had what it owes of it, and the rest is lent to its
shard. One that owes more takes no part, and what it owes falls by what it was due::

    lent_k = sum over the flows of max(0, due_f(level) - owed_f),     over all shards what the scope holds

What is lent is due to the flows that take part, and the others leave it to them: with what is lent goes a bound on how
far a flow may be ahead that takes of it. So a small message that waits beside large ones neither lets them through nor
waits for them, and repays nothing of theirs. What nobody else wants goes to those who are too far ahead, and what they
owe is forgiven.

A level is a span of virtual time at the scope's rates. So this is start-time fair queueing between shards, as
`fair_queue` is within one: of two namespaces in different shards that stay backlogged, neither gets further ahead than
by a message of its shard, whatever the sizes, for ever, but for the rounding of levels. In a scope above their domains
flows count by their own weights times their domains'. Where a scope is short of both resources and the flows of one
shard differ in which of them dominates, the mixture that they will be served in is taken from what they ask for, and
they may fall behind by a few hundredths; where two levels run short at once and their rates differ in proportion, by a
fifth, and by more where a shard is lent only a few messages an epoch. A flow that comes anew is due nothing in the
epoch that it comes in: what it takes then is lost to the others of its shard, up to its part of one epoch.

An account below 0 is a credit: what rounding withheld, or what a shard was due of one resource while it was too far
ahead in the other. A division takes up credits of half of what there is at most. A shard without demand keeps none, and
what it is ahead passes as for one flow of weight 1. When nobody is held back, all accounts are closed, as leads
are forgotten.

Amounts are counted in ``2**-20`` tokens, or in coarser parts where a scope holds so much that sums would leave int64.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import bit_length
from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.lending.debts import NOBODY
from spark_throttle.core.lending.level_parts import FINE_BITS, MOST_TOKENS_BITS, Holding, Level, LevelParts
from spark_throttle.core.names.matching import domains_of, enforcing_scopes
from spark_throttle.core.quota import MICRO, Bools, CompiledPolicy, Dimension, Int64s, OnExcess
from spark_throttle.core.state import NO_BOUND

_FINE_MASK = (1 << FINE_BITS) - 1
_HALF_MILLI = (1 << FINE_BITS) // 2000
_MOST_WEIGHT = 1000
_LOOSE_BITS, _LEAST_BOUND = 4, 15
"""A scope is loose when more than so small a part of it is left over, ``2**-4``: rounding leaves less."""


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """The demand of all active flows; arrays run over the flows of all shards."""

    shard: Int64s
    shared_scope: Int64s
    """Shape (n, 3), as `matching.Matches.shared_scope`."""

    weight: Int64s
    demand: Int64s
    """Shape (n, 2), in messages and bytes."""

    ahead_milli: Int64s
    """Shape (n, 2), as `UsageReport.ahead_milli`."""


@dataclass(frozen=True, slots=True, eq=False)
class ShardParts:
    """What a division comes to; arrays of shape (shards, scopes, 2)."""

    part_milli: Int64s
    """What the shard's flows are to be lent, in thousandths of a token; the rest is spare."""

    due_micro: Int64s
    """What the scope by itself would lend them."""

    account_micro: Int64s
    """How far the shard is ahead before it has had that: of what the level gives its flows, all is still to come."""

    is_counted: Bools
    """Whether what the shard is lent counts: where its flows run short."""

    is_filled: Bools
    """Whether it takes part in the division; else it is too far ahead."""

    ahead_bound_milli: Int64s
    """How far ahead a flow of weight 1 may be to take of what is lent; `NO_BOUND` where none is too far."""

    next_ahead: Int64s
    """Shape (shards, scopes): how far ahead for its weight that flow still is which is least; `NOBODY` where none runs
    short. Comparable within a scope."""

    is_loose: Bools
    """Of every scope, while any runs short: it has more than is taken of it, as others stop its flows before."""


def divide_among_shards(claims: Claims, holding: Holding, advance_micro: Int64s, policy: CompiledPolicy) -> ShardParts:
    """Divide what the scopes hold.

    What a wider scope keeps a flow from taking of a narrower one is divided among the others of that, once.

    Parameters
    ----------
    advance_micro
        Shape (shards, scopes, 2): how far each shard is ahead.
    """
    surplus_bits = np.maximum(bit_length(claims.demand.max(axis=1, initial=0)) - MOST_TOKENS_BITS, 0)
    demand = claims.demand >> surplus_bits[:, None]
    # A message of no bytes needs a shard that may take bytes.
    demand[:, Dimension.BYTES] = np.maximum(demand[:, Dimension.BYTES], demand[:, Dimension.MESSAGES] > 0)
    demand <<= FINE_BITS
    found = _Pass.of(claims, demand, holding, advance_micro, policy)
    can_be_taken = found.can_be_taken(demand, policy)
    if can_be_taken is not None:
        found = _Pass.of(claims, can_be_taken, holding, advance_micro, policy)
    return found.parts(holding, advance_micro.shape, policy)


@dataclass(frozen=True, slots=True, eq=False)
class _Seating:
    """Which flows draw on scopes of one level, and where; arrays run over those flows."""

    rows: Int64s
    """Positions among all flows."""

    scope: Int64s
    seat: Int64s


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """All levels, each of which divides what those before it leave of the demand."""

    demand: Int64s
    """Shape (n, 2): what is left of it after all levels."""

    levels: list[tuple[_Seating, LevelParts]]

    @classmethod
    def of(
        cls, claims: Claims, demand: Int64s, holding: Holding, advance_micro: Int64s, policy: CompiledPolicy
    ) -> _Pass:
        """Divide level by level."""
        observes = policy.shared.on_excess == OnExcess.OBSERVE
        demand, levels = demand.copy(), []
        domain = domains_of(enforcing_scopes(claims.shared_scope, policy))
        for scope in claims.shared_scope.T:
            rows = np.flatnonzero(scope >= 0)
            at = _Seating(rows, scope[rows], claims.shard[rows] * advance_micro.shape[1] + scope[rows])
            weight = _weights_in(at.scope, claims.weight[rows], domain[rows], policy)
            # Who is stopped by a narrower scope takes nothing here: it is ahead of others there, and of none here.
            is_stopped = by_row(np.logical_and, demand[rows] == 0) & by_row(np.logical_or, claims.demand[rows] > 0)
            ahead_milli = np.where(is_stopped[:, None], 0, claims.ahead_milli[rows])
            parts = Level(
                demand[rows], ahead_milli // weight[:, None], ahead_milli,
                _scaled(weight, at.scope, len(policy.shared)), at.scope, at.seat, holding, advance_micro.reshape(-1, 2),
            ).divided()  # fmt: skip
            demand[rows] = np.where(observes[at.scope][:, None], demand[rows], parts.granted)
            levels.append((at, parts))
        return cls(demand, levels)

    def can_be_taken(self, demand: Int64s, policy: CompiledPolicy) -> Int64s | None:
        """Return the demand less what wider levels keep flows from taking, if others want that; else `None`.

        A scope that observes keeps nothing from anybody, so there is nothing in it to take up.
        """
        enforces = policy.shared.on_excess != OnExcess.OBSERVE
        out, is_wanted = demand, False
        for at, parts in self.levels[:-1]:
            scopes = len(parts.is_short)
            is_kept = by_row(np.logical_or, self.demand[at.rows] + (parts.granted >> _LOOSE_BITS) < parts.granted)
            is_cut = by_row(np.logical_or, parts.granted < demand[at.rows]) & ~is_kept
            leaves, lacks = (np.bincount(at.scope[each], minlength=scopes) > 0 for each in (is_kept, is_cut))
            taken_up = parts.is_short & enforces & leaves & lacks
            if taken_up.any():
                is_kept &= taken_up[at.scope]
                out, is_wanted = out.copy(), True
                out[at.rows[is_kept]] = np.minimum(out[at.rows[is_kept]], self.demand[at.rows[is_kept]])
        return out if is_wanted else None

    def parts(self, holding: Holding, shape: tuple[int, ...], policy: CompiledPolicy) -> ShardParts:
        """Return what all levels come to, in arrays of `shape`."""
        seats = shape[0] * shape[1]
        observes = policy.shared.on_excess == OnExcess.OBSERVE
        part, due, account = np.zeros((3, seats, 2), dtype=np.int64)
        is_counted, is_filled = np.zeros((2, seats, 2), dtype=np.bool_)
        bound = np.full((seats, 2), NO_BOUND, dtype=np.int64)
        next_ahead = np.full(seats, NOBODY, dtype=np.int64)
        is_short = np.zeros(shape[1], dtype=np.bool_)
        for at, level in self.levels:
            passing = np.where(observes[at.scope][:, None], level.granted, self.demand[at.rows])
            part += sums(at.seat, passing, seats)
            due, account = due + level.due, account + level.account
            is_counted, is_filled = is_counted | level.is_counted, is_filled | level.is_filled
            bound, next_ahead = np.minimum(bound, level.ahead_bound_milli), np.minimum(next_ahead, level.next_ahead)
            is_short |= level.is_short & ~observes
        part = np.where(is_counted, np.minimum(part, due), part)  # flows' parts are rounded up
        passing = sums(np.arange(seats) % shape[1], part >> FINE_BITS - _LOOSE_BITS, shape[1])
        is_bound = holding.is_limited & (passing >= holding.tokens * _LEAST_BOUND)
        return ShardParts(
            _in_units(part + _HALF_MILLI, 1000).reshape(shape), _in_units(due, MICRO).reshape(shape),
            _in_units(account, MICRO).reshape(shape), is_counted.reshape(shape), is_filled.reshape(shape),
            bound.reshape(shape), next_ahead.reshape(shape[:2]), is_short.any() & ~by_row(np.logical_or, is_bound),
        )  # fmt: skip


def _weights_in(scope: Int64s, weight: Int64s, domain: Int64s, policy: CompiledPolicy) -> Int64s:
    """Return the claims of flows on scopes of one level: their weights, times their domains' if those are narrower."""
    is_within = (domain >= 0) & (domain != scope)
    return weight * np.where(is_within, policy.shared.weight[domain], 1) if is_within.any() else weight


def _scaled(weight: Int64s, scope: Int64s, scopes: int) -> Int64s:
    """Return weights in proportion, of which none of a scope is larger than `_MOST_WEIGHT`."""
    most = np.full(scopes, 1, dtype=np.int64)
    np.maximum.at(most, scope, weight)
    most = most[scope]
    return np.where(most > _MOST_WEIGHT, np.maximum(weight * _MOST_WEIGHT // most, 1), weight)


def _in_units(fine: Int64s, unit: int) -> Int64s:
    """Return fine units as parts of a token of which `unit` make one, rounded down."""
    return (fine >> FINE_BITS) * unit + ((fine & _FINE_MASK) * unit >> FINE_BITS)
