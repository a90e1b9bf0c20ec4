"""Whether a file is still the one that an extent lists: by its length, and by when it was written.

Both readings ask before they read a file. The log of a Delta table says that its files never change, so there only the
length is compared.
"""

from __future__ import annotations

from pyarrow import fs

from spark_throttle.errors import SourceChangedError
from spark_throttle.spark.references.extents import SourceFile

_RESTORE = (
    "restore it with its time of writing (as cp -p does), then start the query again: nothing of this batch was written"
)


def written_ms(info: fs.FileInfo) -> int:
    """Return when a file was last written, in whole milliseconds; 0 if its file system does not say."""
    return int((info.mtime_ns or 0) // 1_000_000)


def check_file(system: fs.FileSystem, location: str, file: SourceFile) -> None:
    """Refuse to go on if a file is not the one that its extent lists.

    Raises
    ------
    SourceChangedError
        If it is gone, has another length, or was written again.
    """
    info = system.get_file_info(location)
    problem = None
    if info.type != fs.FileType.File:
        problem = "it is gone"
    elif info.size != file.size_bytes:
        problem = f"it has {info.size} bytes and had {file.size_bytes}"
    elif file.modified_ms and written_ms(info) != file.modified_ms:
        problem = f"it was written again (at {written_ms(info)} ms, before at {file.modified_ms} ms)"
    if problem is not None:
        raise SourceChangedError(f"the file {location}", problem, _RESTORE)
