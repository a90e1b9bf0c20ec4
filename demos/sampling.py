"""What a running job takes: memory and CPU time by kind of process, and what its checkpoint holds on disk."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

JVM, WORKERS, DRIVER = "JVM", "Python workers", "Python driver"


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Of all processes of a kind together."""

    resident_bytes: int
    cpu_seconds: float


def sample_processes() -> dict[str, ProcessUse]:
    """Return what this process and all that it started take now, by kind."""
    resident: dict[str, int] = defaultdict(int)
    cpu: dict[str, float] = defaultdict(float)
    for kind, process in _family():
        try:
            with process.oneshot():
                times = process.cpu_times()
                # Pages that forked workers share with their parent count once: as much as each has of its own.
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


def folder_bytes(folder: Path) -> tuple[int, int]:
    """Return bytes and files of a folder that others write to meanwhile."""
    size_bytes = files = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                size_bytes += (Path(parent) / name).stat().st_size
            except FileNotFoundError:
                continue
            files += 1
    return size_bytes, files
