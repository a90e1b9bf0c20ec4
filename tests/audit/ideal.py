"""L3 against the fluid ideal: what stays backlogged is behind it by a constant number of the largest messages.

It is asked where scopes limit one dimension and no time, and nobody is guaranteed anything. A scope with a limit passes
what it did pass, so groups that have limits are not compared with each other here. What was behind when a policy
changes may be behind once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from tests.core.fair.fluid import Fluid, Path
from tests.life.contract import Contract, Contracts

TENANT_BOUND: Final = 4
NAMESPACE_BOUND: Final = 6
"""How far a tenant or a namespace may be behind its ideal, in the largest messages: two for each level above it."""

_DIMENSIONS: Final = ("messages", "bytes")


def way_of(name: str, contract: Contract) -> Path:
    """Return the way from the job to a namespace: its group, or its tenant where it has none, its tenant, itself."""
    tenant = name.partition("/")[0]
    group = next((f"group {scope.key[1]}" for scope in contract.scopes if scope.key[0] == "group"), f"tenant {tenant}")
    return group, tenant, name


def weights_on(way: Path, contract: Contract) -> dict[Path, int]:
    """Return the weights of the nodes on the way to a namespace."""
    weight = {scope.key[0]: scope.weight for scope in contract.scopes}
    of_tenant = weight.get("tenant", 1)
    return {way[:1]: weight.get("group", of_tenant), way[:2]: of_tenant, way: contract.weight}


def counted_by(name: str, contract: Contract) -> object:
    """Return all of a contract that says whose service is compared, and in what: not its rates."""
    limits = [(scope.key, [limit is None for limit in scope.limits]) for scope in contract.enforced]
    return limits, weights_on(way_of(name, contract), contract)


@dataclass(frozen=True, slots=True)
class Behind:
    """How far a tenant or a namespace is behind its ideal after a batch."""

    node: Path
    messages: float
    """In the largest messages."""

    allowed: int
    dimension: int

    @property
    def is_too_far(self) -> bool:
        """Whether a bound is passed."""
        return self.messages > self.allowed

    def __str__(self) -> str:
        return (
            f"{self.node[-1]!r} of {self.node[0]!r} is behind its ideal by {self.messages:g} of the largest messages, "
            f"counted in {_DIMENSIONS[self.dimension]}; {self.allowed} are allowed"
        )


class Ideal:
    """The fluid beside what was served, batch by batch."""

    def __init__(self) -> None:
        self._fluid = Fluid({})
        self._served: dict[Path, float] = {}
        self._came: dict[Path, float] = {}
        self._contracts: Contracts | None = None
        self._times = 1

    def behind(
        self,
        contracts: Contracts,
        served: Mapping[str, list[int]],
        wanted: Mapping[str, list[int]],
        held: Collection[str],
        largest: tuple[int, int],
    ) -> Iterator[Behind]:
        """Pour a batch, and yield how far each that stays backlogged is behind.

        Parameters
        ----------
        served
            Micro-tokens of messages and bytes that each namespace got.
        wanted
            What each would take beside it: what waits, and what was rejected for a quota.
        held
            Namespaces that something else holds.
        largest
            The cost of the largest message of all, in each dimension.
        """
        before, self._contracts = self._contracts or contracts, contracts
        names = {*served, *wanted, *(way[2] for way in self._came)}
        found = {name: contracts.of(name) for name in names if contracts.of(name).scopes}
        limited = {
            d for each in found.values() for scope in each.enforced for d in (0, 1) if scope.limits[d] is not None
        }
        is_changed = any(counted_by(name, before.of(name)) != counted_by(name, each) for name, each in found.items())
        if is_changed or any(way[2] not in found for way in self._came):
            self.begin(times=2)
        own = {name for name, each in found.items() if any(scope.key[0] == "namespace" for scope in each.enforced)}
        is_open = found.keys() - own - set(held)
        backlogged = is_open & wanted.keys()
        if contracts.has_guarantees:
            limited = set()
        if len(limited) != 1 or not backlogged or any(each.timed for each in found.values()):
            self.begin(times=self._times if limited and not backlogged else 1)
            return
        dimension = limited.pop()
        ways = {name: way_of(name, each) for name, each in found.items()}
        for name, way in ways.items():
            self._served[way] = self._served.get(way, 0) + served.get(name, (0, 0))[dimension]
            more = wanted.get(name, (0, 0))[dimension] if name in is_open else 0
            self._came[way] = self._served[way] + more
        self._fluid.weights = {
            node: weight for name, way in ways.items() for node, weight in weights_on(way, found[name]).items()
        }
        self._fluid.serve(self._came, self._served, dict.fromkeys(_bounded(ways, found), 0.0))
        for depth, most in ((2, TENANT_BOUND), (3, NAMESPACE_BOUND)):
            behind: dict[Path, float] = defaultdict(float)
            for way in self._came:
                behind[way[:depth]] += self._fluid.ideal[way] - self._served[way]
            for node in {ways[name][:depth] for name in backlogged}:
                # A micro-token for each change is what the fluid's own floating point may differ by.
                messages = (behind[node] - self._times) / largest[dimension]
                yield Behind(node, messages, most * self._times, dimension)

    def begin(self, *, times: int) -> None:
        """Begin anew; what was behind may be so once more if `times` is 2."""
        self._fluid, self._served, self._came, self._times = Fluid({}), {}, {}, times

    def forget(self) -> None:
        """Forget who was ahead: the job was put back."""
        self.begin(times=2)
        self._contracts = None


def _bounded(ways: Mapping[str, Path], found: Mapping[str, Contract]) -> set[Path]:
    """Return the nodes whose scope has a limit."""
    bounded: set[Path] = set()
    for name, way in ways.items():
        levels = {scope.key[0] for scope in found[name].enforced}
        bounded |= {way[:1]} if "group" in levels else set()
        bounded |= {way[:2]} if "tenant" in levels else set()
    return bounded
