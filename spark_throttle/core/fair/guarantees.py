"""What is guaranteed goes first: before anybody borrows, each scope is served up to its guarantee.

A guarantee has a balance, which earns at the guaranteed rate, exactly, and is charged the rows that it let go first
(KIP-599's rule: a row goes while it is not negative). What is not asked for is lent: after the batch nothing is kept of
it, unless rows of the scope were left behind. So nothing is set aside for an idle scope, and its first row goes in its
first batch. A debt stays, and is repaid before the guarantee lets another row go. Where nothing above the scope runs
short nothing is charged: there was enough for all.

Where a scope above runs short, the batch begins with a contest of those who are guaranteed something: first namespaces,
then tenants, then groups. In each, only rows below these nodes take part, and the node has the room of its guarantee or
of its own limit, whichever is less. Every other scope has its own room, so no limit lets more pass than without. What
goes is charged to each guarantee on its way. Then everybody competes for the rest, by weight, as if nothing had gone.

*Leads.* What a guarantee let go is outside of the contest of the node with its siblings, and of those above it: it is
no lead there. Below the node it was divided by the fair order, and counts as ever. A row that a node above holds may go
so; then that node holds nothing, and its lead is as if it had not.

*Nobody starves.* Guarantees of children sum to no more than what their parent has (`policy.guarantees`), and earn for
no longer than its bucket can (`Guarantees.earning_ms`). So a parent may lack the tokens only because of what went
before, such as a large row. Then all go up to their *parts* before any goes on (`Above.parts`): of what a scope has, a
guarantee's part is what its rate is of the scope's. So parts sum to no more than there is, and no claim, however old
or heavy, takes that of another, but for the row with which it ends. What parts leave is divided by the fair order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.fair.contenders import Contenders
from spark_throttle.core.fair.contest import Outcome, Standing, decide, used_tokens
from spark_throttle.core.fair.filling import UNBOUNDED
from spark_throttle.core.fair.tree import Tree
from spark_throttle.core.fair.work import Rows
from spark_throttle.core.limits.token_bucket import debit, in_micro, room_before
from spark_throttle.core.names.matching import Matches
from spark_throttle.core.quota import Bools, Dimension, Guarantees, Int64s, Level

_HEIGHTS = (Level.NAMESPACE, Level.TENANT, Level.RESOURCE_GROUP)
"""Whose guarantees are served, in this order; the height of their nodes in the tree."""


@dataclass(frozen=True, slots=True, eq=False)
class Above:
    """The shared scopes whose tokens are guaranteed."""

    is_short: Bools
    """Shape (scopes,): whether each runs short, and holds rows back."""

    room: Int64s
    """Shape (resources, scopes): as in `Scopes`."""

    rate_micro_per_ms: Int64s
    """Shape (scopes, 4): what each earns."""

    guaranteed_micro_per_ms: Int64s
    """Shape (guarantees, 4): what is guaranteed of it."""

    def parts(self, guarantees: Guarantees, of_leaf: Int64s, room: Int64s) -> Int64s | None:
        """Return the room of claims' parts of what there is, as `Claims.part`; the parameters as in `Claims`."""
        claims, part, is_enough = np.unique(of_leaf[of_leaf >= 0]), room.copy(), True
        for column, level in enumerate(_HEIGHTS):
            below = claims[(guarantees.level[claims] <= level) & (guarantees.way[claims, column] >= 0)]
            for d, have in enumerate(self.room):
                at = below[self.guaranteed_micro_per_ms[below, d] > 0]
                at = at[have[guarantees.way[at, column]] < UNBOUNDED]
                scope, asked = guarantees.way[at, column], np.zeros_like(have)
                np.add.at(asked, scope, np.clip(room[d, at] + 1, 0, UNBOUNDED // max(len(at), 1)))
                is_enough &= not (asked > have + 1).any()
                rate = self.guaranteed_micro_per_ms[at, d], np.maximum(self.rate_micro_per_ms[scope, d], 1)
                part[d, at] = np.minimum(part[d, at], proportional(have[scope] + 1, *rate, most_bits=61) - 1)
        return None if is_enough else part


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """What guarantees let go first in a batch; shapes have the guarantees, n, and the leaves of the contest."""

    guarantees: Guarantees
    of_leaf: Int64s
    """Shape (3, leaves): the guarantee of each leaf's namespace, of its tenant and of its group, -1 for none, and where
    no scope above runs short."""

    room: Int64s
    """Shape (resources, n): the most tokens that may go before a row, negative where none may; large where nothing is
    said."""

    part: Int64s | None
    """The same for the part of each claim that goes before the rest of any; `None` where there is enough for all."""

    @classmethod
    def of(cls, guarantees: Guarantees, flow: Int64s, matches: Matches, balance_micro: Int64s, above: Above) -> Claims:
        """Return the claims of the leaves' flows.

        Parameters
        ----------
        balance_micro
            Shape (n, 4): the balances of the guarantees.
        """
        room = np.full((len(above.room), len(guarantees)), UNBOUNDED)
        for d in list(Dimension)[: len(room)]:
            is_said = guarantees.rate_micro_per_ms[:, d] >= 0
            np.copyto(room[d], room_before(balance_micro[:, d], d), where=is_said)
            room[d][guarantees.rate_micro_per_ms[:, d] == 0] = -1
        scopes, rule = matches.shared_scope[flow], matches.rule[flow]
        lacks = np.append(above.is_short, False)[scopes]
        of_leaf = guarantees_of(guarantees, scopes, rule)
        for height, level in enumerate(_HEIGHTS):
            of_leaf[height, ~np.logical_or.reduce(lacks[:, level:], axis=1)] = -1
        return cls(guarantees, of_leaf, room, above.parts(guarantees, of_leaf, room))

    @property
    def are_any(self) -> bool:
        """Whether any guarantee may let a row go."""
        return bool((self.of_leaf >= 0).any())

    def left(self, balance_micro: Int64s, taken: Int64s, is_behind: Bools) -> Int64s:
        """Return the balances after the batch.

        Parameters
        ----------
        taken
            Shape (n, 4): what was charged.
        is_behind
            Shape (leaves,): whether rows of each leaf that might have gone did not.
        """
        is_said = self.guarantees.rate_micro_per_ms >= 0
        after = np.where(is_said, debit(balance_micro, in_micro(taken)), balance_micro)
        waits = np.zeros(len(self.guarantees) + 1, dtype=np.bool_)
        waits[self.of_leaf[:, is_behind]] = True
        return np.where(waits[:-1, None], after, np.minimum(after, 0))


def guarantees_of(guarantees: Guarantees, scopes: Int64s, rule: Int64s) -> Int64s:
    """Return what is guaranteed to each flow's namespace, tenant and group, shape (3, flows); -1 for nothing.

    Parameters
    ----------
    scopes, rule
        Of each flow, as in `Matches`.
    """
    found = np.full((len(_HEIGHTS), len(rule)), -1, dtype=np.int64)
    for height, level in enumerate(_HEIGHTS):
        at = np.flatnonzero(guarantees.level == level)
        if len(at):
            key, own = (rule, guarantees.rule) if level == Level.NAMESPACE else (scopes[:, level - 1], guarantees.scope)
            found[height] = _found(key, own[at], at)
            if level == Level.TENANT:  # its node in another group has no claim
                found[height, guarantees.way[found[height], 1] != scopes[:, 1]] = -1
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Served:
    """What the guarantees have let go so far."""

    count: Int64s
    """The number of first rows of each leaf."""

    standing: Standing
    room: Int64s
    """The room that is left, by scope."""

    taken: Int64s
    """Shape (resources, n): what is charged to each guarantee."""


def decide_with_guarantees(
    contenders: Contenders, eligible: Int64s, room: Int64s, claims: Claims
) -> tuple[Outcome, Int64s]:
    """Return which of the first `eligible` rows of each leaf go, and what is charged to the guarantees, shape (n, 4).

    Parameters
    ----------
    room
        Shape (resources, scopes): as in `Scopes`.
    """
    tree, rows = contenders.tree, contenders.rows
    served = _Served(np.zeros_like(eligible), contenders.standing, room, np.zeros_like(claims.room))
    for claimed in (claims.room,) if claims.part is None else (claims.part, claims.room):
        for height in range(len(_HEIGHTS)):
            if (claims.of_leaf[height] >= 0).any():
                served = _served_at(height, served, contenders, eligible, replace(claims, room=claimed))
    outcome = decide(
        tree, served.standing, rows.behind(served.count), eligible - served.count, contenders.with_room(served.room),
        contenders.tie,
    )  # fmt: skip
    taken = np.zeros((len(claims.guarantees), len(Dimension)), dtype=np.int64)
    taken[:, : len(served.taken)] = served.taken.T
    return replace(outcome, count=outcome.count + served.count), taken


def _served_at(height: int, served: _Served, contenders: Contenders, eligible: Int64s, claims: Claims) -> _Served:
    """Let the guarantees of one height let rows go."""
    tree, of_leaf = contenders.tree, claims.of_leaf[height]
    rows = contenders.rows.behind(served.count)
    left = claims.room - served.taken
    left = np.where(np.logical_or.reduce(left < 0), -1, left)
    takes_part = (of_leaf >= 0) & (left[0] >= 0)[of_leaf]
    until = np.where(takes_part, eligible - served.count, 0)
    limited = served.room
    if height == 0:
        at = np.flatnonzero(takes_part)
        until[at] = np.minimum(until[at], _passing(rows.take(at), until[at], left[:, of_leaf[at]]))
    else:
        at = np.unique(of_leaf[takes_part])
        scope, limited = claims.guarantees.scope[at], served.room.copy()
        limited[:, scope] = np.minimum(limited[:, scope], left[:, at])
    if not until.any():
        return served
    outcome = decide(tree, served.standing, rows, until, contenders.with_room(limited), contenders.tie)
    tokens = rows.tokens(np.zeros_like(until), outcome.count)
    used = used_tokens(tree, contenders.with_room(served.room), tokens)
    taken = served.taken.copy()
    for of in claims.of_leaf[height:]:  # what a tenant is guaranteed is charged to no namespace
        at = np.flatnonzero((of >= 0) & (outcome.count > 0))
        for to, each in zip(taken, tokens, strict=False):
            np.add.at(to, of[at], each[at])
    return _Served(
        served.count + outcome.count,
        _standing_after(tree, served.standing, outcome, rows, takes_part, height),
        np.where(served.room < UNBOUNDED, served.room - used, UNBOUNDED),
        taken,
    )


def _passing(rows: Rows, until: Int64s, room: Int64s) -> Int64s:
    """Return how many of the first `until` rows of each leaf go while its guarantee, with this `room`, is not spent."""
    count = np.minimum(until, room[0] + 1)
    for total, left in zip(rows.totals, room[1:], strict=False):
        last = total[rows.start] + np.clip(left, 0, total[-1])
        count = np.minimum(count, np.searchsorted(total[:-1], last, side="right") - rows.start)
    if rows.price_ns is not None:
        passed = room[Dimension.TIME] // np.maximum(rows.price_ns, 1) + 1
        count = np.where(rows.price_ns > 0, np.minimum(count, passed), count)
    return count


def _standing_after(
    tree: Tree, before: Standing, outcome: Outcome, rows: Rows, takes_part: Bools, height: int
) -> Standing:
    """Return what nodes remember after rows went by guarantees: leads below these nodes, and rows that are still held.

    A lead is first counted without what is held, before and afterwards.
    """
    count, left, none = outcome.count, rows.behind(outcome.count), np.zeros_like(outcome.count)
    leaves, nodes, _ = tree.levels
    is_below = [np.zeros(len(level), dtype=np.bool_) for level in tree.levels]
    if height > 0:
        node = leaves.has(takes_part)
        if height > 1:
            node = nodes.has(node)[nodes.parent]
            is_below[1] = node
        is_below[0] = node[leaves.parent]
    by_tenant, by_child = before.held
    held = by_tenant * (by_child >= count), by_child * (count == 0)
    now = replace(before, held=held)
    leads = []
    for k, (old, new) in enumerate(zip(before.leads, outcome.standing.leads, strict=True)):
        kept = old - tree.sums(rows.work(none, before.above[k]), k)
        if is_below[k].any():
            kept = np.where(is_below[k], new - tree.sums(left.work(none, outcome.standing.above[k]), k), kept)
        leads.append(kept + tree.sums(left.work(none, now.above[k]), k))
    return replace(now, leads=tuple(leads))


def _found(values: Int64s, among: Int64s, positions: Int64s) -> Int64s:
    """Return the position of each value among others, as `positions` has it; -1 where it is not there."""
    order = np.argsort(among, kind="stable")
    at = np.minimum(np.searchsorted(among[order], values), len(among) - 1)
    return np.where(among[order[at]] == values, positions[order[at]], -1)
