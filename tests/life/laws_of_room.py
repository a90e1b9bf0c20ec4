"""The law that the queue takes from the longest only: no namespace loses a row for another that keeps more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Final

from spark_throttle.testing.simulation.query import SimulatedBatch
from spark_throttle.testing.simulation.rows import Row
from tests.life.contract import text_of
from tests.life.laws import Law, World

_GRAIN: Final = Fraction(1, 2**30)
"""Shares are counted in parts of this size, rounded up."""


class QueueRoom(Law):
    """A row is rejected as `queue_full` only where what was to wait did not fit, and from the longest queues."""

    name = "Queue"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare what was put out with what is left."""
        lost: dict[str, list[Row]] = defaultdict(list)
        full = [letter.row for letter in batch.rejected if letter.reason == "queue_full"]
        for row in sorted(full, key=lambda row: row.id):
            lost[text_of(row.namespace)].append(row)
        policy, bounds = world.contracts(batch.revision).document.queue, bounds_of(world, batch)
        if policy.on_overflow == "fail" and lost:
            yield f"the queue lost rows of {sorted(lost)}, and the query should have failed"
        elif policy.on_overflow != "fail":
            yield from _misplaced(world.waiting, lost, bounds)


def bounds_of(world: World, batch: SimulatedBatch) -> tuple[int, int]:
    """Return the messages and bytes that the queue may hold in a batch."""
    policy = world.contracts(batch.revision).document.queue
    return policy.messages, policy.bytes


def _misplaced(kept: dict[str, list[Row]], lost: dict[str, list[Row]], bounds: tuple[int, int]) -> Iterator[str]:
    """Yield what is kept though there is no room for it, and what was put out though there was."""
    stays = [row for rows in kept.values() for row in rows]
    if not fit(stays, bounds):
        yield f"the queue keeps {len(stays)} rows, over its bounds of {bounds[0]} messages and {bounds[1]} bytes"
    if not lost:
        return
    shares = {name: _share(rows, bounds) for name, rows in kept.items()}
    most, longest = max(((share, name) for name, share in shares.items()), default=(Fraction(0), ""))
    first: dict[str, Fraction] = {}
    for name, rows in lost.items():
        before = kept.get(name, [])
        first[name] = _share([*before, rows[0]], bounds)
        if before and before[-1].id > rows[0].id:
            yield f"{rows[0]} was put out, and {before[-1]} waits behind it"
        if first[name] < most - _GRAIN:
            yield f"{rows[0]} was put out at a share of {first[name]}, and {longest!r} keeps {most}"
    # The first that was put out did not fit; of equal shares it may be any.
    least = min(first.values())
    heads = [lost[name][0] for name, share in first.items() if share <= least + _GRAIN]
    if all(fit([*stays, row], bounds) for row in heads):
        yield f"{heads} were put out of a queue that keeps {len(stays)} rows and has room for them"


def fit(rows: Sequence[Row], bounds: tuple[int, int]) -> bool:
    """Return whether rows fit in a queue of at most these messages and bytes."""
    return len(rows) <= bounds[0] and sum(row.size_bytes or 0 for row in rows) <= bounds[1]


def _share(rows: Sequence[Row], bounds: tuple[int, int]) -> Fraction:
    """Return the larger part of the bounds that rows take, and just over the whole for more than a bound."""
    parts = Fraction(len(rows), bounds[0]), Fraction(sum(row.size_bytes or 0 for row in rows), bounds[1])
    return min(max(parts), 1 + _GRAIN)
