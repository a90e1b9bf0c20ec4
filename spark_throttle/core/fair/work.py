"""The work of rows: what each counts in the fair order, as one number.

A row's work is the largest, over the resources that its scopes limit, of its part of the resource: a message is one
`MESSAGE`, and bytes, units and time count in the proportion of the rates. So work is dominant-share service, charged
row by row (the memoryless form of DRFQ):

- The ideal that follows is progressive filling of work: of two backlogged flows of one weight, neither gets more work.
  No resource is waited for: a scope whose tokens of any kind end is closed, and until then every flow may go on.
- A row of a tenant costs the same, whichever of its namespaces sends it, beside whatever other rows. So nobody gains
  by dealing rows out over namespaces, and the work of a tenant is the sum of its namespaces' work.
- A flow that mixes rows of many kinds is charged at most R times its dominant share, R being the number of resources:
  the sum of the largest parts is at most the sum of all parts, which is at most R times the largest sum.

Which resources count for a row, and in what proportion, is said by those of its scopes that run short. The widest of
them is the measure: its resources count in the proportion of its rates, for all that compete in it. A resource that a
narrower scope alone limits counts as scarce as it is there: what the scope has room for is as much work as the part, by
weight, that it has of the widest scope's room. So a scope whose own room suffices for its part has its part, as if it
had no limit; and one whose room does not has all of its room. The part is at most what the scope has itself of what the
widest limits; a tenant's is that in one group, so that what it sends in others costs it nothing there. Nor does a
resource count scarcer than by the rates.

Room is what a scope lets pass before its tokens end. Where one tenant alone competes in the scope, the least of its
next rows belongs to it: who is about to end has room for a row, and is not charged many times for it. Where several
do, no row of one changes what a row of another counts; then rows that take more than the scope's burst are charged by
the rates, and may leave tokens of it unused.

Work is counted in integers. One row counts at least 1 and at most `MOST_WORK`, less where a batch is so large that its
sum would not fit; what goes beyond is debited from buckets in full, and only its place in the order is too good.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.arithmetic.segments import by_row, in_order, once, ranges, running_total, sums
from spark_throttle.core.corrections import CorrectedRows
from spark_throttle.core.fair.layout import Layout, cost
from spark_throttle.core.fair.tree import Tree
from spark_throttle.core.limits.budgets import paces
from spark_throttle.core.quota import MICRO, UNLIMITED, Bools, CompiledPolicy, Dimension, Int64s, Limits

MESSAGE_BITS: Final = 16
MESSAGE: Final = 1 << MESSAGE_BITS
"""The work of a message where messages are limited."""

AMOUNT: Final = 1 << 12
"""The work of a byte, or of a unit, where nothing before it is limited: more than a heavy flow's level is rounded by.
"""

MILLISECOND: Final = 1 << 24
"""The work of a millisecond of a core where time alone is limited."""

_MOST_WORK_BITS: Final = 40

MOST_WORK: Final = 1 << _MOST_WORK_BITS
"""The most work that one row counts: 2**24 messages."""

LEAD_BITS: Final = 45
"""The bits of a lead that is counted otherwise than it was kept, or that is corrected: 2**29 messages."""

_SUM_BITS: Final = 60
"""The bits of the work of a whole batch."""

_MANY_ROWS: Final = 16
"""With as many rows for each leaf, to lay them out anew takes longer than to find them where they are."""

TOKEN_BITS: Final = 10
"""The binary places of a token's work."""

_ALONE: Final = np.array([MESSAGE, AMOUNT, AMOUNT, MILLISECOND])[:, None]
"""By `Dimension`, shape (4, 1): the work of a token where nothing before it is limited."""

_MOST: Final = np.array([MOST_WORK, MESSAGE, MESSAGE, MILLISECOND])[:, None]
"""By `Dimension`, shape (4, 1): the most work of a token. Every amount of a row can be multiplied by it."""

_A_TOKEN: Final = tuple(np.array([each]) for each in (1, 1, 1, MICRO))
"""By `Dimension`: as how much a token is counted of what rows take."""

_ONE: Final = np.array([1])

_UNLIMITED_WORK: Final = 1 << 62
"""As much work as a scope has room for where it limits nothing."""

_NO_RATE: Final = 1 << 62

_TENANT, _GROUP, _JOB = range(3)
"""The columns of `Matches.shared_scope`."""


def token_work(rate_micro_per_ms: Int64s) -> Int64s:
    """Return the work of a token of each dimension, shape (4, scopes), in ``2**-TOKEN_BITS``; 0 where it is no limit.

    A scope's rates are the same amount of work. The first dimension that is limited says how much, unless a token of
    another would then count more than the most that it may.

    Parameters
    ----------
    rate_micro_per_ms
        Shape (scopes, 4), by `Dimension`.

    Examples
    --------
    Scopes of 10 messages and 20,480 bytes a second, of bytes alone, and of messages alone; in bytes a message:

    >>> rates = np.array([[10_000, 20_480_000, -1, -1], [-1, 77, -1, -1], [5, -1, -1, -1]])
    >>> [MESSAGE * 2**TOKEN_BITS // work if work else 0 for work in token_work(rates)[Dimension.BYTES].tolist()]
    [2048, 16, 0]

    Scopes of half a core and 250 messages a second, or 1,000 bytes a second; and of time alone:

    >>> rates = np.array([[250_000, -1, -1, 500_000], [-1, 1_000_000, -1, 500_000], [-1, -1, -1, 500_000]])
    >>> (token_work(rates)[Dimension.TIME] / 2**TOKEN_BITS).tolist() == [MESSAGE / 2, 2 * AMOUNT, MILLISECOND]
    True
    """
    rates = rate_micro_per_ms.T
    is_rate = rates > 0
    is_first = is_rate & (np.cumsum(is_rate, axis=0) == 1)
    most = np.where(is_first, _ALONE, _MOST)
    least = np.where(is_rate, rates * (most // AMOUNT), _NO_RATE).argmin(axis=0)[None]
    work, of = (np.take_along_axis(each, least, axis=0) for each in (most << TOKEN_BITS, rates))
    in_proportion = np.maximum(proportional(work, of, rates), 1)
    return np.where(rates == UNLIMITED, 0, np.where(is_rate, in_proportion, _ALONE << TOKEN_BITS))


def work_of_time(price_ns: Int64s, of_millisecond: Int64s) -> Int64s:
    """Return the work of messages that take so much time, given that of a millisecond as `token_work` returns it."""
    return proportional(price_ns, of_millisecond, np.full_like(price_ns, MICRO << TOKEN_BITS))


def unit_work(scopes: Int64s, tree: Tree, passing: Int64s, rate_micro_per_ms: Int64s) -> list[Int64s]:
    """Return the work of a token of each resource at the nodes of tenants, in ``2**-TOKEN_BITS``; 0 for none.

    Parameters
    ----------
    scopes
        Shape (nodes, 3): the shared scopes of each node that count, its tenant's, its group's and the job's; -1 for
        the others.
    passing
        As `until_the_end` returns it.
    rate_micro_per_ms
        Shape (scopes, 4).
    """
    units = list(token_work(rate_micro_per_ms)[: len(passing)])
    limiting = _widest(scopes, np.ones(len(rate_micro_per_ms), dtype=np.bool_))
    column, widest = limiting
    at = [_widest(scopes, unit > 0) for unit in units]
    found = [np.where(scope < 0, 0, np.append(unit, 0)[widest]) for unit, (_, scope) in zip(units, at, strict=True)]
    is_narrower = [(scope >= 0) & (of != column) for of, scope in at]
    if any(each.any() for each in is_narrower):
        # A rate of time is one of milliseconds, which is the unit; tokens of it are nanoseconds.
        by_rates = np.maximum(rate_micro_per_ms.T, 1)
        rooms = _narrower_work(units, (passing, _A_TOKEN), scopes, limiting, at, tree)
        rates = _narrower_work(units, (by_rates, (_ONE,) * len(units)), scopes, limiting, at, tree)
        for each, is_this, by_room, by_rate, most in zip(found, is_narrower, rooms, rates, _MOST, strict=False):
            np.copyto(each, np.clip(np.minimum(by_room, by_rate), 1, most << TOKEN_BITS), where=is_this)
    return found


def until_the_end(room: Int64s, scopes: Int64s, node: Int64s, following: Int64s) -> Int64s:
    """Return the tokens that scopes let pass until they end, shape (resources, scopes).

    They are the room, and a token; where one tenant alone competes, the least of its next rows.

    Parameters
    ----------
    room
        Shape (resources, scopes): the most tokens that may go before a row, negative where none may.
    scopes
        Shape (flows, 3): the shared scopes of each flow that count, -1 for the others.
    node
        Shape (flows,): the node of each flow's tenant, ascending.
    following
        Shape (resources, flows): what each flow's next row takes.

    Examples
    --------
    The job, in which two tenants compete, and the scope of one of them; rows of 40, 30 and 20 bytes are next:

    >>> scopes = np.array([[1, -1, 0], [1, -1, 0], [-1, -1, 0]])
    >>> following = np.array([[1, 1, 1], [40, 30, 20]])
    >>> until_the_end(np.array([[0, 9], [100, -5]]), scopes, np.array([0, 0, 1]), following).tolist()
    [[1, 10], [101, 30]]
    """
    first = np.flatnonzero(np.diff(node, prepend=-1))
    nodes = np.bincount(scopes[first, _GROUP:].ravel() + 1, minlength=room.shape[1] + 1)[1:]
    passing = np.maximum(room, 0)
    passing[Dimension.MESSAGES] += 1
    for resource, each in enumerate(following[1:], start=1):
        least = np.full(passing.shape[1] + 1, MOST_WORK)
        np.minimum.at(least, scopes, np.maximum(each, 1)[:, None])
        passing[resource] += np.where((nodes > 1) | (least[:-1] == MOST_WORK), 1, least[:-1])
    return passing


def _narrower_work(
    units: Sequence[Int64s],
    room: tuple[Int64s, Sequence[Int64s]],
    scopes: Int64s,
    widest: tuple[Int64s, Int64s],
    at: Sequence[tuple[Int64s, Int64s]],
    tree: Tree,
) -> list[Int64s]:
    """Return the work of a unit where a narrower scope limits it: the node's part of the widest, for all it has itself.

    Parameters
    ----------
    room
        What the scopes have of each resource, shape (resources, scopes), and what of it a token is.
    widest, at
        The columns and the scopes of the widest scopes, of all and of those that limit each resource.
    """
    (amounts, a_unit), (column, widest_scope), nodes, children = room, widest, tree.levels[1], tree.levels[2]

    def has(scope: Int64s) -> Int64s:
        """Return the work of what scopes have of the resources that the widest limits, too."""
        most = np.full(len(scope), _UNLIMITED_WORK)
        for each, one, amount in zip(units, a_unit, amounts, strict=False):
            unit = np.append(each, 0)
            in_work = proportional(np.append(amount, 1)[scope], unit[widest_scope], one, most_bits=_SUM_BITS)
            is_both = (unit[scope] > 0) & (unit[widest_scope] > 0)
            np.copyto(most, np.minimum(most, in_work), where=is_both)
        return most

    # What the node's child of the job has of the widest scope, and what the node has: their parts by weight.
    whole = has(widest_scope)
    below_job = _part(whole, children.weight[nodes.parent], children.totals(children.weight))
    of_child = np.where(column == _JOB, np.minimum(below_job, has(scopes[:, _GROUP])), whole)
    of_node = _part(of_child, nodes.weight, nodes.totals(nodes.weight)[nodes.parent])
    # A tenant has a node in each of its groups: each counts as if all that the tenant has were for it.
    of_tenant = np.minimum(of_node, has(scopes[:, _TENANT]))
    return [
        proportional(np.where(of == _TENANT, of_tenant, of_child), one, np.append(amount, 1)[limiting])
        for one, amount, (of, limiting) in zip(a_unit, amounts, at, strict=False)
    ]


def lasting_work(scopes: Int64s, limits: Limits) -> Int64s:
    """Return the work of a token of each dimension by the least rates of some ways, whatever runs short.

    Parameters
    ----------
    scopes
        Shape (ways, n): the shared scopes of each way, -1 for none.

    Returns
    -------
    Shape (ways, 4): in ``2**-TOKEN_BITS``, 0 where the way has no limit that can hold rows back.
    """
    pace = paces(limits)
    rates = np.where((pace != UNLIMITED) & limits.may_hold[:, None], pace, _NO_RATE)
    least = np.concatenate([rates, np.full((1, rates.shape[1]), _NO_RATE)])[scopes].min(axis=1)
    least = np.where(least == _NO_RATE, UNLIMITED, least)
    return token_work(least).T


def leaf_work(scopes: Int64s, tree: Tree, passing: Int64s, policy: CompiledPolicy) -> list[Int64s] | None:
    """Return the `unit_work` of each leaf's node; `None` where every row counts `MESSAGE`."""
    pace = paces(policy.shared)
    if not np.append(by_row(np.logical_or, pace[:, 1:] != UNLIMITED), False)[scopes].any():
        return None
    return [unit[tree.levels[0].parent] for unit in unit_work(scopes, tree, passing, pace)]


def row_work(layout: Layout, flow: Int64s, units: list[Int64s], price_ns: Int64s | None) -> Int64s:
    """Return the work of each row of `layout`.

    Parameters
    ----------
    flow
        The flow of each leaf of the tree; rows of others count a message.
    units
        As `leaf_work` returns it.
    price_ns
        Shape (flows,): the time of a message; `None` if no scope limits time.
    """
    flows, (each_message, *others) = len(layout.segments.counts), units
    of_message = _message_work(each_message)
    if price_ns is not None:
        of_message = np.maximum(of_message, work_of_time(price_ns[flow], others[-1]))
    by_message = np.full(flows, MESSAGE)
    by_message[flow] = of_message
    work = _by_row_of(by_message, layout)
    for total, each in zip(layout.totals, others, strict=False):
        if each.any():
            factor = np.zeros(flows, dtype=np.int64)
            factor[flow] = each
            amounts = np.diff(total)
            amounts *= _by_row_of(factor, layout)
            amounts >>= TOKEN_BITS
            work = np.maximum(work, amounts)
    return np.broadcast_to(work, len(layout.totals[0]) - 1)


def corrected_work(corrected: CorrectedRows, place: Int64s, units: list[Int64s], scopes: Int64s) -> Int64s:
    """Return by how much more each leaf's earlier rows count at what they cost than at what they were charged.

    They count as rows that leave now: by what runs short, and as a message at least, whatever they cost.

    Parameters
    ----------
    place
        Shape (flows,): the leaf of each flow, -1 for none.
    units
        As `leaf_work` returns it.
    scopes
        Shape (leaves, 3): the shared scopes of each leaf that count. What the widest of them could not be given back is
        as good as used.

    Returns
    -------
    Shape (leaves,): negative where they cost less.

    Examples
    --------
    Rows of two units and of none cost seven and one, where a unit is short and counts as a message:

    >>> units = [np.array([each << TOKEN_BITS]) for each in (MESSAGE, 0, MESSAGE)]
    >>> two, nothing = np.array([2, 0]), np.zeros(2, dtype=np.int64)
    >>> rows = CorrectedRows.of(Dimension.UNITS, nothing, nothing + 1, two, np.array([7, 1]))
    >>> (corrected_work(rows, nothing[:1], units, np.array([[-1, -1, 0]])) // MESSAGE).tolist()
    [5]
    """
    entries = np.flatnonzero((place[corrected.flow] >= 0) & (corrected.dimension < len(units)))
    leaf, kind = place[corrected.flow[entries]], corrected.dimension[entries]
    token, message = np.stack(units)[kind, leaf], _message_work(units[Dimension.MESSAGES][leaf])
    messages = message * np.minimum(corrected.messages[entries], MOST_WORK // message)
    a_token = np.where(kind == Dimension.TIME, MICRO << TOKEN_BITS, 1 << TOKEN_BITS)
    widest, _ = _widest(scopes, np.ones(int(scopes.max(initial=-1)) + 1, dtype=np.bool_))
    used = np.minimum(corrected.cost + corrected.lost.T, np.maximum(corrected.cost, corrected.charged)).T
    used = used[entries, widest[leaf]]
    bits = min(LEAD_BITS, _SUM_BITS - len(entries).bit_length())
    most = MOST_WORK * np.minimum(corrected.messages[entries], 1 << LEAD_BITS - _MOST_WORK_BITS)
    cost, charged = (
        np.maximum(np.minimum(proportional(each, token, a_token, most_bits=bits), most), messages)
        for each in (used, corrected.charged[entries])
    )
    leaves = len(units[Dimension.MESSAGES])
    return sums(leaf, cost - charged, leaves)


def work_of(units: Sequence[Int64s], tokens: Int64s) -> Int64s:
    """Return the work of what flows take together, if the rows of each take the same.

    Parameters
    ----------
    units
        The work of a token of each dimension, in ``2**-TOKEN_BITS``, by flow.
    tokens
        Shape (resources, flows): as `layout.cost` returns it.

    Examples
    --------
    Two flows of 100 rows of three bytes, where a byte counts as a message, and where bytes count for nothing:

    >>> units = [np.full(2, MESSAGE << TOKEN_BITS), np.array([MESSAGE << TOKEN_BITS, 0])]
    >>> (work_of(units, np.array([[100, 100], [300, 300]])) // MESSAGE).tolist()
    [300, 100]
    """
    work = tokens[Dimension.MESSAGES]
    for unit, taken, a_token in zip(units, tokens, _A_TOKEN, strict=False):
        work = np.maximum(work, proportional(taken, unit, a_token << TOKEN_BITS, most_bits=_SUM_BITS))
    return work


def beside_units(units: list[Int64s], size_bytes: Int64s, price_ns: Int64s | None) -> Int64s:
    """Return as how many units rows count by the rest that they take: their message, their bytes, their time.

    Parameters
    ----------
    units
        As `leaf_work` returns it, by row.
    price_ns
        The time of each row; `None` if no scope limits time.

    Examples
    --------
    A row of 300 bytes, where ten bytes count as a unit; and where units count for nothing:

    >>> units = [np.array([0, 0]), np.array([1 << TOKEN_BITS] * 2), np.array([10 << TOKEN_BITS, 0])]
    >>> beside_units(units, np.array([300, 300]), None).tolist()
    [30, 0]
    """
    of_message, of_byte, of_unit = units[: Dimension.TIME]
    rest = np.maximum(_message_work(of_message), size_bytes * of_byte >> TOKEN_BITS)
    if price_ns is not None:
        rest = np.maximum(rest, work_of_time(price_ns, units[Dimension.TIME]))
    return (np.minimum(rest, MOST_WORK) << TOKEN_BITS) // np.maximum(of_unit, 1) * (of_unit > 0)


def _message_work(of_message: Int64s) -> Int64s:
    """Return the work of a row that has nothing but its message."""
    return np.maximum(of_message >> TOKEN_BITS, 1)


def _widest(scopes: Int64s, is_counted: Bools) -> tuple[Int64s, Int64s]:
    """Return the column and the number of the widest scope of each node that counts, -1 where none does."""
    column = np.where(np.append(is_counted, False)[scopes], np.arange(scopes.shape[1]), -1).max(axis=1)
    return column, np.where(column >= 0, scopes[np.arange(len(scopes)), column], -1)


def _part(whole: Int64s, weight: Int64s, together: Int64s) -> Int64s:
    return proportional(whole, weight, together, most_bits=_SUM_BITS)


def _by_row_of(values: Int64s, layout: Layout) -> Int64s:
    """Return the value of the flow of each row of `layout`; once, if it is one."""
    one = once(values)
    return one if len(one) == 1 else np.repeat(values, layout.segments.counts)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of leaves, laid out leaf by leaf, and their work."""

    start: Int64s
    """The position in the layout at which each leaf's rows begin."""

    work_total: Int64s | None
    """The running total of work over the layout, longer than it by one; `None` where every row counts `MESSAGE`."""

    totals: tuple[Int64s, ...]
    """The running totals of amounts, as in `Layout`."""

    price_ns: Int64s | None = None
    """The time that a row of each leaf takes; `None` if it does not count."""

    @classmethod
    def of(cls, start: Int64s, totals: tuple[Int64s, ...], work: Int64s | None, price_ns: Int64s | None = None) -> Rows:
        """Lay out rows with `work` each, in the sequence of the layout; `None` where every row counts `MESSAGE`."""
        if work is None:
            return cls(start, None, totals, price_ns)
        most = min(MOST_WORK, (1 << _SUM_BITS) // max(len(work), 1))
        is_within = int(work.min(initial=1)) >= 1 and int(work.max(initial=1)) <= most
        return cls(start, running_total(work if is_within else np.clip(work, 1, most)), totals, price_ns)

    def take(self, at: Int64s) -> Rows:
        """Return the rows of the leaves at `at`."""
        price_ns = None if self.price_ns is None else self.price_ns[at]
        return Rows(self.start[at], self.work_total, self.totals, price_ns)

    def side_by_side(self, counts: Int64s) -> Rows:
        """Return the rows laid out in the order of the leaves, which have so many rows each; as they are, if many."""
        if int(counts.sum()) >= _MANY_ROWS * len(counts):
            return self
        at, total = ranges(self.start, counts), running_total(counts)
        work = None if self.work_total is None else running_total(np.diff(self.work_total)[at])
        return Rows(total[:-1], work, tuple(running_total(np.diff(each)[at]) for each in self.totals), self.price_ns)

    def behind(self, rows: Int64s) -> Rows:
        """Return the rows without the first `rows` of each leaf."""
        return Rows(self.start + rows, self.work_total, self.totals, self.price_ns)

    def work(self, first: Int64s, until: Int64s) -> Int64s:
        """Return the work of each leaf's rows `first` up to `until`; 0 where that is not more."""
        if self.work_total is None:
            return np.maximum(until - first, 0) << MESSAGE_BITS
        begin = self.start + first
        return self.work_total[np.maximum(self.start + until, begin)] - self.work_total[begin]

    def tokens(self, first: Int64s, until: Int64s) -> Int64s:
        """Return the tokens of each leaf's rows `first` up to `until`, shape (resources, leaves)."""
        begin, end = self.start + first, self.start + until
        return cost(until - first, [total[end] - total[begin] for total in self.totals], self.price_ns)

    def within(self, first: Int64s, until: Int64s, budget: Int64s) -> Int64s:
        """Return how many of each leaf's rows from `first` up to `until` have at most the work of its `budget`."""
        if self.work_total is None:
            return np.minimum(budget >> MESSAGE_BITS, until - first)
        begin = self.start + first
        end = self.start + np.maximum(until, first)
        last = self.work_total[begin] + budget
        count = end - begin
        cut = np.flatnonzero(self.work_total[end] > last)
        # The longest first, so that those that need one more step of the search are the first of them.
        cut = cut[in_order(-count[cut])]
        at, end, last, length = begin[cut], end[cut], last[cut], -count[cut]
        for bit in reversed(range(int(-length.min(initial=0)).bit_length())):
            some = slice(int(np.searchsorted(length, -(1 << bit), side="right")))
            further = at[some] + (1 << bit)
            goes = self.work_total[np.minimum(further, end[some])] <= last[some]
            at[some] = np.where(goes, further, at[some])
        count[cut] = at - begin[cut]
        return count
