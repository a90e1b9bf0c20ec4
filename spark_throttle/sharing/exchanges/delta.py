"""An exchange in a Delta table, for those who have no other shared storage: each object is a row and a partition.

Jobs replace different partitions, so their commits do not conflict in substance; where two commit at once, one is told
to try again. Nobody needs the table's history: old files and log entries are removed now and then.
"""

from __future__ import annotations

import logging
from datetime import timedelta

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, TableNotFoundError

logger = logging.getLogger(__name__)

_SCHEMA = pa.schema([("name", pa.string()), ("content", pa.binary())])
_ATTEMPTS = 20
"""The number of attempts at a commit; each attempt that loses a race loses it to a commit that won."""

_COMMITS_A_CLEANING = 200
_KEPT = timedelta(hours=1)


class DeltaExchange:
    """Objects as rows of a Delta table.

    Parameters
    ----------
    location
        The table's path or URI; it is created by the first write.
    """

    reads_at_once = 1

    def __init__(self, location: str) -> None:
        self._location = location
        self._commits = 0

    def _files(self) -> dict[str, str]:
        """Return the data file of every object."""
        try:
            actions = pa.table(DeltaTable(self._location).get_add_actions(flatten=True))
        except TableNotFoundError:
            return {}
        return dict(zip(actions["partition.name"].to_pylist(), actions["path"].to_pylist(), strict=True))

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return sorted(self._files())

    def read(self, name: str) -> bytes | None:
        """Return an object; `None` where there is none."""
        try:
            table = DeltaTable(self._location)
        except TableNotFoundError:
            return None
        rows = table.to_pyarrow_table(filters=[("name", "=", name)], columns=["content"])
        return bytes(rows["content"][0].as_buffer()) if len(rows) else None

    def write(self, name: str, content: bytes) -> None:
        """Replace an object's row."""
        row = pa.table({"name": [name], "content": [content]}, schema=_SCHEMA)
        for attempt in range(_ATTEMPTS):
            try:
                write_deltalake(
                    self._location, row, mode="overwrite", partition_by=["name"],
                    predicate=None if not DeltaTable.is_deltatable(self._location) else f"name = '{name}'",
                )  # fmt: skip
                break
            except CommitFailedError:
                if attempt == _ATTEMPTS - 1:
                    raise
        self._commits += 1
        if self._commits % _COMMITS_A_CLEANING == 0:
            self._clean()

    def delete(self, name: str) -> None:
        """Remove an object's row; a missing object is no error."""
        if name in self._files():
            DeltaTable(self._location).delete(f"name = '{name}'")

    def _clean(self) -> None:
        table = DeltaTable(self._location)
        table.create_checkpoint()
        table.cleanup_metadata()
        table.vacuum(retention_hours=1, enforce_retention_duration=False, dry_run=False)
