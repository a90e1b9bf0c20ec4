"""The room that a batch finds: what the flows' own balances and the shared scopes let pass, and which run short.

Room counts whole messages, and bytes before a message. Where nothing is limited, it is larger than any batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.fair.layout import Layout
from spark_throttle.core.fair.turns import UNBOUNDED
from spark_throttle.core.limits.token_bucket import admissible_messages, byte_room
from spark_throttle.core.names.matching import Matches, scopes_where
from spark_throttle.core.quota import Bools, CompiledPolicy, Dimension, Int64s, Limits

_MESSAGES, _BYTES = Dimension.MESSAGES, Dimension.BYTES


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The room left in the balances of flows, or of shared scopes, in tokens."""

    messages: Int64s
    """Shape (n,): the number of messages that pass; large where unlimited."""

    bytes: Int64s
    """Shape (n,): the most bytes that may go before a message, negative if none may; large where unlimited."""

    @classmethod
    def of(cls, balance_micro: Int64s, limits: Limits) -> Room:
        """Return the room in balances, shape (n, 2), to which these limits apply."""
        limited = limits.is_limited
        return cls(
            np.where(limited[:, _MESSAGES], admissible_messages(balance_micro[:, _MESSAGES]), UNBOUNDED),
            np.where(limited[:, _BYTES], byte_room(balance_micro[:, _BYTES]), UNBOUNDED),
        )

    def prefixes(self, layout: Layout) -> tuple[Int64s, Int64s]:
        """Return how many first rows of each flow the messages alone let pass, and how many both do; large if all."""
        by_messages = self.messages
        by_bytes = layout.rows_within(self.bytes)
        by_bytes = np.where(by_bytes < layout.segments.counts, by_bytes, UNBOUNDED)
        return by_messages, np.minimum(by_messages, by_bytes)

    def less(self, messages: Int64s, size_bytes: Int64s) -> Room:
        """Return the room that is left after `messages` and `size_bytes` are taken."""
        return Room(self.messages - messages, self.bytes - size_bytes)

    def lacks(self, messages: Int64s, size_bytes: Int64s) -> Bools:
        """Return whether there is less room than for so many messages and bytes."""
        return (messages > self.messages) | ((size_bytes > self.bytes) & (messages > 0))

    @property
    def is_spent(self) -> Bools:
        """Whether no message passes, shape (n,)."""
        return (self.messages <= 0) | (self.bytes < 0)

    def before_rows(self, is_counted: Bools) -> Int64s:
        """Return the tokens that may go before a row, -1 if none may, shape (2, n); large if not counted."""
        room = np.stack([self.messages - 1, self.bytes])
        return np.where(is_counted, np.where(self.is_spent, -1, room), UNBOUNDED)


def limited_scopes(matches: Matches, policy: CompiledPolicy) -> Int64s:
    """Return the shared scopes of each flow that limit anything, shape (flows, levels), -1 where there is none."""
    return scopes_where(by_row(np.logical_or, policy.shared.is_limited), matches.shared_scope)


def taken_by(scope: Int64s, messages: Int64s, size_bytes: Int64s, scopes: int) -> Int64s:
    """Return the messages and bytes that flows take of their scopes, shape (2, scopes); `scope` is -1 for none."""
    taken = np.zeros((2, scopes + 1), dtype=np.int64)  # with one more position for no scope
    for column in scope.T:
        if column.max(initial=-1) >= 0:
            np.add.at(taken[0], column, messages)
            np.add.at(taken[1], column, size_bytes)
    return taken[:, :-1]


def is_short_of(scope: Int64s, messages: Int64s, size_bytes: Int64s, room: Room) -> Bools:
    """Return whether each scope has less room than its flows want; `scope` has the shape (flows, levels)."""
    return room.lacks(*taken_by(scope, messages, size_bytes, len(room.messages)))
