"""Who gets the tokens that several namespaces want: one scan in fair order, over all shared scopes at once.

By definition, the result is that of a loop. It takes the rows of all flows in fair order. A row whose flow is not
stopped, and whose shared scopes all have a balance that is not negative, is admitted and debited everywhere; any other
row stops its flow for this batch. So a flow gets a prefix of its rows, and only the lengths of the prefixes are
computed:

1. Assume that every undecided row is admitted, and find the end of each scope: the first row that it does not cover.
2. The rows of a flow that go before the ends of all its scopes are certainly admitted: no scope can have less left for
   them than assumed.
3. A scope's end is exact when all its rows before the end are admitted; the rows after it are then certainly refused.
4. Repeat with the rows still undecided and the balances left. In every round, the scope whose end comes first is exact,
   so there are at most as many rounds as scopes that run short; disjoint scopes take one round.

Rows are not sorted to find an end: `ends` searches for its key.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row, sums
from spark_throttle.core.fair.ends import Claims, OrderedRows, Room, rows_before_end
from spark_throttle.core.quota import Bools, Dimension, Int64s


def admit_in_order(rows: OrderedRows, count: Int64s, scope: Int64s, room: Room) -> Int64s:
    """Return how many of the first `count` rows of each flow are admitted.

    Parameters
    ----------
    scope
        Shape (flows, levels): the scopes that can stop the flow, -1 where there is none.
    """
    scopes, is_claim = len(room.messages), scope >= 0
    admitted, until = np.where(by_row(np.logical_or, is_claim), 0, count), count.copy()
    covered = np.zeros(scope.size, dtype=np.int64)
    while True:
        claim = np.flatnonzero(is_claim & (admitted < until)[:, None])
        if not len(claim):
            return admitted
        flow, of_scope = claim // scope.shape[1], scope.take(claim)
        first, end = admitted[flow], until[flow]
        # The last row that a scope covers may overdraw it, and may be admitted before rows that come earlier: these
        # stay covered, and what they take is set aside.
        sure = np.maximum(covered[claim], first)
        left = room.less(sums(of_scope, sure - first, scopes), sums(of_scope, _bytes(rows, flow, first, sure), scopes))
        covered[claim] = sure + rows_before_end(rows, Claims(flow, of_scope, sure, end), left)
        passing = covered[claim] - first
        step = until - admitted
        np.minimum.at(step, flow, passing)
        taken = step[flow]
        is_exact = np.ones(scopes, dtype=np.bool_)
        is_exact[of_scope[taken < passing]] = False
        is_stopped = is_exact[of_scope] & (passing < end - first)
        size_bytes = _bytes(rows, flow, first, first + taken)
        room = room.less(sums(of_scope, taken, scopes), sums(of_scope, size_bytes, scopes))
        admitted += step
        until[flow[is_stopped]] = admitted[flow[is_stopped]]


def _bytes(rows: OrderedRows, flow: Int64s, first: Int64s, until: Int64s) -> Int64s:
    """Return the bytes of rows `first` up to `until` of each flow."""
    return rows.bytes_before(flow, until) - rows.bytes_before(flow, first)


@dataclass(frozen=True, slots=True, eq=False)
class Refusals:
    """The scopes that stopped the stopped flows."""

    flow: Int64s
    level: Int64s
    """The position, among the columns of the flow's scopes, of the first scope that was short."""

    scope: Int64s
    dimension: Int64s
    """The `Dimension` that was short: messages where that balance was negative, else bytes."""


def first_refusals(rows: OrderedRows, count: Int64s, scope: Int64s, room: Room, admitted: Int64s) -> Refusals:
    """Return what stopped each flow that was stopped, at its first refused row.

    The arguments are those of `admit_in_order`, and its result. A scope that ran short is short only for the rows that
    come after the last row that it admitted, and its balance is the same for all of them.
    """
    stopped = np.flatnonzero(admitted < count)
    scopes = len(room.messages)
    claim = np.flatnonzero((scope >= 0) & (admitted > 0)[:, None])
    flow, of_scope = claim // scope.shape[1], scope.take(claim)
    messages = sums(of_scope, admitted[flow], scopes)
    size_bytes = sums(of_scope, rows.bytes_before(flow, admitted[flow]), scopes)
    is_short = room.is_short(np.arange(scopes), messages, size_bytes)
    over_messages = messages >= room.messages
    of_stopped = scope.take(stopped, axis=0)
    refuses = _after_last(rows, flow, of_scope, of_stopped, stopped, admitted)
    refuses &= (of_stopped >= 0) & is_short[of_stopped]
    level = refuses.argmax(axis=1)
    refusing = scope[stopped, level]
    return Refusals(stopped, level, refusing, np.where(over_messages[refusing], Dimension.MESSAGES, Dimension.BYTES))


def _after_last(
    rows: OrderedRows, flow: Int64s, of_scope: Int64s, scope: Int64s, stopped: Int64s, admitted: Int64s
) -> Bools:
    """Return whether each stopped flow's first refused row comes after the last admitted row of each of its scopes.

    The admitted rows are those of `flow` in `of_scope`; `scope` has the shape (stopped, levels).
    """
    if int(by_row(np.add, (scope >= 0).astype(np.int8)).max(initial=0)) <= 1:
        return scope >= 0  # a flow's only scope is the one that stopped it
    scopes = 1 + max(int(scope.max()), int(of_scope.max(initial=-1)))
    last_key, last_tie = np.full(scopes, -1, dtype=np.int64), np.full(scopes, -1, dtype=np.int64)
    key, refused_key = rows.keys(flow, admitted[flow] - 1), rows.keys(stopped, admitted[stopped])[:, None]
    np.maximum.at(last_key, of_scope, key)
    is_last = key == last_key[of_scope]
    is_tied = (refused_key == last_key[scope]) & (scope >= 0)
    flows = np.unique(np.concatenate([flow[is_last], stopped[by_row(np.logical_or, is_tied)]]))
    tie = np.full(len(admitted), -1, dtype=np.int64)
    tie[flows] = rows.ties(flows)
    np.maximum.at(last_tie, of_scope[is_last], tie[flow[is_last]])
    return (refused_key > last_key[scope]) | (is_tied & (tie[stopped][:, None] >= last_tie[scope]))
