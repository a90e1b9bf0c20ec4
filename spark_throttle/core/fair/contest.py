"""Scopes that run short choose the rows that go, from the narrowest to the widest, and the batch leaves leads.

Scopes are nodes of the fair tree that have tokens of their own. They choose from the narrowest to the widest: what a
tenant's tokens let pass, in the tenant's fair order, is what its group may choose from, and so on to the job (`turns`
for each). A scope that does not run short orders nothing. A tenant with nodes in several groups is no node of the tree.
It chooses last, from what all others let pass, as if it were its nodes' parent; then the others choose again without
what it refused. So it is asked only for rows that could go, and holds nobody back whom it does not run short for.

What a scope could not use is given out in another round: after the batch no flow has an eligible row left all of whose
scopes have a balance that is not negative. Normally there is one round; a top that is short of two resources may need
another (`turns`).

Afterwards every node is told what its children were really served, and its fluid is served the same. The fluid of a
node asks for the rows that the narrower scopes let pass, as its rows did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.segments import ranges
from spark_throttle.core.fair.filling import UNBOUNDED, Entries
from spark_throttle.core.fair.promises import kept_promises
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.turns import serve
from spark_throttle.core.fair.water import covered
from spark_throttle.core.fair.work import Rows
from spark_throttle.core.quota import Bools, Int64s


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """What the nodes of a tree remember from one batch to the next."""

    leads: tuple[Int64s, ...]
    """The leads of leaves, of tenants in groups, and of the job's children."""

    tenant_leads: Int64s
    """The leads of tenants' nodes among the nodes of the same tenant."""

    held: tuple[Int64s, ...]
    """Shape (leaves,) each, 0 or 1: whether the tenant's node holds the first row that no other holds; and whether the
    child of the job does."""

    @classmethod
    def new(cls, tree: Tree) -> Standing:
        """Return the standing of a tree that never ran short."""
        sizes = [len(level) for level in tree.levels]
        zeros = [np.zeros(n, dtype=np.int64) for n in [*sizes, sizes[1], sizes[0], sizes[0]]]
        return cls(tuple(zeros[:3]), zeros[3], tuple(zeros[4:]))

    @property
    def above(self) -> tuple[Int64s, Int64s, Int64s]:
        """How many first rows of each leaf the nodes of each level count as sent by their children."""
        tenant, child = self.held
        return tenant + child, child, np.zeros_like(child)


@dataclass(frozen=True, slots=True, eq=False)
class Scopes:
    """The scopes that are nodes of the tree; -1 stands for none."""

    tenant: Int64s
    """The scope of each tenant's node: one for all nodes of a tenant."""

    child: Int64s
    """The scope of each child of the job."""

    job: Int64s
    """Shape (1,)."""

    room: Int64s
    """Shape (resources, scopes): the most tokens that may go before a row, negative if none may; large if unlimited."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a batch serves."""

    count: Int64s
    """The number of rows of each leaf that go."""

    standing: Standing
    room: Int64s
    """The room left, by scope; negative where the scope is spent."""

    rounds: int


@dataclass(frozen=True, slots=True, eq=False)
class _Round:
    """One filling: how many rows of each leaf the scopes of each height let pass."""

    passing: list[Int64s]
    """After leaves' own limits, tenants, children of the job, and the job."""

    held: tuple[Int64s, Int64s]
    asked: Int64s
    """What other scopes would let pass, by leaf of a tenant that divided its tokens between several nodes; else 0."""


def decide(tree: Tree, standing: Standing, rows: Rows, eligible: Int64s, scopes: Scopes, tie: Int64s) -> Outcome:
    """Return which of the first `eligible` rows of each leaf go."""
    done, room, now, passing, rounds = np.zeros_like(eligible), scopes.room, standing, None, 0
    asked = np.zeros_like(eligible)
    while True:
        left = rows.behind(done) if rounds else rows
        filled = _fill(tree, now, left, eligible - done, replace(scopes, room=room), tie)
        count = filled.passing[3]
        now = _advanced(tree, now, left, count, filled.held)
        asked = np.maximum(asked, done + filled.asked)
        # Where a wider scope is spent, no row goes in this round, so the fluid is asked for none.
        may_go = is_open_to(tree, replace(scopes, tenant=np.full_like(scopes.tenant, -1)), room) if rounds else True
        reached = [done + np.where(may_go, each, 0) for each in filled.passing]
        passing = reached if passing is None else [np.maximum(a, b) for a, b in zip(passing, reached, strict=True)]
        room = room - used_tokens(tree, scopes, left.tokens(np.zeros_like(count), count))
        done, rounds = done + count, rounds + 1
        if not (is_open_to(tree, scopes, room) & (done < eligible)).any():
            break
    if rounds > 1 and (several := _several(scopes.tenant)).max(initial=-1) >= 0:
        # A tenant that did not choose in the last round asks its groups for what its tokens would let pass, no more.
        more = _chosen_by_tenants(tree, now, rows.behind(done), eligible - done, several, room, tie)
        passing[1] = np.minimum(passing[1], np.maximum(passing[2], done + more))
    settled = _settled(tree, standing, now, rows, passing)
    tenant_leads = _tenants_settled(tree, standing, rows, asked, done, scopes, room)
    return Outcome(done, replace(settled, tenant_leads=tenant_leads), room, rounds)


def honoured(tree: Tree, standing: Standing, rows: Rows, eligible: Int64s, levels: int) -> Standing:
    """Return what was remembered under other weights, with leads that the nodes' siblings can pay under these.

    Parameters
    ----------
    levels
        A bit for each level that has other weights; where they stay, what is owed is paid in time.
    """
    leads = []
    for height, (level, lead, sent) in enumerate(zip(tree.levels, standing.leads, standing.above, strict=True)):
        row = rows.work(sent, np.minimum(sent + 1, eligible))
        for below in tree.levels[:height]:
            row = below.largest(row)
        leads.append(kept_promises(level, lead, row) if levels >> height & 1 else lead)
    return replace(standing, leads=tuple(leads))


def _is_spent(room: Int64s) -> Bools:
    """Return whether each scope has no room left; behind them `False`, for no scope."""
    return np.append((room < 0).any(axis=0), False)


def is_open_to(tree: Tree, scopes: Scopes, room: Int64s) -> Bools:
    """Return whether all scopes of each leaf have room."""
    is_open = ~_is_spent(room)
    tenant = tree.levels[0].parent
    child = tree.levels[1].parent[tenant]
    return is_open[scopes.tenant][tenant] & is_open[scopes.child][child] & is_open[scopes.job[0]]


def used_tokens(tree: Tree, scopes: Scopes, tokens: Int64s) -> Int64s:
    """Return the tokens that the leaves' rows take of each scope, shape (resources, scopes)."""
    used = np.zeros((len(tokens), scopes.room.shape[1] + 1), dtype=np.int64)
    for height, scope in ((1, scopes.tenant), (2, scopes.child), (3, scopes.job)):
        for to, taken in zip(used, tree.sums(tokens, height), strict=True):
            np.add.at(to, scope, taken)
    return used[:, :-1]


@dataclass(frozen=True, slots=True, eq=False)
class _Entrants:
    """The leaves below the scopes of one height, as they enter a batch."""

    tree: Tree
    leads: list[Int64s]
    rows: Rows
    passing: list[Int64s]
    """How many rows of each leaf pass to every level; the last are those that the scopes may choose from."""

    held: list[Int64s]
    """As `Standing.held`, for the inner levels of the tree."""

    tie: Int64s

    def served(self, scope: Int64s, room: Int64s) -> tuple[Int64s, list[Int64s]]:
        """Return how many rows of each leaf the scopes of the tops let pass, and what nodes below them hold.

        If no scope runs short, it returns all, and no list of what is held.
        """
        tree, until = self.tree, self.passing[-1]
        of_top = np.concatenate([room, np.full((len(room), 1), UNBOUNDED)], axis=1)[:, scope]
        wanted = tree.sums(self.rows.tokens(np.zeros_like(until), until), len(tree.levels))
        is_spent = np.logical_or.reduce(of_top < 0)  # an empty message, too, waits for bytes
        is_short = ~is_spent & np.logical_or.reduce(wanted > of_top + 1)
        if not (is_short | is_spent).any():
            return until, []
        held, before = list[Int64s](), np.zeros_like(until)
        for flags in reversed(self.held):
            held.insert(0, flags * (until > before))
            before += held[0]
        # A scope that is spent chooses nothing: what its nodes hold does not depend on the rounds of others.
        waits = is_spent[tree.top_of_leaf()]
        passing, after = np.where(waits, 0, until), [np.where(waits, flags, 0) for flags in held]
        if is_short.any():
            part, at = tree.below(is_short)
            leaf = at[0]
            leads = [lead[to] for lead, to in zip(self.leads, at, strict=True)]
            holders = [_holders(part, height, flags[leaf]) for height, flags in enumerate(held, start=1)]
            passed, room = [each[leaf] for each in self.passing], of_top[:, is_short]
            turns = serve(Entries(part, leads, self.rows.take(leaf), passed, holders, self.tie[leaf], room))
            passing[leaf] = turns.count
            for of_leaf, holds in zip(after, turns.held, strict=True):
                of_leaf[leaf[holds[holds >= 0]]] = 1
        return passing, after


def _fill(tree: Tree, standing: Standing, rows: Rows, eligible: Int64s, scopes: Scopes, tie: Int64s) -> _Round:
    """Let the scopes choose; tenants with several nodes choose from what all others let pass, as often as it takes."""
    several = _several(scopes.tenant)
    if several.max(initial=-1) < 0:
        return _passed(tree, standing, rows, eligible, scopes, tie)
    alone = replace(scopes, tenant=np.where(several < 0, scopes.tenant, -1))
    scope = several[tree.levels[0].parent]
    is_spent = _is_spent(scopes.room)[scope]  # asks its groups for nothing
    until, asked = eligible, np.zeros_like(eligible)
    while True:
        passed = _passed(tree, standing, rows, until, alone, tie)
        wanted = passed.passing[-1]
        chosen = _chosen_by_tenants(tree, standing, rows, wanted, several, scopes.room, tie)
        is_less = (chosen < wanted) | (is_spent & (until > 0))
        if not is_less.any():
            return replace(passed, passing=[eligible, *passed.passing[1:]], asked=asked)
        is_cut = (scope >= 0) & np.isin(scope, scope[is_less])
        until = np.where(is_cut, chosen, until)
        asked = np.where(is_cut, np.maximum(asked, wanted), asked)


def _chosen_by_tenants(
    tree: Tree, standing: Standing, rows: Rows, wanted: Int64s, scope: Int64s, room: Int64s, tie: Int64s
) -> Int64s:
    """Return how many of the first `wanted` rows of each leaf the tenants' scopes let pass, over all their nodes."""
    over, leaf = _tenants(tree.levels[0], scope)
    unsent = standing.leads[0] - rows.work(np.zeros_like(wanted), standing.above[0])
    leads, none = [unsent[leaf], standing.tenant_leads[over.order]], np.zeros(len(leaf), dtype=np.int64)
    entrants = _Entrants(over.tree, leads, rows.take(leaf), [wanted[leaf], wanted[leaf]], [none], tie[leaf])
    chosen = wanted.copy()
    chosen[leaf], _ = entrants.served(over.scope, room)
    return chosen


def let_pass(
    tree: Tree, standing: Standing, rows: Rows, until: Int64s, scopes: Scopes, tie: Int64s, height: int
) -> Int64s:
    """Return how many of the first `until` rows of each leaf the scopes of one height alone would let pass.

    Parameters
    ----------
    height
        1 for tenants, 2 for the children of the job, 3 for the job.
    """
    if height == 1 and _several(scopes.tenant).max(initial=-1) >= 0:
        return _chosen_by_tenants(tree, standing, rows, until, scopes.tenant, scopes.room, tie)
    scope = (scopes.tenant, scopes.child, scopes.job)[height - 1]
    return _entrants(tree, standing, rows, [until] * height, tie).served(scope, scopes.room)[0]


def _entrants(tree: Tree, standing: Standing, rows: Rows, passing: list[Int64s], tie: Int64s) -> _Entrants:
    """Return the leaves as they enter the contest for the scopes of the next height, after the narrower ones passed.

    A node that is served for its own scope has sent nothing yet: what it holds itself is among its first rows again.
    """
    by_tenant, by_child = standing.held
    (lead, tenant_lead, child_lead), none = standing.leads, np.zeros_like(by_tenant)
    if len(passing) == len(tree.levels):
        return _Entrants(tree, [lead, tenant_lead, child_lead], rows, passing, [by_tenant, by_child], tie)
    unsent = lead - rows.work(none, by_tenant + by_child)
    if len(passing) == 1:
        return _Entrants(tree.upper(1), [unsent], rows, passing, [], tie)
    leads = [unsent + rows.work(none, by_tenant), tenant_lead - tree.sums(rows.work(none, by_child), 1)]
    return _Entrants(tree.upper(2), leads, rows, passing, [by_tenant], tie)


def _passed(tree: Tree, standing: Standing, rows: Rows, eligible: Int64s, scopes: Scopes, tie: Int64s) -> _Round:
    """Let the scopes of each height choose from what the narrower ones let pass."""
    passed, chosen, none = eligible, list[list[Int64s]](), np.zeros_like(eligible)
    passing = [passed]
    for scope in (scopes.tenant, scopes.child, scopes.job):
        if scope.max(initial=-1) < 0:
            passing.append(passed)
            chosen.append([])
            continue
        passed, held = _entrants(tree, standing, rows, list(passing), tie).served(scope, scopes.room)
        passing.append(passed)
        chosen.append(held)
    chosen_by_tenant = chosen[1][0] if chosen[1] else none
    held = chosen[2]
    if not held:
        return _Round(passing, (chosen_by_tenant, none), none)
    # A tenant's node all of whose rows the job took still holds the row that its group refused.
    is_taken = tree.sums(passing[2] - passed, 1) == 0
    return _Round(passing, (np.where(is_taken[tree.levels[0].parent], chosen_by_tenant, held[0]), held[1]), none)


def _several(scope: Int64s) -> Int64s:
    """Return the scope of each node that shares it with another node, -1 for the others."""
    numbers = np.bincount(scope + 1)
    numbers[0] = 0
    return np.where(numbers[scope + 1] > 1, scope, -1)


@dataclass(frozen=True, slots=True, eq=False)
class _Tenants:
    """Tenants with several nodes as tops."""

    tree: Tree
    order: Int64s
    """The tenants' nodes, tenant by tenant."""

    scope: Int64s


def _tenants(leaves: Level, scope: Int64s) -> tuple[_Tenants, Int64s]:
    """Return the tree of the tenants' scopes, their nodes and leaves, and the positions of these leaves."""
    order = np.argsort(scope, kind="stable")
    order = order[scope[order] >= 0]
    tops, top = np.unique(scope[order], return_inverse=True)
    counts = leaves.bounds[order + 1] - leaves.bounds[order]
    at = ranges(leaves.bounds[order], counts)
    below = Level.of(np.repeat(np.arange(len(order)), counts), len(order), leaves.weight[at])
    nodes = Level.of(top, len(tops), np.ones(len(order), dtype=np.int64))
    return _Tenants(Tree((below, nodes)), order, tops), at


def _holders(tree: Tree, height: int, flags: Int64s) -> Int64s:
    """Return the leaf whose row each node of a level holds."""
    node = tree.upper(height).top_of_leaf()
    out = np.full(len(tree.levels[height]), -1, dtype=np.int64)
    at = np.flatnonzero(flags)
    out[node[at]] = at
    return out


def _advanced(tree: Tree, now: Standing, rows: Rows, count: Int64s, held: tuple[Int64s, Int64s]) -> Standing:
    """Return the standing with what was served, before the fluid is."""
    after = replace(now, held=held)
    leads = [
        lead + tree.sums(_served(rows, before, count + then), height)
        for height, (lead, before, then) in enumerate(zip(now.leads, now.above, after.above, strict=True))
    ]
    return Standing(tuple(leads), now.tenant_leads, held)


def _served(rows: Rows, before: Int64s, after: Int64s) -> Int64s:
    """Return the work of each leaf's rows `before` up to `after`; negative where `after` is less."""
    zero = np.zeros_like(before)
    return rows.work(zero, after) - rows.work(zero, before)


def _settled(tree: Tree, standing: Standing, now: Standing, rows: Rows, passing: list[Int64s]) -> Standing:
    """Return the standing after the fluid of every node is served what its children were."""
    leads = []
    for height, level in enumerate(tree.levels):
        asked = tree.sums(_served(rows, standing.above[height], passing[height]), height)
        leads.append(_after_fluid(level, standing.leads[height], now.leads[height], asked))
    return Standing(tuple(leads), standing.tenant_leads, now.held)


def _tenants_settled(
    tree: Tree, standing: Standing, rows: Rows, asked: Int64s, count: Int64s, scopes: Scopes, room: Int64s
) -> Int64s:
    """Return the leads among a tenant's nodes: none, unless its tokens ended."""
    zero, leads = np.zeros_like(count), np.zeros_like(standing.tenant_leads)
    is_spent = _is_spent(room)
    several = _several(scopes.tenant)
    scope = np.where(is_spent[several], several, -1)
    if (scope >= 0).any():
        over, _ = _tenants(tree.levels[0], scope)
        before = standing.tenant_leads[over.order]
        sent, wanted = (tree.sums(rows.work(zero, each), 1)[over.order] for each in (count, np.maximum(asked, count)))
        leads[over.order] = _after_fluid(over.tree.levels[1], before, before + sent, wanted)
    return leads


def _after_fluid(level: Level, lead: Int64s, served_lead: Int64s, asked: Int64s) -> Int64s:
    """Return the leads after the fluid of each parent is served what its children were.

    Leads of siblings sum to what the fluid still lacks, so that it is given the sum of `served_lead`.
    """
    want = np.maximum(asked + lead, 0)
    got = covered(want, level.weight, level.parent, level.bounds, level.totals(served_lead))
    after = served_lead - got
    return np.where((served_lead - lead >= asked) & (after < 0), 0, after)
