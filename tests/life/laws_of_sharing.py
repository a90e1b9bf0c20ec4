"""The laws of quotas that several jobs share: never over the quota together, and no job without its floor for long."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from spark_throttle.core.quota import UNLIMITED
from spark_throttle.testing.simulation.exchange import Rates, ScopeName, SimulatedExchange
from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.life.contract import Contracts, Key, Scope, text_of
from tests.life.laws import Law, Violation, World

SHARING: Final = "Sharing"
_LEVELS: Final[dict[str, str]] = {"tenant": "tenant", "resource_group": "group"}
_DIMENSIONS: Final = ("messages", "bytes")
_TIME: Final = 2
_LEASES: Final = 2
"""The number of leases after which a job has its floor again, whatever happened."""

_LONGEST_GAP_MS: Final = 2_000
"""Between two looks of a job that goes on."""


def key_of(name: ScopeName) -> Key:
    """Return the key of a scope that jobs share."""
    return ("tenant", name[1]) if name[0].startswith("tenant") else ("group", name[1])


def place_of(name: ScopeName, dimension: int) -> tuple[Key, int]:
    """Return the scope and the dimension of a rate: messages, bytes, or processing time, which stands first."""
    return key_of(name), _TIME if name[0].endswith(".time") else dimension


@dataclass(slots=True)
class Watch:
    """Sees whenever somebody acts in an exchange what all its members may spend.

    While a policy is on its way, for a lease after one of the members took it up, the old quotas count too.
    """

    exchange: SimulatedExchange
    world: World
    _until_ms: dict[str, int] = field(default_factory=dict)
    """Up to when, by true time, the quotas of a revision count."""

    def act(self) -> int:
        """Look.

        Raises
        ------
        Violation
            If the members may spend more than there is.
        """
        now_ms, lease_ms = self.exchange.time.now_ms, self.exchange.settings.lease_ms
        for revision in self.world.revisions_in_force():
            self._until_ms[revision] = now_ms + lease_ms
        self._until_ms = {revision: until for revision, until in self._until_ms.items() if until >= now_ms}
        used: dict[ScopeName, list[Rates]] = {}
        for member in self.exchange.members:
            rates = member.leased()
            for name in rates:
                used.setdefault(name, []).append(rates)
        for name, all_rates in used.items():
            for dimension in range(2):
                held = [rates[name][dimension] for rates in all_rates]
                quota = self._quota(*place_of(name, dimension))
                if quota is not None and sum(max(rate, 0) for rate in held) > quota:
                    what = f"at {now_ms} ms the jobs may spend {held} of {name}, whose quota is {quota}"
                    raise Violation(SHARING, what)
        return 10**9

    def _quota(self, key: Key, dimension: int) -> int | None:
        """Return the largest quota of those that count; `None` where one of them is no limit that is shared."""
        quotas = []
        for revision in self._until_ms:
            scope = next((s for s in self.world.contracts(revision).shared if s.key == key), None)
            limit = None if scope is None or not scope.is_asked else (*scope.limits, scope.time)[dimension]
            if limit is None:
                return None
            quotas.append(limit.rate)
        return max(quotas, default=None)


@dataclass(slots=True)
class Leases(Law):
    """Two leases after anything happened, a job has at least its floor of what its namespaces wait for.

    Until it has anything, no message exceeds the quota, so none is rejected for it.
    """

    _since_ms: dict[str, int] = field(default_factory=dict)
    """Since when a namespace has waited while nothing happened but batches, and its own limits would let it go."""

    _cause: tuple[str, int, int] = ("", -1, -1)
    _looked_ms: int = 0
    name = SHARING

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Look for who waits, and for messages that were rejected and should wait."""
        yield from self._starving(world, batch.revision)
        yield from self._rejected_unleased(world.contracts(batch.revision), batch)

    def after_idle(self, world: World) -> Iterator[str]:
        """Look for who waits."""
        yield from self._starving(world, world.job.revision)

    @staticmethod
    def _rejected_unleased(contracts: Contracts, batch: SimulatedBatch) -> Iterator[str]:
        shares: dict[tuple[str | None, str | None], tuple[Key, tuple[int, int]]] = {
            name: (key_of(name), share) for name, share in batch.shares.items()
        }
        for letter in batch.rejected:
            is_time = letter.dimension == "time"
            level = f"{letter.level}.time" if is_time else letter.level
            found = shares.get((level, letter.scope)) if letter.reason == "quota" else None
            if found is None:
                continue
            key, share = found
            dimension = 0 if is_time else _DIMENSIONS.index(str(letter.dimension))
            scopes = contracts.of(text_of(letter.row.namespace)).scopes
            (limit,) = [(scope.time if is_time else scope.limits[dimension]) for scope in scopes if scope.key == key]
            if limit is not None and share[dimension] == 0 < limit.rate:
                yield f"{letter} was rejected for a quota of {limit.rate} of which the job had no share yet"

    def _starving(self, world: World, revision: str) -> Iterator[str]:
        job, now_ms = world.job, world.job.steady_ms
        cause = revision, world.other_causes, world.disturbances
        if cause != self._cause or now_ms > self._looked_ms + _LONGEST_GAP_MS:
            self._since_ms.clear()
        self._cause, self._looked_ms = cause, now_ms
        if job.exchange is None or not job.is_sharing or job.is_down:
            return
        contracts, leased = world.contracts(revision), job.leased()
        # Who could not go whatever is shared wants nothing of it, and its scopes may be given up.
        wanting = [name for name in world.waiting if world.account.has_own_tokens(contracts, name)]
        self._since_ms = {name: self._since_ms.get(name, now_ms) for name in wanting}
        for name, since_ms in self._since_ms.items():
            if now_ms - since_ms < _LEASES * job.exchange.settings.lease_ms or world.is_held_by_rule(name):
                continue
            if any(scope.key[0] == "namespace" for scope in contracts.of(name).timed):
                continue
            for scope, dimension, floor in self._floors(contracts, job.exchange, name):
                rate = leased.get(_name_of(scope, dimension), (0, 0))[dimension % _TIME]
                if rate != UNLIMITED and rate < floor:
                    yield (
                        f"{name!r} has waited for {now_ms - since_ms} ms, and of {scope.key} the job may spend {rate} "
                        f"and not its floor of {floor}"
                    )

    @staticmethod
    def _floors(contracts: Contracts, exchange: SimulatedExchange, name: str) -> Iterator[tuple[Scope, int, int]]:
        """Yield a lower bound of what a job has of every scope that a namespace waits for."""
        for scope in contracts.of(name).scopes:
            if scope.is_asked and scope.key[0] in _LEVELS.values():
                for dimension, limit in enumerate((*scope.limits, scope.time)):
                    if limit is not None:
                        part = exchange.settings.floor_percent * (limit.rate // 100) // max(1, exchange.seats)
                        yield scope, dimension, part // 2

    def forget(self) -> None:
        """Forget who waited."""
        self._since_ms.clear()


def _name_of(scope: Scope, dimension: int) -> ScopeName:
    if dimension == _TIME:
        return ("tenant.time" if scope.key[0] == "tenant" else "resource_group.time", scope.key[1])
    return ("tenant" if scope.key[0] == "tenant" else "resource_group", scope.key[1])
