"""The laws that speak of single rows: conservation, order, replay, acting at once, atomic debit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from spark_throttle.core.usage import unpack_usage
from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.life.contract import refusal_of, text_of
from tests.life.laws import Law, World

_OF_EXCESS: Final = frozenset({"quota", "throttling", "queue_full", "queue_age"})
"""Reasons of rows that nothing is wrong with."""

_WORDS: Final[dict[str | None, str]] = {"group": "resource_group"}
"""What dead letters call a level."""


class Conservation(Law):
    """L1: every row that was taken is in the table once, in the dead letters once with a reason, or waits."""

    name = "L1"

    def __init__(self) -> None:
        self._written: set[int] = set()
        self._seen = [0, 0, 0]
        self._count = np.zeros(0, dtype=np.int64)

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Count the sinks and the queue."""
        job = world.job
        self._count = np.concatenate([self._count, np.zeros(len(job.outside.source) - len(self._count), np.int64)])
        for at, rows in enumerate((job.admitted, [letter.row for letter in job.rejected])):
            np.add.at(self._count, [row.id for row in rows[self._seen[at] :]], 1)
            self._seen[at] = len(rows)
        found = self._count.copy()
        np.add.at(found, [row.id for rows in world.waiting.values() for row in rows], 1)
        taken = job.checkpoint.log[-1].end_row if job.checkpoint.log else 0
        for what, wrong in (("lost", np.flatnonzero(found[:taken] < 1)), ("doubled", np.flatnonzero(found > 1))):
            if len(wrong):
                yield f"{len(wrong)} rows are {what}, the first is {job.outside.source[wrong[0]]}"
        self._written.update(row.id for row in job.written[self._seen[2] :])
        self._seen[2] = len(job.written)
        missing = [row for row in batch.admitted if row.id not in self._written]
        if missing:
            yield f"{len(missing)} admitted rows never reached the plain sink, the first is {missing[0]}"
        yield from _reasons(world, batch)

    def forget(self) -> None:
        """Count the sinks anew: they may have been put back."""
        self._seen = [0, 0, 0]
        self._count[:] = 0


def _reasons(world: World, batch: SimulatedBatch) -> Iterator[str]:
    """Yield rows that were refused for a reason that they do not give, and those that were not though they give one."""
    contracts = world.contracts(batch.revision)
    arrived = {row.id: refusal_of(contracts, row.namespace, row.size_bytes) for row in batch.arrived}
    for letter in batch.rejected:
        refusal = arrived.pop(letter.row.id, None)
        if refusal is None:
            is_right = letter.reason in _OF_EXCESS
        else:
            level, scope = _WORDS.get(refusal.level, refusal.level), refusal.scope or refusal.level
            dimension = None if refusal.level is None else contracts.amount
            is_right = (letter.reason, letter.level, letter.dimension) == (refusal.reason, level, dimension)
            is_text = not isinstance(letter.row.namespace, bytes)
            is_right &= letter.scope == scope or not is_text
            is_right &= letter.throttle_time_ms is None
        if not is_right:
            yield f"{letter} was rejected, and what is wrong with it is {refusal}"
    for row in batch.arrived:
        refusal = arrived.get(row.id)
        if refusal is not None:
            yield f"{row} was taken in, and what is wrong with it is {refusal}"


class Order(Law):
    """L5: rows of a namespace leave in order, and none before one that waits."""

    name = "L5"

    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare every namespace's rows."""
        for row in batch.admitted:
            name = text_of(row.namespace)
            if row.id <= self._last.get(name, -1):
                yield f"{row} left after row {self._last[name]} of its namespace"
            self._last[name] = row.id
        for name, rows in world.waiting.items():
            if rows[0].id < self._last.get(name, -1):
                yield f"{rows[0]} waits and row {self._last[name]} of its namespace has left"

    def forget(self) -> None:
        """Forget who left."""
        self._last.clear()


class Replay(Law):
    """L6: a batch that runs again, under whatever policies, leaves the same bytes; asked by `replayed`."""

    name = "L6"

    @staticmethod
    def replayed(first: SimulatedBatch, again: SimulatedBatch) -> Iterator[str]:
        """Compare two attempts at a batch."""
        if first.digest != again.digest:
            yield (
                f"batch {first.number} admitted {[row.id for row in first.admitted]} and, run again, "
                f"{[row.id for row in again.admitted]}; rejected {len(first.rejected)} and {len(again.rejected)}"
            )


class NoRestart(Law):
    """L7: policies act in the first batch that is planned after they were set."""

    name = "L7"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare the revision that was asked for with the one that was applied."""
        if batch.revision != world.asked_revision:
            yield f"batch {batch.number} applied {batch.revision} and {world.asked_revision} was in force"


class AtomicDebit(Law):
    """L8: the decider reports, and so charges, exactly the messages and bytes that it admitted."""

    name = "L8"

    def after_batch(self, world: World, batch: SimulatedBatch) -> Iterator[str]:
        """Compare the reports with the rows."""
        admitted: dict[bytes, list[int]] = defaultdict(lambda: [0, 0])
        for row in batch.admitted:
            total = admitted[text_of(row.namespace).encode(errors="surrogateescape")]
            total[0] += 1
            total[1] += row.size_bytes or 0
        reported: dict[bytes, list[int]] = {}
        if batch.usage:
            usage = unpack_usage(batch.usage, "a usage report")
            # A name may be no UTF-8, which has no Python text.
            names = usage.names.view("binary").to_pylist()
            pairs = usage.admitted[:, :2].tolist()
            reported |= {name: pair for name, pair in zip(names, pairs, strict=True) if any(pair)}
        if reported != dict(admitted):
            yield f"charged {reported} and admitted {dict(admitted)}"
