"""Simulated jobs share quotas through an exchange in memory, and one true time.

True time passes only when told to, and wakes the actors that are due. When it passes for one job, it passes for all,
and each visits the exchange when its lease keeper would. A visit runs the real job's code; no thread is started.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, TypeAlias

import numpy as np

from spark_throttle.control.demand import SharedScopes
from spark_throttle.core.quota import UNLIMITED, CompiledPolicy, Dimension, Int64s
from spark_throttle.core.shares.allocation import PLENTY
from spark_throttle.policy.compile import compile_policy
from spark_throttle.policy.model import Direction, PolicyDocument
from spark_throttle.sharing.lease_keeper import Clocks, LeaseKeeper
from spark_throttle.sharing.report import Measurement
from spark_throttle.sharing.settings import ShareSettings
from spark_throttle.sharing.sharing import Sharing
from spark_throttle.store.policy_location import load_policies

START_MS = 1_760_000_000_000
"""Reading of the wall clock when a simulation begins."""


@dataclass(frozen=True, slots=True)
class SimulatedMachine:
    """A machine that a job may run on, and its clocks."""

    boot: str = "simulated"
    """Identifier of the machine's boot, as an operating system gives it: the origin of the steady clock."""

    ahead_ms: int = 0
    """Lead of the wall clock over true time; negative if it is behind."""

    up_ms: int = 0
    """Reading of the steady clock when the simulation began."""


class Actor(Protocol):
    """An object that acts while time passes."""

    def act(self) -> int:
        """Do what is due now, and return the ms until something is due again, at least 1."""


@dataclass(slots=True, eq=False)
class SimulatedTime:
    """The time since a simulation began.

    Examples
    --------
    >>> time = SimulatedTime()
    >>> time.pass_by(1_500)
    >>> time.now_ms
    1500
    """

    now_ms: int = 0
    awake_ms: int = 60_000
    actors: list[Actor] = field(default_factory=list)
    """The actors, in the order in which they act."""

    def pass_by(self, by_ms: int) -> None:
        """Let time pass."""
        asleep_ms = max(0, by_ms - self.awake_ms) if self.actors else 0
        awake_ms = by_ms - asleep_ms
        self._pass_awake(awake_ms // 2)
        self.now_ms += asleep_ms
        self._pass_awake(awake_ms - awake_ms // 2)

    def _pass_awake(self, by_ms: int) -> None:
        end_ms = self.now_ms + by_ms
        while True:
            due_ms = self.now_ms + min([actor.act() for actor in self.actors], default=by_ms + 1)
            if due_ms > end_ms:
                break
            self.now_ms = due_ms
        self.now_ms = end_ms


ScopeName: TypeAlias = tuple[Literal["tenant", "resource_group", "tenant.time", "resource_group.time"], str]
Rates: TypeAlias = dict[ScopeName, tuple[int, int]]
"""Rates by scope: micro-tokens per millisecond, of messages and of bytes; `UNLIMITED` where there is no limit.

The processing time of a scope has a name of its own, and stands in the first place: nanoseconds per millisecond."""

_AWAKE_LEASES: Final = 8
_PERCENT: Final = 100


class Member(Protocol):
    """A job or a peer that spends a part of the shared quotas."""

    def leased(self) -> Rates:
        """Return what the member may spend of every scope now."""


@dataclass(slots=True, eq=False)
class SimulatedExchange:
    """An object store in memory, and the members that meet there.

    Examples
    --------
    Two jobs that both want everything get half each:

    >>> exchange = SimulatedExchange(ShareSettings(interval_ms=1_000, lease_ms=10_000))
    >>> quota = {"publish": {"messages_per_second": 10, "burst_seconds": 1}}
    >>> policies = {"version": 1, "resource_groups": {"gold": quota}, "defaults": {"resource_group": "gold"}}
    >>> one, other = exchange.join("one", policies), exchange.join("other", policies)
    >>> exchange.time.pass_by(10_000)
    >>> [round(peer.leased()["resource_group", "gold"][0] / 1000) for peer in (one, other)]
    [5, 5]
    """

    settings: ShareSettings = field(default_factory=ShareSettings)
    objects: dict[str, bytes] = field(default_factory=dict)
    time: SimulatedTime = field(default_factory=SimulatedTime)
    members: list[Member] = field(default_factory=list)
    """The live members."""

    seats: int = 0
    """Number of members that have ever started."""

    drawn_members: int = 0
    """Number of seats that were drawn."""

    def __post_init__(self) -> None:
        self.time.awake_ms = _AWAKE_LEASES * self.settings.lease_ms

    # The methods of `sharing.exchange.Exchange`.

    @property
    def reads_at_once(self) -> int:
        """One: the members live in one thread."""
        return 1

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return sorted(self.objects)

    def read(self, name: str) -> bytes | None:
        """Return an object; `None` if it does not exist."""
        return self.objects.get(name)

    def write(self, name: str, content: bytes) -> None:
        """Replace an object."""
        self.objects[name] = content

    def delete(self, name: str) -> None:
        """Delete an object; a missing object is no error."""
        self.objects.pop(name, None)

    # The members that come and go.

    def draw_run(self) -> int:
        """Return bits that identify a member's start, like `sharing.member.drawn_run`, but reproducible."""
        self.seats += 1
        return random.Random(f"run {self.seats}").getrandbits(61) | 1  # noqa: S311 - bits that replay

    def draw_member(self) -> str:
        """Return a member's name, like `sharing.member.drawn_member`, but reproducible."""
        self.drawn_members += 1
        return f"{random.Random(f'seat {self.drawn_members}').getrandbits(128):032x}"  # noqa: S311 - a name that replays

    def join(
        self,
        name: str,
        policies: Mapping[str, object] | PolicyDocument | str,
        *,
        direction: Direction = "publish",
        percent: int = 100,
    ) -> SimulatedPeer:
        """Add a peer that begins to share, and return it; see `SimulatedPeer.want`."""
        peer = SimulatedPeer(self, name, direction)
        peer.want(load_policies(policies), percent)
        self.members.append(peer)
        self.time.actors.append(peer)
        return peer

    def leave(self, peer: SimulatedPeer) -> None:
        """Remove a peer that dies without a farewell report."""
        peer.act()
        self.members.remove(peer)
        self.time.actors.remove(peer)


class Lease:
    """One member's lease, kept without a thread: an actor in the exchange's time."""

    def __init__(self, exchange: SimulatedExchange, clocks: Clocks, sharing: Sharing) -> None:
        self.keeper = LeaseKeeper(sharing, exchange, clocks)

    def act(self) -> int:
        """Visit the exchange if a visit is due."""
        while (wait_ms := self.keeper.act()) <= 0:
            pass
        return wait_ms

    def rates(self, scopes: Mapping[int, ScopeName], pinned: Mapping[ScopeName, tuple[int, int]]) -> Rates:
        """Return the rates that may be spent now: those that an epoch pinned, at most those of the lease.

        Parameters
        ----------
        scopes
            Names of the scopes, by their ids in reports.
        """
        share, out = self.keeper.share(), Rates()
        for number, rate in zip(share.ids.tolist(), share.rate_micro_per_ms.tolist(), strict=True):
            name = scopes.get(number)
            if name is not None:
                one, other = (
                    UNLIMITED if held == UNLIMITED else min(max(held, 0), now)
                    for held, now in zip(pinned.get(name, (0, 0)), rate, strict=True)
                )
                out[name] = one, other
        return out


class SimulatedPeer:
    """Another job that shares the quotas: its lease is real, its demand is synthetic, and it spends all that it gets.

    Parameters
    ----------
    name
        The name of the job and of its checkpoint: a peer that joins again under the same name is the same job,
        restarted.
    """

    def __init__(self, exchange: SimulatedExchange, name: str, direction: Direction) -> None:
        self.name = name
        self.spent: dict[tuple[ScopeName, int], int] = defaultdict(int)
        """Micro-tokens spent since the peer began, by scope and dimension."""

        self._time = exchange.time
        self._direction: Direction = direction
        run = exchange.draw_run()
        sharing = Sharing(name, name, exchange.seats, exchange.settings, run)
        clocks = Clocks(lambda: exchange.time.now_ms, lambda: START_MS + exchange.time.now_ms)
        self._lease = Lease(exchange, clocks, sharing)
        self._scopes: dict[int, ScopeName] = {}
        self._pinned: Rates = {}
        self._spent_to_ms = exchange.time.now_ms

    def want(self, document: PolicyDocument, percent: int) -> None:
        """Set the demand to a percentage of every quota in the policies from now on; 0 is no demand."""
        self._spend()
        policy = compile_policy(document.at(START_MS + self._time.now_ms), self._direction)
        scopes = SharedScopes.of(policy, self._direction)
        self._scopes |= scope_names(policy, self._direction)
        kept = slice(None) if percent else slice(0)
        ids, quota = scopes.ids[kept], scopes.taken(policy.shared.rate_micro_per_ms)[kept]
        wanted = np.where(quota == UNLIMITED, PLENTY, quota) // _PERCENT * percent
        one_each = np.arange(len(ids))
        self._lease.keeper.measure(Measurement(ids, quota, wanted, one_each, wanted, one_each * 0 + 1))

    def leased(self) -> Rates:
        """Return what the peer may spend of every scope now."""
        return self._lease.rates(self._scopes, self._pinned)

    def act(self) -> int:
        """Spend, visit the exchange if a visit is due, and pin the share found there."""
        self._spend()
        self._lease.act()
        share, _ = self._lease.keeper.begin_pin()
        self._pinned = rates_of(self._scopes, share.ids, share.rate_micro_per_ms)
        self._lease.keeper.end_pin(share)
        return self._lease.act()

    def _spend(self) -> None:
        """Spend what the lease allowed since the last call: pinned rates while it lasted, then at most the floor."""
        now_ms = self._time.now_ms
        passed_ms = now_ms - self._spent_to_ms
        leased_ms = min(passed_ms, self._lease.keeper.paid_ms(self._spent_to_ms))
        for name, rates in self.leased().items():
            for dimension, rate in enumerate(rates):
                held = self._pinned.get(name, (0, 0))[dimension]
                if UNLIMITED not in (rate, held):
                    self.spent[name, dimension] += held * leased_ms + rate * (passed_ms - leased_ms)
        self._spent_to_ms = now_ms


def scope_names(policy: CompiledPolicy, direction: Direction) -> dict[int, ScopeName]:
    """Return the names of a policy's shared scopes, by their ids in reports."""
    names: list[ScopeName] = [("tenant", name) for name in policy.tenant_names.to_pylist()]
    names += [("resource_group", name) for name in policy.group_names.to_pylist()]
    kinds = {-1: ""} | {d: f".{d.name.lower()}" for d in Dimension}
    scopes = SharedScopes.of(policy, direction)
    places = zip(scopes.ids.tolist(), scopes.position.tolist(), scopes.alone.tolist(), strict=True)
    return {number: (names[at - 1][0] + kinds[alone], names[at - 1][1]) for number, at, alone in places}


def rates_of(scopes: Mapping[int, ScopeName], ids: Int64s, rate: Int64s) -> Rates:
    """Return rates by scope name."""
    pairs = zip(ids.tolist(), rate.tolist(), strict=True)
    return {scopes[number]: (one, other) for number, (one, other) in pairs if number in scopes}
