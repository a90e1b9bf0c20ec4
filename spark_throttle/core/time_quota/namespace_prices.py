"""What a message of each namespace costs, by which a scope that is short of time is divided among its namespaces.

Such a price has two parts. What functions used for a namespace's own rows is specific to it, and known from the last
batch that admitted any of them. What all rows of a batch used together is divided by rows (`TimeCharges.common`): it
costs every row of the batch the same, and in another batch another amount, for a batch of three rows after a start
takes as long as one of ten thousand. That says nothing about a namespace. So this part is the job's, for all
namespaces alike: else one that was last served in a dear batch would count as dear until it is served again, and as it
counts as dear, that would be long after the others.

Both parts rise and fall as the prices of accounts do (`time_accounts`). How fast they fall depends on what they are
for:

- The specific part is kept for every level, and falls in the window of the namespace's scope there: the window of
  another scope has no say in it.
- What a scope's time is enough for is told with a common part that falls in the scope's own window.
- A scope is divided with a common part that falls as the price of a scope without a quota, for beside the time of a
  dear batch all namespaces look alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from spark_throttle.core.arithmetic.segments import by_row
from spark_throttle.core.names.matching import SHARED_LEVELS
from spark_throttle.core.quota import UNLIMITED, Bools, Int64s, TimeQuotas
from spark_throttle.core.time_quota.time_accounts import TimeAccounts


@dataclass(frozen=True, slots=True, eq=False)
class NamespacePrices:
    """The prices of the messages of a ledger's namespaces; arrays run over them.

    Examples
    --------
    A batch of 10 messages took 70 ms together, and 30 ms more for those of the first namespace; the next one has 100
    messages of the second, and takes 200 ms together:

    >>> ms, window_ms = 1_000_000, np.full((2, 3), [1_000, 2_000, 0])
    >>> prices = (
    ...     NamespacePrices.unknown(2, scopes=1)
    ...     .charged(np.array([30 * ms, 0]), np.array([6, 4]), windows_ms=window_ms, passed_ms=0)
    ...     .with_common(70 * ms, 10, windows_ms=np.array([4_000]), passed_ms=0)
    ... )
    >>> (prices.price_ns[:, -1] / ms).tolist()
    [12.0, 7.0]
    >>> prices = prices.charged(
    ...     np.array([0, 0]), np.array([0, 100]), windows_ms=window_ms, passed_ms=1_000
    ... ).with_common(200 * ms, 100, windows_ms=np.array([4_000]), passed_ms=1_000)
    >>> (prices.price_ns[:, -1] / ms).tolist()
    [8.5, 3.5]

    For a scope with a window of 4 s the common part has fallen by an eighth, and not by half:

    >>> (prices.held_up_ns / ms).tolist()
    [2.625]

    The first namespace sends again, and has become cheap. Its price falls at each level in the window there:

    >>> prices = prices.charged(np.array([0, 0]), np.array([10, 0]), windows_ms=window_ms, passed_ms=1_000)
    >>> (prices.specific.price_ns[0] / ms).tolist()
    [2.5, 3.75, 2.5]
    """

    specific: TimeAccounts
    """Without quotas, shape (n, 3): the time of each namespace's own rows, and its messages, as it falls in the window
    of its scope at every level."""

    common: TimeAccounts
    """Without quotas, shape (scopes + 1,): the time that all rows of a batch used together, and its messages, as it
    falls in the window of every shared scope, and at last as it falls without a window."""

    @classmethod
    def unknown(cls, count: int, *, scopes: int) -> NamespacePrices:
        """Return the prices of so many namespaces of which nothing is known, under so many shared scopes."""
        specific = TimeAccounts.opened(_no_quotas((count, len(SHARED_LEVELS))))
        return cls(specific, TimeAccounts.opened(_no_quotas(scopes + 1)))

    @property
    def price_ns(self) -> Int64s:
        """Shape (n, 3): the price of a message of every namespace in its scopes; 0 where it is not known."""
        price_ns = self.specific.price_ns + self.common.price_ns[-1]
        return np.where(self.specific.messages_micro > 0, price_ns, 0)

    @property
    def held_up_ns(self) -> Int64s:
        """Shape (scopes,): by how much a message is dearer for what a scope's time is enough for."""
        price_ns = self.common.price_ns
        return np.maximum(price_ns[:-1] - price_ns[-1], 0)

    def charged(self, specific_ns: Int64s, messages: Int64s, *, windows_ms: Int64s, passed_ms: int) -> NamespacePrices:
        """Return the prices after a batch that used `specific_ns` for the `messages` of each namespace.

        Parameters
        ----------
        windows_ms
            Shape (n, 3): the windows of the quotas of each namespace's scopes, 0 without one.
        passed_ms
            The time since the batch before.
        """
        each = np.ones_like(windows_ms)
        specific = self.specific.charged(
            _no_quotas(windows_ms.shape), specific_ns[:, None] * each, messages[:, None] * each, passed_ms=passed_ms,
            least_window_ms=windows_ms,
        )  # fmt: skip
        return replace(self, specific=specific)

    def with_common(self, time_ns: int, messages: int, *, windows_ms: Int64s, passed_ms: int) -> NamespacePrices:
        """Return the prices after a batch whose messages used `time_ns` together.

        Parameters
        ----------
        windows_ms
            Shape (scopes,): the windows of the shared scopes' quotas, 0 without one.
        passed_ms
            The time since the batch before.
        """
        each = np.ones(len(windows_ms) + 1, dtype=np.int64)
        common = self.common.charged(
            _no_quotas(len(each)), time_ns * each, messages * each, passed_ms=passed_ms,
            least_window_ms=np.append(windows_ms, 0),
        )  # fmt: skip
        return replace(self, common=common)

    def take(self, at: Int64s) -> NamespacePrices:
        """Return the prices of the namespaces at `at`, in that order."""
        return replace(self, specific=self.specific.take(at))

    def in_scopes(self, former: Int64s) -> NamespacePrices:
        """Return the prices under shared scopes that stood at `former`; those at -1 are new."""
        return replace(self, common=self.common.take(np.append(former, -1)))

    def with_unknown(self, count: int) -> NamespacePrices:
        """Return these prices, and then those of so many namespaces of which nothing is known."""
        return replace(self, specific=self.specific.followed_by(self.unknown(count, scopes=0).specific))

    def dividing(self, is_short: Bools) -> Int64s:
        """Return the price of every namespace's messages by which scopes are divided; 0 where it is not known.

        It is the highest in those of its scopes that are short of time: the window of one that has time for all has no
        say in how others are divided. Where none is short it is the lowest, which is nearest to what its last messages
        took: should more come than was expected, any of its scopes may be the one that is short.

        Parameters
        ----------
        is_short
            Shape (n, 3): whether each namespace's scope at every level is short of time.
        """
        price_ns = self.price_ns
        highest_ns = by_row(np.maximum, np.where(is_short, price_ns, 0))
        return np.where(by_row(np.logical_or, is_short), highest_ns, by_row(np.minimum, price_ns))


def _no_quotas(shape: int | tuple[int, ...]) -> TimeQuotas:
    return TimeQuotas(np.full(shape, UNLIMITED, dtype=np.int64), np.zeros(shape, dtype=np.int64))
