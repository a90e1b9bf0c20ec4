"""The directory of a control plane, on a disk or an object store, through pyarrow's file systems; and records in it.

Every file is written whole: on a disk under a temporary name, and then moved into place; on an object store by one put.
A reader sees all of a file or none of it. `record` says how records are stored.

The errors of the stores' libraries are of several lines: what failed, and below it, indented behind an arrow, one cause
after the other, the last of which says what is wrong. They have terminal colours, and a store may answer with a page:
`one_line` tells them in one line.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final, TypeVar

import pyarrow as pa
from pyarrow import fs

from spark_throttle.errors import RESTORE_CHECKPOINT, ConfigurationError
from spark_throttle.record import of_json, pack, unpack

_Read = TypeVar("_Read")

_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+:")
_SAME_STORE = re.compile(r"^s3[an]://")
"""Hadoop's names for S3."""

_MOST_READS = 4
"""How often an object is read that the store refuses, or that is replaced while it is read."""

_REFUSAL_UNREAD = "Failed to flush response stream"
"""What pyarrow says of an answer that is longer than what it asked for."""

_LONGEST_REPLACED_BYTES = 1 << 20
"""No longer file is ever replaced by other content: its name is its alone."""

_DELAYED = "allow_delayed_open"
"""Has pyarrow open a file on S3 with the first request for its content."""

_NAMED_ALIKE_EVERYWHERE = ("/dbfs/", "/Volumes/")
"""Databricks' mounts of its stores, whose files have no lasting inode numbers."""


class Directory:
    """A directory of files that are written whole.

    Parameters
    ----------
    location
        A path, or a URI that pyarrow knows (``file:``, ``s3:``, ``gs:``, ``abfs:``, ``hdfs:``).
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self._files, self._root = file_system(location)
        self._moves = isinstance(self._files, fs.LocalFileSystem)

    @property
    def is_on_disk(self) -> bool:
        """Whether a look at it costs next to nothing: no request to a store."""
        return self._moves

    def path(self, name: str) -> str:
        """Return the full path of a file."""
        return f"{self._root.rstrip('/')}/{name}"

    def shown(self, name: str) -> str:
        """Return the name of a file for messages: on a store with its scheme, and without the keys of a URI.

        Examples
        --------
        >>> Directory("/jobs/usage").shown("epochs/7")
        '/jobs/usage/epochs/7'
        """
        scheme = None if self.is_on_disk else _SCHEME.match(self.location)
        return self.path(name) if scheme is None else f"{scheme.group()}//{self.path(name).lstrip('/')}"

    def place(self) -> str:
        """Return a text that distinguishes this directory, which must exist, from a copy at another path or disk."""
        kind = self._files.type_name
        if not self._moves or self._root.startswith(_NAMED_ALIKE_EVERYWHERE):
            return f"{kind}:{self._root}"
        return f"{kind}:{self._root}#{os.stat(self._root).st_ino}"  # noqa: PTH116 - the path is taken as it is

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or `None` where there is none."""
        try:
            if self._moves:
                with open(self.path(name), "rb") as file:  # noqa: PTH123 - called for every job in every cycle
                    return file.read()
            return read_object(self._files, self.path(name))
        except FileNotFoundError:
            return None

    def read_part(self, name: str, first_byte: int, size_bytes: int) -> bytes | None:
        """Return a part of a file, shorter if the file ends before it; `None` where there is no file."""

        def read() -> bytes:
            with self._files.open_input_file(self.path(name)) as stream:
                found_bytes = min(size_bytes, stream.size() - first_byte)  # only a disk reads past the end
                content: bytes = stream.read_at(found_bytes, first_byte) if found_bytes > 0 else b""
            return content

        try:
            return _again_if_refused(read)
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole, over any that was there."""
        target = PurePosixPath(self.path(name))
        writer = f"{os.getpid()}.{threading.get_ident()}"  # the plane and its exchange's thread write the same status
        written = target.with_name(f".{target.name}.{writer}.tmp") if self._moves else target
        try:
            self._write_in_folder(written, content)
            if written != target:
                self._files.move(str(written), str(target))
        except OSError:
            if written != target:  # on a full disk, what each attempt left would take the room of the next
                Path(written).unlink(missing_ok=True)
            raise

    def written_ms(self, name: str) -> int | None:
        """Return when an object store wrote a file, by the store's clock; `None` on a disk, or without the file."""
        if self.is_on_disk:
            return None
        written_ns: int | None = self._files.get_file_info(self.path(name)).mtime_ns
        return None if written_ns is None else written_ns // 1_000_000

    def names_below(self, folder: str) -> list[str]:
        """Return the names of all files below a folder, from the folder on, sorted; none if there is no such folder."""
        below = self.path(folder)
        found = self._files.get_file_info(fs.FileSelector(below, allow_not_found=True, recursive=True))
        return sorted(info.path[len(below) + 1 :] for info in found if info.type == fs.FileType.File)

    def _write_in_folder(self, path: PurePosixPath, content: bytes) -> None:
        try:
            self._write(str(path), content)
        except FileNotFoundError:
            self._files.create_dir(str(path.parent), recursive=True)
            self._write(str(path), content)

    def _write(self, path: str, content: bytes) -> None:
        with self._files.open_output_stream(path) as stream:
            stream.write(content)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted; none where there is no such folder."""
        if self._moves:
            try:
                entries = os.listdir(self.path(folder))  # noqa: PTH208 - called every 10 ms: no object per entry
            except FileNotFoundError:
                return []
            return sorted(entry for entry in entries if not entry.startswith("."))
        found = self._files.get_file_info(fs.FileSelector(self.path(folder), allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def delete(self, name: str) -> None:
        """Delete a file; a missing file is no error."""
        try:
            self._files.delete_file(self.path(name))
        except FileNotFoundError:
            return


def read_object(files: fs.FileSystem, path: str) -> bytes:
    """Return the content of a file that may be on an object store.

    pyarrow asks for an object's size first, and then for so many bytes: of one that became longer in between, it
    returns the beginning. S3's tag of an object that was written by one put is a digest of the content. If it is
    another tag, as under a key of one's own, the size is asked for once more.

    Raises
    ------
    OSError
        If it cannot be read; `FileNotFoundError` if it is not there.
    """

    def read() -> tuple[bytes, bytes | None]:
        with files.open_input_stream(path, compression=None) as stream:
            tag = (stream.metadata() or {}).get("ETag") if files.type_name == "s3" else None
            return stream.read(), tag

    content = b""
    for _ in range(_MOST_READS):
        content, tag = _again_if_refused(read)
        if tag is None or len(content) > _LONGEST_REPLACED_BYTES:
            break
        if tag.strip(b'"').decode() == hashlib.md5(content, usedforsecurity=False).hexdigest():
            break
        if files.get_file_info(path).size == len(content):
            break
    return content


def _again_if_refused(read: Callable[[], _Read]) -> _Read:
    """Return what a read of an object returns; it is made again if the store refused it at length.

    A hack. pyarrow has the SDK write each answer into a buffer of the size that it asks for, and so a refusal too, such
    as 503 SlowDown or 404. Where the refusal is longer, as with most control files, the SDK fails instead of asking
    again (tried on pyarrow 26). A read begins with a request for the size, which the SDK repeats after pauses that
    grow, so none is made here.
    """
    for _ in range(_MOST_READS - 1):
        try:
            return read()
        except OSError as error:
            if _REFUSAL_UNREAD not in str(error):
                raise
    return read()


def file_system(location: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path in it.

    Raises
    ------
    ConfigurationError
        If pyarrow knows no such file system.

    Examples
    --------
    >>> file_system("file:///data/tables")[1]
    '/data/tables'
    """
    if not _SCHEME.match(location):
        return fs.LocalFileSystem(), str(Path(location).absolute())
    if location.startswith("dbfs:/"):  # Databricks mounts it on every driver, and volumes under their own name
        path = location.removeprefix("dbfs:").lstrip("/")
        return fs.LocalFileSystem(), f"/{path}" if path.startswith("Volumes/") else f"/dbfs/{path}"
    if location.startswith("file:"):
        return fs.LocalFileSystem(), "/" + location.removeprefix("file:").lstrip("/")
    try:
        files, root = _opened(_SAME_STORE.sub("s3://", location))
    except (pa.ArrowException, ImportError) as error:
        raise ConfigurationError(
            f"{location} is on a file system that cannot be reached without Spark ({error}): control files, and so the "
            f"checkpoint, must be on one that pyarrow knows (file:, s3:, gs:, abfs:, hdfs:)"
        ) from error
    return files, root


def _opened(uri: str) -> tuple[fs.FileSystem, str]:
    """Return what pyarrow opens, so that a small file on S3 is written by one request.

    By default pyarrow begins an upload in parts when a file is opened: three requests a file.
    """
    if uri.startswith("s3:") and _DELAYED not in uri:
        try:
            return fs.FileSystem.from_uri(f"{uri}{'&' if '?' in uri else '?'}{_DELAYED}=true")
        except pa.ArrowInvalid:
            pass  # pyarrow before 21 does not know the parameter
    return fs.FileSystem.from_uri(uri)


Record = TypeVar("Record")


def read_note(directory: Directory, name: str, kind: type[Record], what: str) -> Record | None:
    """Return the record in a note; `None` where there is no file. The errors are those of `record.of_json`."""
    content = directory.read(name)
    return None if content is None else of_json(kind, content, f"{what} {directory.shown(name)}")


def read_block(
    directory: Directory, name: str, kind: type[Record], what: str = "the file", *, remedy: str = RESTORE_CHECKPOINT
) -> Record | None:
    """Return the record that `write_block` wrote; `None` where there is no file. The errors are `record.unpack`'s."""
    content, what = directory.read(name), f"{what} {directory.shown(name)}"
    return None if content is None else unpack(kind, content, what, remedy=remedy, bound_to=name)


def write_block(directory: Directory, name: str, record: object) -> None:
    """Write a record to a file of its own, as a block that is bound to it."""
    directory.write(name, pack(record, bound_to=name))


_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_CAUSE: Final = "↳"
_LONGEST_CHARACTERS: Final = 1_000
METADATA_SERVICE: Final = "169.254.169.254"
"""The address that a cloud's libraries ask for credentials if they find none."""

_NO_CREDENTIALS: Final = (
    " (no credentials were found, so the machine was asked for its role: set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY, or what the store's provider wants, where this process runs)"
)


def one_line(error: BaseException) -> str:
    r"""Return the first line of an error's message, and the causes that follow it.

    Examples
    --------
    >>> one_line(OSError("Generic S3 error\n  ↳ GET http://lake/log\n   ↳ Connection refused (os error 111)\n"))
    'Generic S3 error: GET http://lake/log: Connection refused (os error 111)'
    >>> one_line(KeyError())
    'KeyError'
    """
    first, *others = _COLOUR.sub("", str(error)).strip().split("\n")
    causes = [line.strip().removeprefix(_CAUSE).strip() for line in others if line.strip().startswith(_CAUSE)]
    line = ": ".join(part.strip() for part in (first, *causes))
    if len(line) > _LONGEST_CHARACTERS:
        half = _LONGEST_CHARACTERS // 2
        line = f"{line[:half]} … {line[-half:]}"
    return (line or type(error).__name__) + (_NO_CREDENTIALS if METADATA_SERVICE in line else "")
