"""What the rows of a life really cost, when it is told, and what that charges: a ledger of tables and messages alone.

It is shown which rows left and which costs were told, batch by batch, and keeps by itself which rows are open. The
account of a life is corrected by it, so that every law on tokens holds for what was settled too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from spark_throttle.core.usage import unpack_usage
from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import Cost, Row
from tests.life.contract import MAX_SIZE_BYTES, MICRO, Contracts, Key, text_of

RESERVATION_SECONDS: Final = 30
CHANGED: Final[Key] = ("namespace", "")
"""Stands for no scope, among those that did not charge a row: another policy came since it left."""

_AT_ONCE_BATCHES: Final = 4
"""Costs are told of rows that left in so many batches at most."""

_TIMES: Final = ((0, 1), (1, 2), (1, 1), (2, 1), (5, 1))
_NEVER: Final = 4


@dataclass(slots=True)
class Untold:
    """What rows really cost that have left, and when it is told: of one in four it never is."""

    _costs: list[tuple[int, Cost]] = field(default_factory=list)
    """Each, and the trigger before which it is told."""

    _left: int = 0
    """How many rows of the table were noted."""

    def due(self, left: Sequence[Row], trigger: int) -> list[Cost]:
        """Return what is told before a trigger, of the rows that have left until then."""
        for row in left[self._left :]:
            if row.identity is not None and (after := row.id % _NEVER):
                self._costs.append((trigger + after, (row.identity, _true_cost(row))))
        self._left = len(left)
        told = [cost for at, cost in self._costs if at <= trigger]
        self._costs = [(at, cost) for at, cost in self._costs if at > trigger]
        return told


def _true_cost(row: Row) -> int:
    more, less = _TIMES[row.id // _NEVER % len(_TIMES)]
    return min((row.units or 0) * more // less, MAX_SIZE_BYTES)


@dataclass(frozen=True, slots=True)
class _Reserved:
    batch: int
    name: str
    units: int
    reserved_ms: int
    lost: dict[Key, int] = field(default_factory=dict)
    """The scopes that did not charge it, or did not hold on to that, and the batch that brought this."""


@dataclass(slots=True)
class Recounts:
    """What the costs that batches brought change of what namespaces were served.

    The fair order is not corrected by what is given back of rows that left under another policy.
    """

    of_batch: dict[str, int] = field(default_factory=dict)
    """By namespace, in micro-tokens: negative where the newest batch told less than was estimated."""

    at_once: int = 0
    """By how much what was told of all in a few batches was apart from the estimates, at most."""

    _newest: deque[int] = field(default_factory=lambda: deque(maxlen=_AT_ONCE_BATCHES))

    def note(self, owed: Sequence[tuple[str, int, Collection[Key]]]) -> None:
        """Note what a batch settled."""
        found: dict[str, int] = defaultdict(int)
        for name, units, lost in owed:
            if units > 0 or CHANGED not in lost:
                found[name] += MICRO * units
        self.of_batch = dict(found)
        self._newest.append(sum(abs(each) for each in found.values()))
        self.at_once = max(self.at_once, sum(self._newest))


@dataclass(slots=True)
class Reservations:
    """The reservations of a life, by their identities, each of one row."""

    _made: dict[str, _Reserved] = field(default_factory=dict)
    _open: dict[str, _Reserved] = field(default_factory=dict)
    _ended_in: dict[str, int] = field(default_factory=dict)
    """The batch in which each ended that is not open."""

    settled: int = 0

    def settle(self, number: int, told: Sequence[Cost]) -> list[tuple[str, int, Collection[Key]]]:
        """Settle what a batch was told, and return what is owed, and by whom: negative where it is given back.

        It is not given back to the scopes that are named.
        """
        owed: list[tuple[str, int, Collection[Key]]] = []
        for identity, units in dict(sorted(told)).items():  # of two costs of one row the larger one counts
            found = self._open.pop(identity, None)
            if found is not None:
                self._ended_in[identity] = number
                self.settled += 1
                owed.append((found.name, units - found.units, found.lost if units < found.units else ()))
        return owed

    def change(self, number: int, before: Contracts, after: Contracts) -> None:
        """Note that another policy came with a batch."""
        for each in self._open.values():
            was = {scope.key: scope for scope in before.of(each.name).scopes}
            each.lost.setdefault(CHANGED, number)
            for scope in after.of(each.name).scopes:
                old = was.get(scope.key)
                is_limited = old is not None and old.limits[1] is not None and scope.limits[1] is not None
                if not is_limited or (old is not None and scope.is_asked and not old.is_asked):
                    each.lost.setdefault(scope.key, number)

    def note(self, batch: SimulatedBatch, after_ms: int) -> None:
        """Note the rows that left in a batch, and what was open for too long."""
        if not batch.usage:
            return
        paid_ms = unpack_usage(batch.usage, "a usage report").as_of_ms
        for row in batch.admitted:
            if row.identity is not None:
                reserved = _Reserved(batch.number, text_of(row.namespace), row.units or 0, paid_ms)
                self._made[row.identity] = self._open[row.identity] = reserved
        for identity, each in list(self._open.items()):
            if paid_ms - each.reserved_ms >= after_ms:
                del self._open[identity]
                self._ended_in[identity] = batch.number

    def put_back(self, batches: int) -> None:
        """Forget all batches but the first."""
        self._made = {at: each for at, each in self._made.items() if each.batch < batches}
        self._ended_in = {at: batch for at, batch in self._ended_in.items() if batch < batches}
        for each in self._made.values():
            for key in [key for key, batch in each.lost.items() if batch >= batches]:
                del each.lost[key]
        self._open = {at: each for at, each in self._made.items() if at not in self._ended_in}
