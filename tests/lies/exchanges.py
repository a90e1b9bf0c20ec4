"""Jobs that share quotas through an exchange that lies: together they never hold more than a quota.

The jobs live on while fault follows fault. After each, true time passes, and whenever somebody acts, all leases are
added up. A report that cannot be read is refused by the jobs that read it: they name it, and go on with what they have.
Every few faults nothing is done for some leases, after which each job must hold its floor again: none is lost for good.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import Any, Final
from unittest import mock

from spark_throttle.core.quota import UNLIMITED
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.testing.simulation.exchange import SimulatedExchange, SimulatedPeer
from tests.lies import faults
from tests.lies.faults import LyingFiles
from tests.lies.outcomes import Found, Outcome

_POLICIES: Final[dict[str, Any]] = {
    "version": 1,
    "resource_groups": {
        name: {"publish": {"messages_per_second": 30, "bytes_per_second": 9_000, "burst_seconds": 2}}
        for name in ("gold", "silver", "bronze", "iron")
    },
    "defaults": {"resource_group": "gold"},
}
_RATES: Final = (30_000, 9_000_000)
_CALM_AFTER: Final = 25
_KEPT_WRITES: Final = 300
_NOT_OURS: Final = re.compile(
    r"(?:^|: )(\w*(?:Key|Value|Type|Index|Attribute|Assertion|Overflow)Error|error|Arrow\w+):"
)

INCOHERENT: Final = frozenset(
    {"older version", "late write", "listed without", *faults.MANY_FILES, "another's content"}
)
"""What no exchange may do that jobs rely on: docs/several-jobs.md, under "What it requires"."""


class _ListedAsItIs(SimulatedExchange):
    """An exchange whose listing has the order in which its store gives it."""

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return list(self.objects)


class ExchangeBench:
    """Three jobs, one of which comes and goes."""

    name = "exchange"

    def __init__(self, seed: str) -> None:
        self._draw = random.Random(seed)
        self._faults = 0
        self._problems: list[str] = []
        self._over: list[str] = []
        self._files = LyingFiles()
        self._exchange = _ListedAsItIs(ShareSettings(interval_ms=1_000, lease_ms=10_000), self._files)
        self._peers = [self._exchange.join(name, _POLICIES, percent=70) for name in ("one", "two", "three")]
        self._exchange.time.actors.append(self)
        self._pass(30_000)

    def act(self) -> int:
        """Add up the leases, and note what the jobs complain of."""
        held: Counter[tuple[str, int]] = Counter()
        for member in self._exchange.members:
            for (_, name), rates in member.leased().items():
                for dimension, rate in enumerate(rates):
                    held[name, dimension] += 0 if rate == UNLIMITED else max(rate, 0)
        for (name, dimension), rate in held.items():
            if rate > _RATES[dimension]:
                self._over.append(f"{rate} of {name} is held, and there is {_RATES[dimension]}")
        self._problems += [problem for peer in self._peers if (problem := keeper_of(peer).problem) is not None]
        return 10**9

    def _pass(self, by_ms: int) -> None:
        with mock.patch("spark_throttle.sharing.register.WHOLE_BYTES", 200):  # so that every report has a base
            self._exchange.time.pass_by(by_ms)

    def _begin(self) -> None:
        """Forget what was noted, and writes that no fault needs."""
        self._problems.clear()
        self._over.clear()
        cut = len(self._files.writes) - _KEPT_WRITES
        if cut > _KEPT_WRITES:
            self._files.writes = [*self._files.at(cut).items(), *self._files.writes[cut:]]

    def fault(self, draw: random.Random) -> Found | None:
        """Inject a fault that is drawn, let time pass, and return what became of it."""
        self._begin()
        names = sorted(dict.keys(self._files))
        if not names:
            self._pass(1_000)
            return None
        file, kind = draw.choice(names), draw.choice(faults.KINDS)
        fault = faults.inject(draw, self._files, kind, file)
        if fault is None:
            return None
        self._faults += 1
        self._pass(draw.choice([300, 1_000, 2_500]))
        fault.arrive(self._files)
        self._pass(draw.choice([500, 2_000]))
        self._files.hidden_listings, self._files.shuffled = 0, None
        problems, over = list(self._problems), list(self._over)
        if self._faults % _CALM_AFTER == 0:
            over += self._after_calm(draw)
        what = "exchange, " + (file.rpartition(".")[2] if kind not in faults.MANY_FILES else "all")
        outcome: Outcome = "right"
        detail = ""
        if over:
            outcome, detail = ("told" if kind in INCOHERENT else "silent"), over[0]
        elif crashes := [problem for problem in problems if _NOT_OURS.search(problem)]:
            outcome, detail = "crashed", crashes[0]
        elif problems:
            outcome = "refused"
        return Found(what, kind, outcome, detail)

    def _after_calm(self, draw: random.Random) -> list[str]:
        """Let some leases pass, restart a job, and return which jobs hold less than their floor then."""
        self._pass(25_000)
        found = [
            f"{peer.name} holds {rates} of {name} after two leases without a fault"
            for peer in self._peers
            for (_, name), rates in peer.leased().items()
            if rates[0] < _RATES[0] // 100
        ]
        place = draw.randrange(len(self._peers))
        gone = self._peers[place]
        self._exchange.leave(gone)
        self._peers[place] = self._exchange.join(gone.name, _POLICIES, percent=draw.choice([20, 70, 200]))
        self._pass(35_000)
        return found


def keeper_of(peer: SimulatedPeer) -> Any:
    """Return the keeper of a peer's lease."""
    return peer._lease.keeper
