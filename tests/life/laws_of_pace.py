"""L3 where a scope limits messages and bytes: two equals are served at one pace, counted in time.

A namespace's service is the time in which its scope earns what the namespace was served, in the resource that takes
longer. So a namespace of small messages and one of large messages can be compared, whichever resource each of them is
short of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations

from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.life.contract import Contract, Contracts, Limit, text_of
from tests.life.gap import Gap
from tests.life.laws import Law, World
from tests.life.laws_of_fairness import Sizes, served_in

Limits = tuple[Limit, Limit]


@dataclass(slots=True)
class _Pair:
    """Two that compete under one policy, since both are backlogged."""

    sizes: tuple[int, int]
    """The one size that each one's rows have."""

    served: tuple[list[int], list[int]] = field(default_factory=lambda: ([0, 0], [0, 0]))
    """What each was served, in messages and in bytes, in micro-tokens."""

    gap: Gap = field(default_factory=Gap)


class Pace(Law):
    """L3 in time: as `Fairness`, in a scope that limits both resources and is the only one that either passes.

    Only namespaces whose rows are all of one size are compared: for others, the resource that takes longer depends on
    the span of time that is asked about. Where somebody is guaranteed something, that goes first. Where costs are told
    late, who goes first is corrected by them.
    """

    name = "Pace"
    is_put_back = True

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._contracts: Contracts | None = None
        self._sizes = Sizes()
        self._seen: dict[str, set[object]] = defaultdict(set)
        """Of every namespace: the sizes of its rows, and the scopes that they passed while they waited."""

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare every two that compete in such a scope."""
        contracts = world.contracts(batch.revision)
        before, self._contracts = self._contracts or contracts, contracts
        self._sizes.note(batch.arrived)
        for row in batch.arrived:
            self._seen[text_of(row.namespace)].add(row.size_bytes)
        for name in world.waiting:
            self._seen[name].add(contracts.of(name).enforced)
        served = defaultdict(lambda: [0, 0], served_in(batch))
        backlogged = [name for name in world.waited.keys() & world.waiting.keys() if not world.may_be_held(name)]
        kept: dict[tuple[str, str], _Pair] = {}
        is_exact = not contracts.has_guarantees and not world.recounts.at_once
        for names in combinations(sorted(backlogged) if is_exact else (), 2):
            found = contracts.of(names[0]), contracts.of(names[1])
            limits = _limits_of(*found)
            weights = self._sizes.rivals(contracts, *names)
            if limits is None or weights is None or found != (before.of(names[0]), before.of(names[1])):
                continue
            sizes = _size_of(world.waited[names[0]]), _size_of(world.waited[names[1]])
            if sizes[0] is None or sizes[1] is None:
                continue
            pair = self._pairs.get(names)
            if pair is None or pair.sizes != sizes:
                pair = _Pair((sizes[0], sizes[1]))
            kept[names] = pair
            for total, name in zip(pair.served, names, strict=True):
                total[0] += served[name][0]
                total[1] += served[name][1]
            times = [_time_of(total, limits) / weight for total, weight in zip(pair.served, weights, strict=True)]
            difference = times[0] - times[1] - pair.gap.ahead
            apart = pair.gap.add(difference)
            bound = self._bound(names, weights, limits)
            if apart > bound:
                yield (
                    f"{names[0]!r} and {names[1]!r} (weights {weights}) were backlogged for "
                    f"{pair.gap.batches} batches, were served {float(times[0]):g} and {float(times[1]):g} ms of their "
                    f"group, and are {float(apart):g} ms apart; {float(bound):g} are allowed"
                )
        self._pairs = kept

    def _bound(self, names: tuple[str, str], weights: tuple[int, int], limits: Limits) -> Fraction:
        """Return how far the two may come apart: each is behind at one end of a window, and ahead at the other.

        Either is less than a message of its own and the largest of others.
        """
        bound = Fraction(0)
        for name, weight in zip(names, weights, strict=True):
            for message in ([self._sizes.message(name, d) for d in (0, 1)], [self._sizes.largest(d) for d in (0, 1)]):
                bound += 2 * _time_of(message, limits) / weight
        return bound

    def forget(self) -> None:
        """Forget who was ahead."""
        self._pairs.clear()
        self._contracts = None


def _limits_of(one: Contract, other: Contract) -> Limits | None:
    """Return both limits of the only scope in which two compete, or `None` if it is another case."""
    if one.enforced != other.enforced or len(one.enforced) != 1 or one.domain is None:
        return None
    messages, volume = one.enforced[0].limits
    if messages is None or volume is None or not messages.rate or not volume.rate:
        return None
    return messages, volume


def _size_of(rows: Sequence[Row]) -> int | None:
    """Return the size that all rows have, or `None`."""
    sizes = {row.size_bytes for row in rows}
    return sizes.pop() if len(sizes) == 1 else None


def _time_of(tokens: Sequence[int], limits: Limits) -> Fraction:
    """Return the milliseconds in which a scope earns messages and bytes."""
    return max(Fraction(tokens[0], limits[0].rate), Fraction(tokens[1], limits[1].rate))
