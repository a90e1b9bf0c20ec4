"""The resources of a running job: memory and CPU time by kind of process, and the size of its checkpoint."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

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
