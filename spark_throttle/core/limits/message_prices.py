"""What a message costs in processing time, by namespace: so a scope that is short of time is divided by time.

Where a quota on time is the strictest limit of a shared scope, the scope's time is told in messages at one price, that
of all its rows together (`message_limits`). Its flows compete for these messages. If every message counted the same, a
flow whose messages take ten times the time would get ten times the time of another. So a message counts as its own
price over the scope's: a flow is served as a flow with fewer messages per second, or of less weight, would be. A flow
without a price counts at the scope's.

A scope that limits bytes too is divided by its dominant resource, in messages.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from spark_throttle.core.arithmetic.fixed_point import proportional
from spark_throttle.core.names.matching import positions_in
from spark_throttle.core.quota import Bools, Dimension, Int64s

_MESSAGES = Dimension.MESSAGES
_WEIGHT_BITS = 20


@dataclass(frozen=True, slots=True, eq=False)
class MessagePrices:
    """The prices of a message, in nanoseconds.

    Examples
    --------
    In a scope whose messages cost 2 ms on average, those of two namespaces cost 10 ms and 1 ms; of a third nothing is
    known. A message counts for five, a half, and one:

    >>> prices = MessagePrices(np.array([10_000_000, 1_000_000, 0]), np.array([2_000_000]))
    >>> scope, one = np.zeros(3, dtype=np.int64), np.full((3, 2), 1_000)
    >>> prices.counted(one, scope)[:, 0].tolist()
    [5000, 500, 1000]
    >>> (prices.weights(np.array([1, 1, 1]), scope) / 2**20).round(3).tolist()
    [0.2, 2.0, 1.0]
    """

    own_ns: Int64s
    """The price of every namespace, or flow; 0 where it is not known."""

    shared_ns: Int64s
    """Shape (scopes,): the price of every shared scope that is divided by time; 0 for the others."""

    @classmethod
    def of(cls, own_ns: Int64s, shared_ns: Int64s) -> MessagePrices | None:
        """Return the prices; `None` if nothing is divided by them."""
        return cls(own_ns, shared_ns) if own_ns.any() and shared_ns.any() else None

    def take(self, at: Int64s) -> MessagePrices:
        """Return the prices of the namespaces at `at`, in that order."""
        return MessagePrices(self.own_ns[at], self.shared_ns)

    def of_names(self, names: pa.StringArray, known: pa.StringArray) -> MessagePrices:
        """Return the prices of namespaces, in that order, given that these are the prices of `known`."""
        at = positions_in(known, names, len(known))
        return MessagePrices(np.append(self.own_ns, 0)[at], self.shared_ns)

    def counted(self, amount: Int64s, scope: Int64s) -> Int64s:
        """Return what an amount of every flow's messages counts for in a scope, at any unit; shape (n, 2).

        Parameters
        ----------
        amount
            Shape (n, 2): messages and bytes.
        """
        own_ns, shared_ns = self._both(scope)
        messages = amount[:, _MESSAGES]
        return self._with_messages(amount, np.where(own_ns > 0, proportional(messages, own_ns, shared_ns), messages))

    def weights(self, weight: Int64s, scope: Int64s) -> Int64s:
        """Return weights by which flows of one scope divide messages as `weight` divides its time, times a factor.

        The factor is the same for all flows of a scope.
        """
        own_ns, shared_ns = self._both(scope)
        most = weight << np.where(self._divides(scope), _WEIGHT_BITS, 0)
        told = np.maximum(proportional(most, shared_ns, own_ns), 1)
        return np.where(own_ns > 0, told, most)

    def _both(self, scope: Int64s) -> tuple[Int64s, Int64s]:
        """Return the price of every flow, and of its scope; 0 and 0 where one of them is not known."""
        is_known = self._divides(scope) & (self.own_ns > 0)
        return np.where(is_known, self.own_ns, 0), np.where(is_known, self.shared_ns[scope], 0)

    def _divides(self, scope: Int64s) -> Bools:
        """Return whether each scope is divided by time."""
        return (scope >= 0) & (self.shared_ns[scope] > 0)

    @staticmethod
    def _with_messages(pairs: Int64s, messages: Int64s) -> Int64s:
        out = pairs.copy()
        out[:, _MESSAGES] = messages
        return out
