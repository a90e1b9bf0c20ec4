"""Where jobs that share quotas leave their reports: named objects, each written by one job and replaced whole.

It need not be durable, nor fast, nor be there at all times: a job that cannot reach it keeps its share until its lease
ends, then its floor. What it must be is coherent: a visit that finds the visitor's own last report must find of the
others none that was replaced longer ago than the margin of a lease (a tenth). Disks, HDFS, object stores and Delta
tables are; a network file system is where its attribute cache is shorter.
"""

from __future__ import annotations

from typing import Protocol

from spark_throttle.sharing.exchanges.delta import DeltaExchange
from spark_throttle.sharing.exchanges.files import FileExchange

DELTA_SCHEME = "delta:"


class Exchange(Protocol):
    """Named objects; any method may raise, or take long."""

    def names(self) -> list[str]:
        """Return the names of all objects."""

    def read(self, name: str) -> bytes | None:
        """Return an object; `None` where there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Put an object in the place of what has its name: a reader sees the old or the new."""

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error."""


def open_exchange(path: str) -> Exchange:
    """Return the exchange at `path`: a Delta table after ``delta:``, else a directory.

    Examples
    --------
    >>> type(open_exchange("delta:/lake/exchange")).__name__, type(open_exchange("/lake/exchange")).__name__
    ('DeltaExchange', 'FileExchange')
    """
    return DeltaExchange(path.removeprefix(DELTA_SCHEME)) if path.startswith(DELTA_SCHEME) else FileExchange(path)
