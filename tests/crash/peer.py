"""Another job that shares the quotas of the one that is killed, so that its shares change too.

It lives in the crash program and survives every kill: its lease is real, what it wants is made up. When the job is dead
for long enough it takes what the job had, and gives it back when the job returns.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Final

import numpy as np

from spark_throttle.control.demand import SharedScopes
from spark_throttle.core.quota import UNLIMITED
from spark_throttle.core.shares.allocation import PLENTY
from spark_throttle.policy.codec import parse_policies
from spark_throttle.policy.compile import compile_policy
from spark_throttle.sharing.exchange import FileExchange
from spark_throttle.sharing.lease_keeper import Clocks, LeaseKeeper
from spark_throttle.sharing.report import Measurement
from spark_throttle.sharing.settings import ExchangeOptions
from spark_throttle.sharing.sharing import Sharing

_PIN_SECONDS: Final = 0.1


def exchange_of(root: Path) -> dict[str, Any]:
    """Return where the jobs meet, and leases that are shorter than most lives."""
    return {"path": str(root / "exchange"), "interval": 0.5, "lease": 5}


class Peer:
    """The other job; a thread visits the exchange, and another holds it to what it got."""

    def __init__(self, exchange: dict[str, Any]) -> None:
        options = ExchangeOptions.parse(exchange)
        clocks = Clocks(lambda: time.monotonic_ns() // 1_000_000, lambda: time.time_ns() // 1_000_000)  # noqa: TID251 - what reports are dated with
        self._keeper = LeaseKeeper(Sharing("peer", "peer", 1, options.settings), FileExchange(options.path), clocks)
        self._ends = threading.Event()
        self._pins = threading.Thread(target=self._run, name="peer", daemon=True)
        self._keeper.start()
        self._pins.start()

    def want(self, policies: str, percent: int) -> None:
        """Want such a part of every quota from now on; nothing of it for 0."""
        policy = compile_policy(parse_policies(policies), "publish")
        scopes = SharedScopes.of(policy, "publish")
        kept = slice(None) if percent else slice(0)
        ids, quota = scopes.ids[kept], scopes.taken(policy.shared.rate_micro_per_ms)[kept]
        wanted = np.where(quota == UNLIMITED, PLENTY, quota) // 100 * percent
        one_each = np.arange(len(ids))
        self._keeper.measure(Measurement(ids, quota, wanted, one_each, wanted, one_each * 0 + 1))

    def stop(self) -> None:
        """Leave."""
        self._ends.set()
        self._keeper.stop()
        self._pins.join()

    def _run(self) -> None:
        while not self._ends.wait(_PIN_SECONDS):
            share, _ = self._keeper.begin_pin()
            self._keeper.end_pin(share)
