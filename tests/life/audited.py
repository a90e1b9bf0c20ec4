"""A life as an auditor is shown it, who counts in the tables when it is over and knows nothing of the job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from spark_throttle.testing.simulation.query import SimulatedBatch
from tests.audit.auditor import audit
from tests.audit.books import Batch, Row
from tests.life.contract import text_of
from tests.life.laws import World

AUDIT: Final = "Audit"
"""Who recounts the tables at the end of a life that shares no quotas finds the laws kept."""


@dataclass(slots=True)
class Notes:
    """What no table says of the batches, and everybody saw."""

    begin_anew: set[int] = field(default_factory=set)
    """Before which a clock was set, or the job put back or moved."""

    held: dict[int, frozenset[str]] = field(default_factory=dict)
    """Whom a Pegasus rule or processing time might hold."""

    def note(self, world: World, batch: SimulatedBatch, *, begins_anew: bool) -> None:
        """Note a batch."""
        (self.begin_anew.add if begins_anew else self.begin_anew.discard)(batch.number)
        names = {*world.waiting, *world.waited, *(text_of(row.namespace) for row in batch.arrived)}
        self.held[batch.number] = frozenset(name for name in names if world.may_be_held(name))


def findings(world: World, batches: Mapping[int, SimulatedBatch], notes: Notes) -> Iterator[str]:
    """Yield what an auditor finds in the tables of a job, of which `batches` are those that it ran."""
    job = world.job
    numbers, table = range(job.checkpoint.committed), list(job.outside.table.rows)
    if len(job.checkpoint.log) > len(numbers) or not batches.keys() >= {*numbers}:
        return  # the table may have a batch that is not committed, or one that another run made
    books = list[Batch]()
    for number in numbers:
        batch = batches[number]
        admitted, table = table[: len(batch.admitted)], table[len(batch.admitted) :]
        over_quota = frozenset(letter.row.id for letter in batch.rejected if letter.reason == "quota")
        arrived, left, rejected = (
            [Row(row.id, text_of(row.namespace), row.size_bytes or 0) for row in rows]
            for rows in (batch.arrived, admitted, [letter.row for letter in batch.rejected])
        )
        contracts, held = world.contracts(batch.revision), notes.held.get(number, frozenset())
        begins_anew = number in notes.begin_anew
        books.append(
            Batch(
                number, batch.steady_ms, contracts, arrived, left, rejected, over_quota,
                begins_anew=begins_anew, held=held,
            )
        )  # fmt: skip
    for finding in audit(books, {row.id for row in job.waiting}).findings:
        yield f"{finding.law}: {finding.what}"
