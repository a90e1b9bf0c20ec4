"""An exchange of files: a directory on shared storage, through pyarrow's file systems."""

from __future__ import annotations

from spark_throttle.files.storage import Directory


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
