"""Whether a file is still the one that an extent lists: by its length, and by when it was written.

Both readings ask before they read a file, and the second asks again when all sinks have taken what it read. The log of
a Delta table says that its files never change, so there only the length is compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyarrow import fs

from spark_throttle.errors import SourceChangedError
from spark_throttle.spark.references.extents import SourceFile

_RESTORE = (
    "restore it with its time of writing (as cp -p does), then start the query again: nothing of this batch was written"
)
_PUT_BACK = (
    "the sink may have been given other rows than were decided: restore the file with its time of writing (as cp -p "
    "does), put the sink back to before this batch, then start the query again"
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
    problem = _problem(system.get_file_info(location), file)
    if problem is not None:
        raise SourceChangedError(f"the file {location}", problem, _RESTORE)


def check_read(system: fs.FileSystem, locations: Sequence[str], files: Sequence[SourceFile]) -> None:
    """Refuse to go on if a file became another one while it was read; one that is gone was read before.

    Raises
    ------
    SourceChangedError
        If a file has another length, or was written again.
    """
    for info, file in zip(system.get_file_info(list(locations)), files, strict=True):
        problem = None if info.type == fs.FileType.NotFound else _problem(info, file)
        if problem is not None:
            raise SourceChangedError(f"the file {info.path}", f"while a batch was written, {problem}", _PUT_BACK)


def _problem(info: fs.FileInfo, file: SourceFile) -> str | None:
    """Return how a file differs from what its extent says of it; `None` if it does not."""
    if info.type != fs.FileType.File:
        return "it is gone"
    if info.size != file.size_bytes:
        return f"it has {info.size} bytes and had {file.size_bytes}"
    if file.modified_ms and written_ms(info) != file.modified_ms:
        return f"it was written again (at {written_ms(info)} ms, before at {file.modified_ms} ms)"
    return None
