"""Who gets the tokens that several namespaces want: one scan in fair order, over all shared scopes at once.

The meaning is a loop. Rows of all flows are taken in fair order; a row whose flow still goes, and whose shared
scopes all have a balance that is not negative, is admitted and debited everywhere; any other row stops its
flow for this batch. Written over arrays, without a step a row:

1. assume that every undecided row is admitted, and see in each scope how far its balance goes;
2. a row that every one of its scopes covers is surely admitted: no scope can have less left for it than assumed;
3. a scope's end is exact when all its rows before the end are admitted; what comes after it is surely refused;
4. repeat with the rows still undecided and the balances left. The scope whose end comes first is exact in every
   round, so there are at most as many rounds as scopes that run short; disjoint scopes take one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.quota import Bools, Dimension, Int64s
from spark_throttle.core.segments import Segments, running_total, sums

_MESSAGES, _BYTES = Dimension.MESSAGES, Dimension.BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """What the shared scopes can still take, in tokens."""

    messages: Int64s
    """Shape (scopes,): how many messages pass; large where unlimited."""

    bytes: Int64s
    """Shape (scopes,): the most bytes that may go before a message, -1 for none; large where unlimited."""

    def less(self, messages: Int64s, size_bytes: Int64s) -> Room:
        """Return the room after `messages` and `size_bytes` were taken, by scope."""
        return Room(self.messages - messages, self.bytes - size_bytes)

    def is_short(self, scope: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Bools:
        """Return whether a row finds a negative balance after what went before it in its scope."""
        return (messages_before >= self.messages[scope]) | (bytes_before > self.bytes[scope])


@dataclass(frozen=True, slots=True, eq=False)
class Contenders:
    """Rows in fair order, with their enforcing scopes."""

    flow: Int64s
    size_bytes: Int64s
    scope: Int64s
    """Shape (rows, levels): -1 where the level does not hold the row back."""


def admit_in_order(rows: Contenders, room: Room) -> Bools:
    """Return which rows are admitted.

    Examples
    --------
    One scope with room for two messages, two flows in turn:

    >>> one = np.array([[0], [0], [0]])
    >>> rows = Contenders(np.array([0, 1, 0]), np.array([9, 9, 9]), one)
    >>> admit_in_order(rows, Room(np.array([2]), np.array([100]))).tolist()
    [True, True, False]
    """
    admitted = np.zeros(len(rows.flow), dtype=np.bool_)
    undecided = np.arange(len(rows.flow))
    scopes = len(room.messages)
    while len(undecided):
        size = rows.size_bytes[undecided]
        scope = rows.scope[undecided]
        is_short = np.stack([_is_short(scope[:, at], size, room) for at in range(scope.shape[1])], axis=1)
        now_admitted: Bools = ~np.logical_or.reduce(is_short, axis=1)
        refused = _surely_refused(scope, is_short, now_admitted, scopes)
        taken = undecided[now_admitted]
        admitted[taken] = True
        room = room.less(*_taken(rows, taken, scopes))
        undecided = undecided[~now_admitted & ~refused]
    return admitted


def _is_short(scope: Int64s, size_bytes: Int64s, room: Room) -> Bools:
    """Return which rows come after the end of their scope, if all rows before them are admitted."""
    held = np.flatnonzero(scope >= 0)
    short = np.zeros(len(scope), dtype=np.bool_)
    if len(held):
        messages_before, bytes_before = totals_before(scope[held], size_bytes[held], len(room.messages))
        short[held] = room.is_short(scope[held], messages_before, bytes_before)
    return short


def totals_before(scope: Int64s, size_bytes: Int64s, scopes: int) -> tuple[Int64s, Int64s]:
    """Return the messages and bytes that go before each row in its own scope."""
    layout = Segments.by_key(scope, scopes)
    before = running_total(size_bytes[layout.order])
    messages = np.empty(len(scope), dtype=np.int64)
    total = np.empty(len(scope), dtype=np.int64)
    messages[layout.order] = layout.rank
    total[layout.order] = before[:-1] - before[layout.starts[layout.key]]
    return messages, total


def _surely_refused(scope: Int64s, is_short: Bools, is_admitted: Bools, scopes: int) -> Bools:
    """Return the rows beyond an exact end: one before which the scope has no row that is not admitted."""
    position = np.arange(len(scope))
    end = np.full(scopes, len(scope), dtype=np.int64)
    open_row = np.full(scopes, len(scope), dtype=np.int64)
    for at in range(scope.shape[1]):
        held = scope[:, at] >= 0
        np.minimum.at(end, scope[held & is_short[:, at], at], position[held & is_short[:, at]])
        np.minimum.at(open_row, scope[held & ~is_admitted, at], position[held & ~is_admitted])
    is_exact = end <= open_row
    return (is_short & np.append(is_exact, False)[scope]).any(axis=1)


def _taken(rows: Contenders, taken: Int64s, scopes: int) -> tuple[Int64s, Int64s]:
    messages = np.zeros(scopes, dtype=np.int64)
    total = np.zeros(scopes, dtype=np.int64)
    for at in range(rows.scope.shape[1]):
        scope = rows.scope[taken, at]
        held = scope >= 0
        messages += np.bincount(scope[held], minlength=scopes)
        total += sums(scope[held], rows.size_bytes[taken][held], scopes)
    return messages, total


@dataclass(frozen=True, slots=True, eq=False)
class Refusals:
    """Which scope stopped each stopped flow."""

    flow: Int64s
    level: Int64s
    """Position among the columns of `Contenders.scope`: the first whose scope was short."""

    scope: Int64s
    dimension: Int64s
    """Messages where that balance was negative, else bytes."""


def first_refusals(rows: Contenders, room: Room, admitted: Bools) -> Refusals:
    """Return what stopped each flow that was stopped, at its first refused row."""
    flow, index = np.unique(rows.flow[~admitted], return_index=True)
    at = np.flatnonzero(~admitted)[index]
    level = np.full(len(at), -1, dtype=np.int64)
    scope = np.full(len(at), -1, dtype=np.int64)
    dimension = np.full(len(at), -1, dtype=np.int64)
    for column in range(rows.scope.shape[1]):
        messages_before, bytes_before = _admitted_before(rows, column, admitted, at, len(room.messages))
        here = rows.scope[at, column]
        short = (here >= 0) & room.is_short(here, messages_before, bytes_before) & (level < 0)
        level[short] = column
        scope[short] = here[short]
        over_messages = messages_before[short] >= room.messages[here[short]]
        dimension[short] = np.where(over_messages, _MESSAGES, _BYTES)
    return Refusals(flow, level, scope, dimension)


def _admitted_before(rows: Contenders, column: int, admitted: Bools, at: Int64s, scopes: int) -> tuple[Int64s, Int64s]:
    """Return what was admitted in the scope of each row of `at` before it."""
    scope = rows.scope[:, column] + 1  # position 0 gathers the rows without a scope
    layout = Segments.by_key(scope, scopes + 1)
    taken = admitted[layout.order]
    counts = running_total(taken.astype(np.int64))
    sizes = running_total(np.where(taken, rows.size_bytes[layout.order], 0))
    place = np.empty(len(scope), dtype=np.int64)
    place[layout.order] = np.arange(len(scope))
    start = layout.starts[scope[at]]
    return counts[place[at]] - counts[start], sizes[place[at]] - sizes[start]
