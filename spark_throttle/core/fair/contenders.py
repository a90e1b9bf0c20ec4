"""The flows that compete in a batch, as leaves of the fair tree, and what the tree remembers, by name.

A flow competes if a scope on its way runs short. Its way is job, group, tenant, namespace; a tenant without a group is
a child of the job. Where a group is shared between namespaces, each of them has a node in the place of its tenant's.

Names keep what a batch leaves: leads, and held rows. Where no scope runs short, everybody has had what was asked for,
and nothing is remembered. A held row may be gone before it goes: it was rejected, or it became too old. So leads are
kept as if no node had sent the row that it holds.

Of rows that left before, some turn out to have cost more than they were charged, or less (`corrections`). A batch adds
that to the leads with which it begins, at each level. A node that is behind so, and has no row, is forgiven.

What a row counts depends on which scopes run short, and on their room (`work`); a lead stays for many batches. So it is
kept in work by the least rates on its parent's way, and a batch begins with it as it counts work itself: in the
proportion in which it counts the rows that wait. Where it counts those of some siblings more than those of others, the
most that it counts any decides, so that nobody's rows leave larger leads than by those rates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.corrections import CorrectedRows
from spark_throttle.core.fair.contest import Outcome, Scopes, Standing, decide, honoured, let_pass
from spark_throttle.core.fair.filling import UNBOUNDED
from spark_throttle.core.fair.layout import Layout, cost
from spark_throttle.core.fair.tree import Level, Tree
from spark_throttle.core.fair.work import (
    LEAD_BITS,
    Rows,
    beside_units,
    corrected_work,
    lasting_work,
    leaf_work,
    row_work,
    unit_work,
    until_the_end,
    work_of,
)
from spark_throttle.core.limits.budgets import paces
from spark_throttle.core.names.matching import Matches, named, positions_in, scopes_of, tenants_of
from spark_throttle.core.quota import UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s, Limits
from spark_throttle.core.state import Flows, NodeLeads

_WHOLE = np.array([1 << 30])
_PART_BITS = 60


@dataclass(frozen=True, slots=True, eq=False)
class Leads:
    """What a batch leaves of its contest."""

    lead_work: Int64s
    """Shape (flows, 2): as in `Flows`."""

    held: Int64s
    """Shape (flows, 2): as in `Flows`."""

    nodes: NodeLeads

    @classmethod
    def none(cls, flows: int) -> Leads:
        """Return no leads of `flows` flows."""
        nothing = np.zeros((flows, 2), dtype=np.int64)
        return cls(nothing, nothing, NodeLeads.none())


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """How a batch counts the leads of some nodes."""

    work: Int64s
    """The work of some rows in the batch."""

    kept: Int64s
    """The same as it is kept."""

    @classmethod
    def of(cls, units: list[Int64s], lasting: Int64s, tokens: Int64s, node: Int64s, parent: Int64s) -> Measure:
        """Return the measure of nodes.

        Parameters
        ----------
        units, lasting
            The work of a token at the nodes, as `unit_work` and `lasting_work` return it.
        tokens
            Shape (resources, flows): what the rows take of each flow that has any.
        node
            Shape (flows,): the node of each.
        parent
            Shape (nodes,): nodes of one parent have one measure. Where none has a row, that of the resource of which
            most is counted.

        Examples
        --------
        A message counts as ever, and a millisecond ten times; a row takes a nanosecond, or a second:

        >>> lasting, one = np.array([[1 << 20, 0, 0, 1 << 20]]), np.array([0])
        >>> units = [np.array([each << 20]) for each in (1, 0, 0, 10)]
        >>> rows = [np.array([[1], [0], [0], [time_ns]]) for time_ns in (1, 10**9)]
        >>> [Measure.of(units, lasting, row, one, one).counted(np.array([500])).item() for row in rows]
        [500, 5000]
        """
        alone = ~np.isin(parent, parent[node])
        work, kept = (
            np.concatenate([work_of([each[node] for each in by_token], tokens), *(each[alone] for each in by_token)])
            for by_token in (units, [*lasting.T[: len(units)]])
        )
        of = np.concatenate([parent[node], *[parent[alone]] * len(units)])
        part = proportional(work, _WHOLE, kept, most_bits=_PART_BITS)
        order = np.lexsort((part, of))
        most = order[np.searchsorted(of, parent, side="right", sorter=order) - 1]
        is_counted = part[most] > 0
        return cls(np.where(is_counted, work[most], 1), np.where(is_counted, kept[most], 1))

    @classmethod
    def same(cls, nodes: int) -> Measure:
        """Return the measure of nodes where all that counts is messages."""
        ones = np.ones(nodes, dtype=np.int64)
        return cls(ones, ones)

    def take(self, at: Int64s) -> Measure:
        """Return the measure of the nodes at `at`."""
        return Measure(self.work[at], self.kept[at])

    def counted(self, lead: Int64s) -> Int64s:
        """Return leads that were kept as the batch counts them."""
        return _in_proportion(lead, self.work, self.kept)

    def to_keep(self, lead: Int64s) -> Int64s:
        """Return leads of the batch as they are kept."""
        return _in_proportion(lead, self.kept, self.work)


@dataclass(frozen=True, slots=True, eq=False)
class _Nodes:
    """The inner nodes of a tree."""

    tenant_names: pa.StringArray
    group: Int64s
    """Shape (children,): the group of each child of the job, -1 for a tenant."""

    child_tenant: Int64s
    """Shape (children,): the tenant of each child of the job, -1 for a group."""

    tenant: Int64s
    """Shape (nodes,): the tenant of each node below; -1 for a namespace that has a node of its own."""

    def scopes(self, policy: CompiledPolicy) -> tuple[Int64s, Int64s]:
        """Return the shared scopes of the nodes and of the children, -1 where the policy does not name a tenant."""
        of_tenant, of_group = scopes_of(positions_in(policy.tenant_names, self.tenant_names), self.group, policy)
        of_tenant = np.append(of_tenant, -1)
        return of_tenant[self.tenant], np.where(self.group >= 0, of_group, of_tenant[self.child_tenant])


@dataclass(frozen=True, slots=True, eq=False)
class Contenders:
    """The flows that compete."""

    flow: Int64s
    """The flow of each leaf."""

    tree: Tree
    standing: Standing
    scopes: tuple[Int64s, Int64s, Int64s]
    """The shared scopes of the tenants' nodes, of the children of the job, and of the job; -1 for none."""

    rows: Rows
    tie: Int64s
    nodes: _Nodes
    measures: tuple[Measure, Measure]
    """How the batch counts the leads below each tenant's node, and beside it; those of the job's children it counts as
    they are kept."""

    units: list[Int64s] | None
    """As `leaf_work` returns it."""

    @classmethod
    def of(  # noqa: PLR0913 - all that a tree is made of
        cls,
        flow: Int64s,
        layout: Layout,
        flows: Flows,
        limits: Limits,
        matches: Matches,
        nodes: NodeLeads,
        policy: CompiledPolicy,
        *,
        short: Int64s,
        room: Int64s,
        price_ns: Int64s | None,
        lapsed: Int64s | None,
        corrected: CorrectedRows | None,
        tie: Int64s,
    ) -> Contenders:
        """Return the tree over some flows.

        Parameters
        ----------
        flow
            The flows, ascending.
        layout
            All rows of the batch.
        short
            Shape (flows of the batch, 3): the shared scopes of each flow that run short and count, -1 for the others.
        room
            Shape (resources, scopes): the most tokens that may go before a row, negative where none may.
        price_ns
            Shape (flows of the batch,): the time as which a message of each flow counts; `None` if none is limited.
        lapsed
            Shape (flows of the batch,): the number of first rows of each flow that became too old; `None` if none did.
        corrected
            What turned out to cost other than it was charged, by flows of the batch; `None` for nothing.
        tie
            The rank of each of `flow` among those that are otherwise equal.
        """
        tenant_of = tenants_of(flows.names.take(pa.array(flow))).dictionary_encode()
        tenant_names, known_tenant = _with(tenant_of.dictionary, nodes.tenant)
        is_alone = np.append(policy.is_between_namespaces, False)[matches.group_scope[flow]]
        tenant = np.where(is_alone, len(tenant_names) + np.arange(len(flow)), tenant_of.indices.to_numpy())
        groups, known_group = len(policy.group_names), positions_in(policy.group_names, nodes.group)
        child = _child(matches.group[flow], tenant_of.indices.to_numpy(), groups)
        known_child = _child(known_group, known_tenant, groups)
        # A node's number tells its parent first, so that numbers that ascend lie side by side.
        ways, is_inner = len(tenant_names) + len(flow), known_tenant >= 0
        number, known_number = child * ways + tenant, (known_child * ways + known_tenant)[is_inner]
        children, numbers = np.unique(np.append(child, known_child)), np.unique(np.append(number, known_number))
        node = np.searchsorted(numbers, number)
        order = np.argsort(node, kind="stable")
        flow, node, tenant = flow[order], node[order], numbers % ways
        placed = _Nodes(
            tenant_names, np.where(children < groups, children, -1), np.where(children < groups, -1, children - groups),
            np.where(tenant < len(tenant_names), tenant, -1),
        )  # fmt: skip
        of_tenant, of_child = placed.scopes(policy)
        weights = [limits.weight[flow], _weights(of_tenant, policy.shared), _weights(of_child, policy.shared)]
        alone = np.flatnonzero(placed.tenant < 0)
        if len(alone):  # the node of a namespace is in its tenant's scope, and has its own weight
            only = np.searchsorted(node, alone)
            of_tenant[alone], weights[1][alone] = matches.shared_scope[flow[only], 0], weights[0][only]
        parents = node, np.searchsorted(children, numbers // ways), np.zeros_like(children)
        sizes = len(numbers), len(children), 1
        tree = Tree(tuple(Level.of(*each) for each in zip(parents, sizes, weights, strict=True)))
        at = np.searchsorted(numbers, known_number), np.searchsorted(children, known_child)
        scopes = of_tenant, np.where(placed.group >= 0, of_child, -1), np.zeros(1, dtype=np.int64)
        above = np.full((len(numbers), short.shape[1]), -1)
        above[tree.levels[0].parent] = short[flow]  # the same for all leaves of a node
        has_row = layout.segments.counts[flow] > 0
        waits, of_node = flow[has_row], node[has_row]
        first = layout.segments.starts[waits]
        following = cost(
            np.ones_like(first), [total[first + 1] - total[first] for total in layout.totals],
            None if price_ns is None else price_ns[waits],
        )  # fmt: skip
        passing = until_the_end(room, short[waits], of_node, following)
        units = leaf_work(above, tree, passing, policy)
        work = None if units is None else row_work(layout, flow, units, price_ns)
        rows = Rows.of(layout.segments.starts[flow], layout.totals, work, None if price_ns is None else price_ns[flow])
        rows = rows.side_by_side(layout.segments.counts[flow])
        tokens = layout.cost_of_first(layout.segments.counts, price_ns).take(waits, axis=1)
        measures = _measures(tree, scopes, above, tokens, of_node, passing, policy)
        standing = _standing(placed, tree, flows, flow, nodes.lead_work, is_inner, at=at)
        held = _held(flows.held[flow].T, layout.segments.counts[flow], None if lapsed is None else lapsed[flow])
        standing = _as_counted(standing, tree, measures, rows, held)
        if corrected is not None and units is not None:
            place = np.full(len(layout.segments.counts), -1, dtype=np.int64)
            place[flow] = np.arange(len(flow))
            standing = _corrected(standing, tree, corrected_work(corrected, place, units, short[flow]))
        return cls(flow, tree, standing, scopes, rows, tie[order], placed, measures, units)

    def under_new_weights(self, eligible: Int64s, levels: int) -> Contenders:
        """Return the flows with what can be kept of leads from a time of other weights at some `levels`."""
        return replace(self, standing=honoured(self.tree, self.standing, self.rows, eligible, levels))

    def decide(self, eligible: Int64s, room: Int64s) -> Outcome:
        """Return which of the first `eligible` rows of each leaf go.

        Parameters
        ----------
        room
            Shape (resources, scopes): as in `Scopes`.
        """
        return decide(self.tree, self.standing, self.rows, eligible, self.with_room(room), self.tie)

    def let_pass(self, until: Int64s, room: Int64s, column: int) -> Int64s:
        """Return how many of the first `until` rows of each leaf the scopes of one level alone would let pass.

        Parameters
        ----------
        column
            The column of `Matches.shared_scope`.
        """
        return let_pass(self.tree, self.standing, self.rows, until, self.with_room(room), self.tie, column + 1)

    def beside_units(self, flow: Int64s, size_bytes: Int64s) -> Int64s:
        """Return as how many units rows of some flows count without theirs; 0 for flows that do not compete."""
        units = self.units
        if units is None or len(units) <= Dimension.UNITS:
            return np.zeros_like(flow)
        order = np.argsort(self.flow, kind="stable")
        found = order[np.searchsorted(self.flow, flow, sorter=order).clip(max=len(order) - 1)]
        price_ns = None if self.rows.price_ns is None else self.rows.price_ns[found]
        return np.where(
            self.flow[found] == flow, beside_units([each[found] for each in units], size_bytes, price_ns), 0
        )

    def with_room(self, room: Int64s) -> Scopes:
        """Return the scopes of the nodes that are limited, with their room."""
        is_limited = np.append(by_row(np.logical_or, (room < UNBOUNDED).T), False)
        tenant, child, job = (np.where(is_limited[scope], scope, -1) for scope in self.scopes)
        return Scopes(tenant, child, job, room)

    def leads(self, outcome: Outcome, layout: Layout, waiting: Int64s, policy: CompiledPolicy) -> Leads:
        """Return what the contest leaves.

        Parameters
        ----------
        waiting
            The positions, ascending, of the rows that wait afterwards, as `layout` counts them.
        """
        after, tree, rank = outcome.standing, self.tree, outcome.count
        held = np.zeros((2, len(self.flow)), dtype=np.int64)
        for place in (1, 0):  # the child of the job holds the earlier row
            leaf = np.flatnonzero(after.held[place])
            row = layout.segments.order[layout.segments.starts[self.flow[leaf]] + rank[leaf]]
            found = np.searchsorted(waiting, row)
            held[place, leaf] = np.append(waiting, -1)[found] == row
            rank = rank + after.held[place]
        left = self.rows.behind(outcome.count)
        lead, tenant_lead, child_lead = (
            each - sent for each, sent in zip(after.leads, _sent(tree, left, after), strict=True)
        )
        below, beside = self.measures
        node = tree.levels[0].parent
        lead, tenant_lead = below.take(node).to_keep(lead), beside.to_keep(tenant_lead)
        among = below.to_keep(after.tenant_leads)
        flows, is_alone = len(layout.segments.counts), self.nodes.tenant[node] < 0
        lead_work, is_held = np.zeros((2, flows, 2), dtype=np.int64)
        lead_work[self.flow, 0] = np.where(is_alone, tenant_lead[node], lead)
        lead_work[self.flow, 1] = np.where(is_alone, among[node], 0)
        is_held[self.flow] = held.T
        return Leads(lead_work, is_held, self._node_leads(tenant_lead, among, child_lead, policy))

    def _node_leads(self, tenant_lead: Int64s, among: Int64s, child_lead: Int64s, policy: CompiledPolicy) -> NodeLeads:
        """Return the leads of the inner nodes that have any, by name."""
        nodes, parent = self.nodes, self.tree.levels[1].parent
        in_group = np.flatnonzero((nodes.tenant >= 0) & (nodes.group[parent] >= 0))
        below_job = np.flatnonzero((nodes.tenant >= 0) & (nodes.group[parent] < 0))
        groups = np.flatnonzero(nodes.group >= 0)
        group = np.concatenate([nodes.group[parent[in_group]], np.full(len(below_job), -1), nodes.group[groups]])
        tenant = np.concatenate([nodes.tenant[in_group], nodes.tenant[below_job], np.full(len(groups), -1)])
        lead = np.concatenate([tenant_lead[in_group], child_lead[parent[below_job]], child_lead[groups]])
        second = np.concatenate([among[in_group], among[below_job], np.zeros(len(groups), dtype=np.int64)])
        kept = np.flatnonzero((lead != 0) | (second != 0))
        return NodeLeads(
            named(policy.group_names, group[kept]), named(nodes.tenant_names, tenant[kept]),
            np.stack([lead[kept], second[kept]], axis=1),
        )  # fmt: skip


def _measures(
    tree: Tree,
    scopes: tuple[Int64s, Int64s, Int64s],
    short: Int64s,
    tokens: Int64s,
    of_node: Int64s,
    passing: Int64s,
    policy: CompiledPolicy,
) -> tuple[Measure, Measure]:
    """Return the measures of the leads below and beside the tenants' nodes.

    `short` and `passing` are as in `unit_work`, `tokens` and `of_node` as in `Measure.of`.
    """
    nodes, parent = len(tree.levels[1]), tree.levels[1].parent
    pace = paces(policy.shared)
    if not (pace[:, 1:] != UNLIMITED).any():
        return Measure.same(nodes), Measure.same(nodes)
    of_tenant, of_child, job = scopes
    way = np.stack([of_tenant, of_child[parent], np.broadcast_to(job, nodes)], axis=1)
    counts = np.zeros(len(policy.shared) + 1, dtype=np.bool_)
    counts[short] = True
    counts[:-1] &= policy.shared.may_hold
    counts[-1] = False
    found = []
    for first, shared in enumerate((np.arange(nodes), parent)):  # a tenant's own scope is beside no node
        way[:, :first] = -1
        units = unit_work(np.where(counts[way], way, -1), tree, passing, pace)
        found.append(Measure.of(units, lasting_work(way, policy.shared), tokens, of_node, shared))
    return found[0], found[1]


def _standing(
    nodes: _Nodes,
    tree: Tree,
    flows: Flows,
    flow: Int64s,
    lead_work: Int64s,
    is_tenant: Bools,
    *,
    at: tuple[Int64s, Int64s],
) -> Standing:
    """Return the leads of nodes as they were kept, given those of the inner nodes, which are `at` these places."""
    leaves, tenants, children = tree.levels
    tenant_lead, among, child_lead = (np.zeros(len(each), dtype=np.int64) for each in (tenants, tenants, children))
    of_node, of_child = at
    in_group = nodes.group[of_child] >= 0
    tenant_lead[of_node] = np.where(in_group[is_tenant], lead_work[is_tenant, 0], 0)
    among[of_node] = lead_work[is_tenant, 1]
    is_child = ~is_tenant | ~in_group
    child_lead[of_child[is_child]] = lead_work[is_child, 0]
    lead = flows.lead_work[flow, 0]
    is_alone = nodes.tenant[leaves.parent] < 0
    if is_alone.any():
        alone = np.flatnonzero(is_alone)
        tenant_lead[leaves.parent[alone]] = lead[alone]
        among[leaves.parent[alone]] = flows.lead_work[flow[alone], 1]
        lead = np.where(is_alone, 0, lead)
    return replace(Standing.new(tree), leads=(lead, tenant_lead, child_lead), tenant_leads=among)


def _held(held: Int64s, rows: Int64s, lapsed: Int64s | None) -> Int64s:
    """Return the held rows, shape (2, leaves), that did not lapse, of leaves with so many rows."""
    first = np.stack([held[1], np.zeros_like(rows)])  # the child of the job holds the earlier row
    return np.where((first < rows) & (True if lapsed is None else first >= lapsed), held, 0)


def _as_counted(kept: Standing, tree: Tree, measures: tuple[Measure, Measure], rows: Rows, held: Int64s) -> Standing:
    """Return the standing as a batch counts it, in which nodes hold rows."""
    below, beside = measures
    lead, tenant_lead, child_lead = kept.leads
    counted = below.take(tree.levels[0].parent).counted(lead), beside.counted(tenant_lead), child_lead
    standing = Standing(counted, below.counted(kept.tenant_leads), (held[0], held[1]))
    sent = _sent(tree, rows, standing)
    return replace(standing, leads=tuple(each + work for each, work in zip(counted, sent, strict=True)))


def _corrected(standing: Standing, tree: Tree, work: Int64s) -> Standing:
    """Return the standing after so much more, or less, work of each leaf was served before."""

    def after(lead: Int64s, height: int) -> Int64s:
        return np.clip(lead + tree.sums(work, height), -1 << LEAD_BITS, 1 << LEAD_BITS)

    leads = tuple(after(lead, height) for height, lead in enumerate(standing.leads))
    return replace(standing, leads=leads, tenant_leads=after(standing.tenant_leads, 1))


def _sent(tree: Tree, rows: Rows, standing: Standing) -> tuple[Int64s, ...]:
    """Return the work of held rows that the nodes of each level count as sent; `rows` are those that wait."""
    none = np.zeros(tree.leaves, dtype=np.int64)
    return tuple(tree.sums(rows.work(none, each), height) for height, each in enumerate(standing.above))


def _in_proportion(lead: Int64s, to: Int64s, of: Int64s) -> Int64s:
    changed = np.sign(lead) * proportional(np.abs(lead), to, of, most_bits=LEAD_BITS)
    return np.where(to == of, lead, changed)


def _child(group: Int64s, tenant: Int64s, groups: int) -> Int64s:
    """Return the number of the child of the job: a group's own, or that of a tenant without a group behind them."""
    return np.where(group >= 0, group, groups + tenant)


def _weights(scope: Int64s, shared: Limits) -> Int64s:
    return np.append(shared.weight, 1)[scope]


def _with(names: pa.StringArray, others: pa.StringArray) -> tuple[pa.StringArray, Int64s]:
    """Return the names and those of `others` that are new, and the positions of `others`; -1 for a null."""
    if not len(others):
        return names, np.zeros(0, dtype=np.int64)
    is_new = pc.and_not(others.is_valid(), pc.is_in(others, value_set=names))
    names = pa.concat_arrays([names, pc.unique(others.filter(is_new))])
    return names, positions_in(names, others)
