"""The sinks of a simulated job: a table with transactions, and a sink that appends everything it is given.

Like real sinks, both outlive the job's process and know nothing of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spark_throttle.checkpoint.batch_mark import BatchMark

RowT = TypeVar("RowT")


@dataclass(slots=True)
class TransactionalTable(Generic[RowT]):
    """A table that skips a batch whose mark it has, and refuses another batch of the same number, as Delta sinks do.

    Examples
    --------
    >>> table = TransactionalTable[str]()
    >>> table.append(BatchMark("query", 0, "5eed"), ["a"])
    True
    >>> table.append(BatchMark("query", 0, "5eed"), ["a"])
    False
    >>> table.rows
    ['a']
    """

    rows: list[RowT] = field(default_factory=list)
    newest: dict[str, BatchMark] = field(default_factory=dict)
    """Mark of the newest batch, by query."""

    def append(self, mark: BatchMark, rows: list[RowT]) -> bool:
        """Append a batch that the table does not have, and return whether it was appended.

        Raises
        ------
        CheckpointMismatchError
            If the table has another batch of that number, or a later one.
        """
        newest = self.newest.get(mark.query)
        if newest is not None and newest.batch >= mark.batch:
            mark.check("the simulated table", newest.batch, newest.identity)
            return False
        self.rows += rows
        self.newest[mark.query] = mark
        return True

    def copy(self) -> TransactionalTable[RowT]:
        """Return a table with the same rows and transactions."""
        return TransactionalTable(list(self.rows), dict(self.newest))

    def check_start(self, query: str, logged: int) -> None:
        """Check the table against a checkpoint whose newest batch is `logged`, as `spark.start.start_check` does.

        Raises
        ------
        CheckpointMismatchError
            If the table has a later batch.
        """
        newest = self.newest.get(query)
        if logged >= 0 and newest is not None and newest.batch > logged:
            BatchMark(query, logged, "").check("the simulated table", newest.batch, None)


@dataclass(slots=True)
class PlainSink(Generic[RowT]):
    """A sink that appends everything it is given: at least once."""

    rows: list[RowT] = field(default_factory=list)

    def append(self, rows: list[RowT]) -> None:
        """Append rows."""
        self.rows += rows
