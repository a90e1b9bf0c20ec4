"""The resources of a running job: memory and CPU time by kind of process, and the size of its checkpoint."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from pyarrow import fs

from spark_throttle.files.storage import file_system

JVM, WORKERS, DRIVER = "JVM", "Python workers", "Python driver"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Totals over all processes of one kind."""

    resident_bytes: int
    cpu_seconds: float


def sample_processes() -> dict[str, ProcessUse]:
    """Return the resources of this process and its descendants now, by kind of process."""
    resident: dict[str, int] = defaultdict(int)
    cpu: dict[str, float] = defaultdict(float)
    for kind, process in _family():
        try:
            with process.oneshot():
                times = process.cpu_times()
                # Pages that forked workers share with their parent count once: each process counts its own part.
                resident[kind] += process.memory_full_info().uss
                cpu[kind] += times.user + times.system
        except psutil.Error:  # it has just ended
            continue
    return {kind: ProcessUse(resident[kind], cpu[kind]) for kind in resident}


def _family() -> Iterator[tuple[str, psutil.Process]]:
    me = psutil.Process()
    yield DRIVER, me
    for child in me.children(recursive=True):
        try:
            yield (JVM if child.name() == "java" else WORKERS), child
        except psutil.Error:
            continue


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
