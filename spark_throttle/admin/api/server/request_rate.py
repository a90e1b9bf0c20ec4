"""How many requests and changes a caller may make: a token bucket each, by the rule of `core.limits.token_bucket`."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from spark_throttle.core.limits.token_bucket import debit, refill, throttle_time_ms
from spark_throttle.core.quota import MICRO

MOST_CALLERS: Final = 10_000
"""Number of buckets kept; beyond it the caller that was away longest is forgotten, and returns with a full bucket."""


class RequestRates:
    """The request buckets of a server; safe for use by several threads.

    Parameters
    ----------
    per_second
        Number of requests per second that a caller may make.
    burst_seconds
        How many seconds of its rate an idle caller saves up.

    Examples
    --------
    >>> now_ms = 0
    >>> rates = RequestRates(2, burst_seconds=1, clock_ms=lambda: now_ms)
    >>> [rates.throttle_time_ms("ann") for _ in range(5)]
    [0, 0, 0, 500, 500]
    >>> now_ms = 500
    >>> rates.throttle_time_ms("ann"), rates.throttle_time_ms("bob")
    (0, 0)
    """

    def __init__(self, per_second: int, *, burst_seconds: int = 5, clock_ms: Callable[[], int]) -> None:
        self._rate = np.array([per_second * 1000])
        self._burst = np.array([per_second * burst_seconds * MICRO])
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._buckets: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def throttle_time_ms(self, caller: str) -> int:
        """Charge a request and return 0; or charge nothing and return the time until the caller may try again."""
        with self._lock:
            now_ms = self._clock_ms()
            kept_micro, as_of_ms = self._buckets.pop(caller, (int(self._burst[0]), now_ms))
            balance = refill(np.array([kept_micro]), self._rate, self._burst, now_ms - as_of_ms)
            wait_ms = int(throttle_time_ms(balance, self._rate)[0]) if balance[0] < 0 else 0
            if wait_ms == 0:
                balance = debit(balance, np.array([MICRO]))
            self._buckets[caller] = (int(balance[0]), max(now_ms, as_of_ms))
            if len(self._buckets) > MOST_CALLERS:
                self._buckets.popitem(last=False)
            return wait_ms


TENANT_CHANGE_BURST_SECONDS: Final = 60
"""Each change is a revision, which every history keeps and all jobs read: a tenant may make as many as people make."""


@dataclass(frozen=True, slots=True)
class ServerRates:
    """The rate limits of a server."""

    tokens: RequestRates
    """On the requests with each token."""

    tenant_changes: RequestRates
    """On the changes by the administrators of each tenant."""

    guesses: RequestRates
    """On all requests without a valid token, which may be guesses, together."""

    addresses: RequestRates
    """On what needs no token, of each address."""

    @classmethod
    def of(cls, requests_per_second: int, clock_ms: Callable[[], int]) -> ServerRates:
        """Return the limits of a server where a token may make so many requests per second."""
        tokens, addresses = (RequestRates(requests_per_second, clock_ms=clock_ms) for _ in range(2))
        guesses = RequestRates(max(1, requests_per_second // 5), clock_ms=clock_ms)
        changes = max(1, requests_per_second // 100)
        tenant_changes = RequestRates(changes, burst_seconds=TENANT_CHANGE_BURST_SECONDS, clock_ms=clock_ms)
        return cls(tokens, tenant_changes, guesses, addresses)
