"""The sinks of a simulated job: a table with transactions, and a sink that takes what it is given.

Both outlive the job's process and know nothing of it, as real ones.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Generic, TypeVar

RowT = TypeVar("RowT")


@dataclass(slots=True)
class TransactionalTable(Generic[RowT]):
    """Skips a batch that it has, by the writer's name and the batch's number, as Delta by `txnAppId` and `txnVersion`.

    Examples
    --------
    >>> table = TransactionalTable[str]()
    >>> table.append("query", 0, ["a"])
    True
    >>> table.append("query", 0, ["a"])
    False
    >>> table.rows
    ['a']
    """

    rows: list[RowT] = field(default_factory=list)
    newest: dict[str, int] = field(default_factory=dict)
    """Number of the newest batch of every writer."""

    def append(self, writer: str, batch: int, rows: list[RowT]) -> bool:
        """Append a batch, and return whether that was done; nothing is done for one that the table has."""
        if batch <= self.newest.get(writer, -1):
            return False
        self.rows += rows
        self.newest[writer] = batch
        return True

    def copy(self) -> TransactionalTable[RowT]:
        """Return a table with the same rows and transactions."""
        return TransactionalTable(copy.copy(self.rows), dict(self.newest))


@dataclass(slots=True)
class PlainSink(Generic[RowT]):
    """Appends whatever it is given: at least once."""

    rows: list[RowT] = field(default_factory=list)

    def append(self, rows: list[RowT]) -> None:
        """Append rows."""
        self.rows += rows
