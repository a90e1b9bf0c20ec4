"""Where a demonstration's job keeps its tables and its checkpoint: on the machine's own disk, or on an object store.

On a store, the files are copied to the disk when the run is over. So it is recounted from the same bytes either way.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path

from pyarrow import fs

from spark_throttle.files.storage import file_system


def ask_for_place(parser: ArgumentParser) -> None:
    """Let a command name the place."""
    parser.add_argument(
        "--place",
        help="where the job keeps tables and checkpoint, empty at the start: a URI as s3a://lake/demo; by default OUT",
    )


def bring(place: str | None, out: Path) -> None:
    """Copy all files of a place on a store to a directory; a run that kept them there needs no copy."""
    if place is not None:
        files, root = file_system(place)
        fs.copy_files(root, str(out), source_filesystem=files, destination_filesystem=fs.LocalFileSystem())


def folder_bytes(folder: str) -> tuple[int, int]:
    """Return the bytes and the number of files of a folder, to which others may be writing."""
    files, root = file_system(folder)
    sizes = list(_sizes_on_disk(root) if isinstance(files, fs.LocalFileSystem) else _sizes_on_store(files, root))
    return sum(sizes), len(sizes)


def _sizes_on_disk(root: str) -> Iterator[int]:
    for parent, _, names in os.walk(root):
        for name in names:
            try:
                yield (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue


def _sizes_on_store(files: fs.FileSystem, root: str) -> Iterator[int]:
    for info in files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True)):
        if info.type == fs.FileType.File:
            yield info.size
