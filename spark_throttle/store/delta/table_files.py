"""The files of a Delta table as they stand, on a disk and on an object store alike.

delta-rs says of a table only what its log names, and of a file that it cannot read often not even which one it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow import fs

from spark_throttle.files.ownership import opened, replace_whole, sync_folder

LOG: Final = "_delta_log"
"""Folder of a table's log, in the table's folder."""

FORMS: Final = ("form=change", "form=snapshot")
"""Folders of the files that hold a store's rows."""

_BUFFER_BYTES: Final = 65_536


class TableFiles:
    """The files of a table, by their paths in its folder; every call may raise `OSError`.

    Parameters
    ----------
    location
        Path or URI of the table.
    folder
        The table's folder, if it is on a disk.
    options
        Credentials and settings of an object store, as delta-rs takes them.
    """

    def __init__(self, location: str, folder: Path | None, options: Mapping[str, str] | None) -> None:
        self._location = location
        self._folder = folder
        self._options = dict(options or {})
        self._opened: fs.FileSystem | None = None

    @property
    def is_on_disk(self) -> bool:
        """Whether a look at the files costs no requests."""
        return self._folder is not None

    def shown(self, path: str) -> str:
        """Return the name of a file in messages."""
        return f"{self._location.rstrip('/') if self._folder is None else self._folder}/{path}"

    def sizes_bytes(self, folder: str) -> dict[str, int]:
        """Return the files in a folder of the table with their sizes, by path; none where there is no such folder."""
        try:
            with _as_os_error():
                found = self._files().get_file_info(fs.FileSelector(folder, allow_not_found=True))
        except FileNotFoundError:
            return {}
        return {info.path: info.size for info in found if info.type == fs.FileType.File}

    def row_files(self) -> dict[str, int]:
        """Return the files that hold or held rows with their sizes in bytes, by path."""
        return {path: size for form in FORMS for path, size in self.sizes_bytes(form).items()}

    def read(self, path: str) -> bytes | None:
        """Return the content of a file, or `None` where there is none."""
        try:
            with _as_os_error(), self._files().open_input_stream(path) as stream:
                content: bytes = stream.read()
        except FileNotFoundError:
            return None
        return content

    def write(self, path: str, content: bytes) -> None:
        """Write a file whole, over any that was there."""
        if self._folder is not None:
            target = self._folder / path
            replace_whole(target, content, mode=0o666, like=target.parent, is_owner_needed=False)
            return
        # Without a buffer, the handler of delta-rs is given what it does not take.
        with _as_os_error(), self._files().open_output_stream(path, buffer_size=_BUFFER_BYTES) as stream:
            stream.write(content)

    def keep(self, paths: Iterable[str]) -> None:
        """Have the disk keep files of a table on a disk, and their names."""
        assert self._folder is not None  # noqa: S101 - the table is on a disk
        folders = {self._folder}
        for path in paths:
            file = self._folder / path
            folders.add(file.parent)
            descriptor = opened(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for folder in sorted(folders):
            sync_folder(folder)

    def _files(self) -> fs.FileSystem:
        if self._opened is None:
            self._opened = (
                fs.PyFileSystem(DeltaStorageHandler(self._location, self._options))
                if self._folder is None
                else fs.SubTreeFileSystem(str(self._folder), fs.LocalFileSystem())
            )
        return self._opened


@contextmanager
def _as_os_error() -> Iterator[None]:
    try:
        yield
    except TableNotFoundError as error:
        raise FileNotFoundError(str(error)) from error
    except (DeltaError, pa.ArrowException) as error:
        raise OSError(str(error)) from error
