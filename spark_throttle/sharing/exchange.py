"""An exchange is where jobs that share quotas leave their reports: named objects, each written whole by one job.

It is a directory on shared storage, through pyarrow's file systems, or a Delta table (`delta_exchange`).

An exchange need not be durable, fast or always within reach: a job that cannot reach it keeps its share until its lease
ends, then its floor. But it must be coherent: a visit that finds the job's own latest report must not find a report of
another job that was replaced longer ago than the margin of a lease (a tenth). Disks, HDFS, object stores and Delta
tables are coherent; a network file system is, if its attribute cache lasts for less than that margin.

Many objects are read several at a time: one read of an object store takes tens of milliseconds, and a job whose visits
take longer than a tenth of a lease can trust nothing that they found, so its share never grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, Protocol

from spark_throttle.files.storage import Directory

DELTA_SCHEME = "delta:"


class Exchange(Protocol):
    """Named objects; any method may raise, or take a long time."""

    @property
    def reads_at_once(self) -> int:
        """How many threads may call `read` at once; 1 if it is for one thread only."""

    def names(self) -> list[str]:
        """Return the names of all objects."""

    def read(self, name: str) -> bytes | None:
        """Return an object; `None` where there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write an object in place of any that has its name: a reader sees the old one or the new one."""

    def delete(self, name: str) -> None:
        """Remove an object; a missing object is no error."""


def open_exchange(path: str) -> Exchange:
    """Return the exchange at `path`: a Delta table after ``delta:``, else a directory.

    Examples
    --------
    >>> type(open_exchange("delta:/lake/exchange")).__name__, type(open_exchange("/lake/exchange")).__name__
    ('DeltaExchange', 'FileExchange')
    """
    if path.startswith(DELTA_SCHEME):
        from spark_throttle.sharing.delta_exchange import DeltaExchange  # it loads for a quarter of a CPU second

        return DeltaExchange(path.removeprefix(DELTA_SCHEME))
    return FileExchange(path)


_OBJECTS_A_THREAD: Final = 4
"""For fewer objects, a thread costs more than it saves."""


def read_all(exchange: Exchange, names: Sequence[str]) -> list[bytes | BaseException | None]:
    """Return the objects in the order of their names: `None` where there is none, and the error where one was raised.

    The threads are daemons: a read that never ends does not keep the process from ending.
    """
    found: list[bytes | BaseException | None] = [None] * len(names)
    places: SimpleQueue[int] = SimpleQueue()
    for place in range(len(names)):
        places.put(place)

    def read() -> None:
        while True:
            try:
                place = places.get_nowait()
            except Empty:
                return
            try:
                found[place] = exchange.read(names[place])
            except BaseException as error:  # noqa: BLE001 - the caller decides what each error means
                found[place] = error

    more = min(exchange.reads_at_once, len(names) // _OBJECTS_A_THREAD) - 1
    threads = [Thread(target=read, name="throttle-exchange-read", daemon=True) for _ in range(more)]
    for thread in threads:
        thread.start()
    read()
    for thread in threads:
        thread.join()
    return found


class FileExchange:
    """Objects as files of one directory.

    Parameters
    ----------
    location
        A path, or a URI that pyarrow knows (``file:``, ``s3:``, ``gs:``, ``abfs:``, ``hdfs:``).
    """

    reads_at_once = 16

    def __init__(self, location: str) -> None:
        self._location = location
        self._opened: Directory | None = None

    @property
    def _directory(self) -> Directory:
        # An object store may be out of reach when the job starts: it is opened by a visit, not by the job.
        if self._opened is None:
            self._opened = Directory(self._location)
        return self._opened

    def names(self) -> list[str]:
        """Return the names of all objects."""
        return self._directory.names("")

    def read(self, name: str) -> bytes | None:
        """Return an object; `None` where there is none, or a folder."""
        try:
            return self._directory.read(name)
        except IsADirectoryError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Replace an object: by a rename on a disk, by one put on an object store."""
        self._directory.write(name, content)

    def delete(self, name: str) -> None:
        """Remove an object; a missing object is no error."""
        self._directory.delete(name)
