"""The row at which each of many shared scopes runs short, if rows are served in fair order.

The end of a scope is the first row that finds its balance negative. It is found without sorting the rows. Keys ascend
within a flow, so the rows up to a key are a prefix of every flow, whose length can be computed without looking at the
rows (`fair_rows`):

1. Search for the largest key up to which everything fits, for all scopes at once. Two keys to try, one below the end
   and one above, are guessed from a small sorted sample of the rows still in question. Where most of these are left,
   the next step halves the keys in question, so that a bad guess costs time and nothing else.
2. Once few rows are left, sort them: the end is among the rows of the first key up to which not everything fits, or
   right behind them.
3. Flows that are equal in that key are taken in the order of their ties, each with all its rows of that key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from spark_throttle.core.arithmetic.segments import Segments, ranges, running_total, sums
from spark_throttle.core.quota import Bools, Int64s

_FEW_ROWS = 1024
_FEW_ROWS_A_CLAIM = 4
"""With at most this many rows left, altogether or a claim, they are sorted rather than searched further."""

_SAMPLE_ROWS = 4096
_MARGIN_PART = 48
"""Guesses lie this part of the sample below and above the place at which the end is expected."""


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The room left in the shared scopes, in tokens."""

    messages: Int64s
    """Shape (scopes,): the number of messages that pass; large where unlimited."""

    bytes: Int64s
    """Shape (scopes,): the most bytes that may go before a message, -1 if none may pass; large where unlimited."""

    def less(self, messages: Int64s, size_bytes: Int64s) -> Room:
        """Return the room that is left after `messages` and `size_bytes` are taken, by scope."""
        return Room(self.messages - messages, self.bytes - size_bytes)

    def is_short(self, scope: Int64s, messages_before: Int64s, bytes_before: Int64s) -> Bools:
        """Return whether a row finds a negative balance, given the messages and bytes before it in its scope."""
        return (messages_before >= self.messages[scope]) | (bytes_before > self.bytes[scope])


class PrefixCounts(Protocol):
    """The numbers of many flows' rows up to a key."""

    def take(self, at: Int64s) -> PrefixCounts:
        """Return the counts for the flows at `at` only."""

    def up_to(self, key: Int64s) -> Int64s:
        """Return, for each flow, how many of its first rows have at most its `key`."""


class OrderedRows(Protocol):
    """The rows of many flows, each a flow and a rank in it; they are ordered by key, then by the flows' ties."""

    def keys(self, flow: Int64s, rank: Int64s) -> Int64s:
        """Return the keys of rows: never negative, and ascending within a flow."""

    def ties(self, flow: Int64s) -> Int64s:
        """Return the numbers that order distinct flows, given in ascending order, where their keys are equal."""

    def bytes_before(self, flow: Int64s, rank: Int64s) -> Int64s:
        """Return the bytes that go before each row in its own flow."""

    def rows_within(self, flow: Int64s, size_bytes: Int64s) -> Int64s:
        """Return how many first rows of each flow have at most `size_bytes`, not negative, before them."""

    def counts(self, flow: Int64s, most: Int64s) -> PrefixCounts:
        """Prepare to count the rows of each `flow` up to a key, at most `most` of them."""


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """Claims of rows `first` up to `until` of a flow on a scope's tokens; a flow has a claim on each of its scopes."""

    flow: Int64s
    scope: Int64s
    first: Int64s
    until: Int64s

    def take(self, at: Int64s) -> Claims:
        """Return the claims at `at`."""
        return Claims(self.flow[at], self.scope[at], self.first[at], self.until[at])


def rows_before_end(rows: OrderedRows, claims: Claims, room: Room) -> Int64s:
    """Return how many rows of each claim come before the first row that the scope has no room for.

    Every row of a claim is debited, even if another scope stops it.
    """
    wanted = claims.until - claims.first
    size_bytes = rows.bytes_before(claims.flow, claims.until) - rows.bytes_before(claims.flow, claims.first)
    is_short = sums(claims.scope, wanted, len(room.messages)) > room.messages
    is_short |= sums(claims.scope, size_bytes, len(room.bytes)) > room.bytes
    is_shut = (room.messages <= 0) | (room.bytes < 0)
    passing = np.where(is_shut[claims.scope], 0, wanted)
    searched = np.flatnonzero((is_short & ~is_shut)[claims.scope])
    if len(searched):
        passing[searched] = _search(rows, claims.take(searched), room)
    return passing


@dataclass(slots=True, eq=False)
class _Bracket:
    """The keys between which the end of every scope lies; arrays run over the scopes, or over the claims.

    All rows of a scope up to the key `low` fit together; the rows up to `high` do not, or are all of its rows.
    """

    low: Int64s
    high: Int64s
    fitting: Int64s
    """The number of rows of each claim with keys up to `low`."""

    until: Int64s
    """The number of rows of each claim with keys up to `high`."""

    room: Room
    """The room left in the scopes after the rows up to `low`."""

    def open_rows(self, at: Int64s) -> Int64s:
        """Return how many rows of each of the claims at `at` are still in question."""
        return self.until[at] - self.fitting[at]

    def narrow(self, rows: OrderedRows, claims: Claims, at: Int64s, key: Int64s, count: Int64s) -> None:
        """Move one bound of every scope to its `key`, up to which the claims at `at` have `count` rows."""
        flow, scope, scopes = claims.flow[at], claims.scope[at], len(key)
        count = np.clip(count, self.fitting[at], self.until[at])
        size_bytes = rows.bytes_before(flow, count) - rows.bytes_before(flow, self.fitting[at])
        messages, size_bytes = sums(scope, count - self.fitting[at], scopes), sums(scope, size_bytes, scopes)
        fits = (messages <= self.room.messages) & (size_bytes <= self.room.bytes)
        self.low, self.high = np.where(fits, key, self.low), np.where(fits, self.high, key)
        self.room = self.room.less(np.where(fits, messages, 0), np.where(fits, size_bytes, 0))
        rises = fits[scope]
        self.fitting[at] = np.where(rises, count, self.fitting[at])
        self.until[at] = np.where(rises, self.until[at], count)


def _search(rows: OrderedRows, claims: Claims, room: Room) -> Int64s:
    """Return `rows_before_end` for scopes that run short."""
    scopes = len(room.messages)
    high = np.full(scopes, -1, dtype=np.int64)
    np.maximum.at(high, claims.scope, rows.keys(claims.flow, claims.until - 1))
    bracket = _Bracket(np.full(scopes, -1, dtype=np.int64), high, claims.first.copy(), claims.until.copy(), room)
    at, counts, looks, rows_before = np.arange(len(claims.flow)), rows.counts(claims.flow, claims.until), 0, 0
    while True:
        is_open = (bracket.open_rows(at) > 0) & (bracket.high - bracket.low > 1)[claims.scope[at]]
        claims_open = int(np.count_nonzero(is_open))
        rows_open = int(bracket.open_rows(at)[is_open].sum())
        if rows_open <= max(_FEW_ROWS, _FEW_ROWS_A_CLAIM * claims_open):
            break
        if 2 * claims_open <= len(at):
            stays = np.flatnonzero(is_open)
            at, counts = at[stays], counts.take(stays)
        if looks == 2 and 2 * rows_open <= rows_before:
            looks = 0
        rows_before = rows_open if looks == 0 else rows_before
        key = bracket.low + (bracket.high - bracket.low) // 2
        if looks < 2:
            key = _guess(rows, claims, bracket, at, key, is_above=looks == 1)
        bracket.narrow(rows, claims, at, key, counts.up_to(key[claims.scope[at]]))
        looks = (looks + 1) % 3
    _narrow_to_one_key(rows, claims, bracket)
    left = Claims(claims.flow, claims.scope, bracket.fitting, bracket.until)
    return bracket.fitting - claims.first + _passing_in_ties(rows, left, bracket.room)


def _guess(
    rows: OrderedRows, claims: Claims, bracket: _Bracket, at: Int64s, otherwise: Int64s, *, is_above: bool
) -> Int64s:
    """Return a key for every scope, probably a little below its end or above it; `otherwise` if it has no sample."""
    running = running_total(bracket.open_rows(at))
    sample = np.arange(0, running[-1], max(1, running[-1] // _SAMPLE_ROWS))
    claim = np.searchsorted(running, sample, side="right") - 1
    rank = bracket.fitting[at[claim]] + sample - running[claim]
    scope, scopes = claims.scope[at[claim]], len(otherwise)
    keys = rows.keys(claims.flow[at[claim]], rank)
    keys = keys[_order(keys, scope)]
    sampled = np.bincount(scope, minlength=scopes)
    flow, of_scope = claims.flow[at], claims.scope[at]
    messages = sums(of_scope, bracket.open_rows(at), scopes)
    size_bytes = rows.bytes_before(flow, bracket.until[at]) - rows.bytes_before(flow, bracket.fitting[at])
    size_bytes = sums(of_scope, size_bytes, scopes)
    # The rows in question for which there is room, counted in rows of the sample.
    by_messages = bracket.room.messages // np.maximum(messages // np.maximum(sampled, 1), 1)
    by_bytes = bracket.room.bytes // np.maximum(size_bytes // np.maximum(sampled, 1), 1)
    margin = 1 + sampled // _MARGIN_PART
    place = np.minimum(by_messages, by_bytes) + (margin if is_above else -margin)
    place = np.cumsum(sampled) - sampled + np.clip(place, 0, np.maximum(sampled - 1, 0))
    key = keys[np.minimum(place, len(keys) - 1)] - (0 if is_above else 1)
    return np.clip(np.where(sampled > 0, key, otherwise), bracket.low, bracket.high)


def _order(keys: Int64s, scope: Int64s) -> Int64s:
    """Return an order by scope, then by key."""
    return np.argsort(keys) if (scope == scope[0]).all() else np.lexsort((keys, scope))


def _narrow_to_one_key(rows: OrderedRows, claims: Claims, bracket: _Bracket) -> None:
    """Leave in question, for every scope, only the rows of the first key up to which not everything fits.

    All rows before that key pass in any order, and there is no room behind the rows of that key.
    """
    at = np.flatnonzero((bracket.until > bracket.fitting) & (bracket.high - bracket.low > 1)[claims.scope])
    if not len(at):
        return
    claim = np.repeat(at, bracket.open_rows(at))
    flow, rank = claims.flow[claim], ranges(bracket.fitting[at], bracket.open_rows(at))
    keys = rows.keys(flow, rank)
    in_order = _order(keys, claims.scope[claim])
    scope = claims.scope[claim[in_order]]
    size_bytes = rows.bytes_before(flow, rank + 1) - rows.bytes_before(flow, rank)
    segments = Segments.by_key(scope, len(bracket.low))
    total = running_total(size_bytes[in_order])
    size_with = total[1:] - total[segments.starts[scope]]
    is_over = (segments.rank + 1 > bracket.room.messages[scope]) | (size_with > bracket.room.bytes[scope])
    # If no row is over, everything up to `high` passes.
    end_key = bracket.high + 1
    np.minimum.at(end_key, scope[is_over], keys[in_order[is_over]])
    row_end = end_key[claims.scope[claim]]
    fits, is_tied = keys < row_end, keys == row_end
    taken = sums(claims.scope[claim[fits]], size_bytes[fits], len(end_key))
    bracket.room = bracket.room.less(np.bincount(claims.scope[claim[fits]], minlength=len(end_key)), taken)
    bracket.fitting += np.bincount(claim[fits], minlength=len(claims.flow))
    bracket.until[at] = (bracket.fitting + np.bincount(claim[is_tied], minlength=len(claims.flow)))[at]


def _passing_in_ties(rows: OrderedRows, claims: Claims, room: Room) -> Int64s:
    """Return how many rows of each claim pass where all rows of a scope have one key: flow by flow, by their ties."""
    passing = np.zeros(len(claims.flow), dtype=np.int64)
    left = np.flatnonzero(claims.first < claims.until)
    if not len(left):
        return passing
    flows, place = np.unique(claims.flow[left], return_inverse=True)
    left = left[np.lexsort((rows.ties(flows)[place], claims.scope[left]))]
    flow, scope, first = claims.flow[left], claims.scope[left], claims.first[left]
    wanted, start = claims.until[left] - first, rows.bytes_before(flow, first)
    begins = Segments.by_key(scope, len(room.messages)).starts[scope]
    messages, total = (
        running_total(wanted)[:-1],
        running_total(rows.bytes_before(flow, claims.until[left]) - start)[:-1],
    )
    messages_left = room.messages[scope] - (messages - messages[begins])
    bytes_left = room.bytes[scope] - (total - total[begins])
    within = rows.rows_within(flow, start + np.maximum(bytes_left, 0)) - first
    is_short = (messages_left <= 0) | (bytes_left < 0)
    passing[left] = np.where(is_short, 0, np.minimum(np.minimum(wanted, messages_left), within))
    return passing
