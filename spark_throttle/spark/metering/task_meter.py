"""What the functions of one task have charged, written to the control directory before the task ends.

A process of Spark works for one task at a time, but may run several functions for it, or one function several times. It
adds up what they charge, and writes the sum after each: under one name, so that nothing is counted twice. Two processes
may work for the same task, one function after the other, and each has a file of its own. The driver does the same for
a batch.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from spark_throttle.control.charges import Part, replace_charges
from spark_throttle.control.run_fence import owner_of
from spark_throttle.core.time_charges import Lot, TimeCharges
from spark_throttle.files.storage import Directory
from spark_throttle.spark.metering.running_task import RunningTask

_RUN_DIGITS: Final = 12
_MOST_LOTS: Final = 256
DRIVER: Final = "driver"
SINK: Final = "sink"
"""Works of a batch that no task names."""


@dataclass(slots=True)
class _Charged:
    """What this process has charged for a task."""

    task: tuple[str, RunningTask] | None = None
    charges: TimeCharges | None = None


_CHARGED: Final = _Charged()
_OF_DRIVER: Final[dict[tuple[str, str], tuple[str, int, TimeCharges]]] = {}
"""What a run has charged for a batch, by control directory and work: a function may call several metered ones."""

_LOCK: Final = threading.Lock()
"""They may be called in threads, and other queries run in others."""


@dataclass(slots=True)
class Tally:
    """The time of a function's calls, before it is charged."""

    lots: list[Lot] = field(default_factory=list)
    divided: list[TimeCharges] = field(default_factory=list)

    def add(self, lot: Lot) -> None:
        """Add a call."""
        self.lots.append(lot)
        if len(self.lots) >= _MOST_LOTS:
            self.divided = [self.charges()]
            self.lots = []

    def charges(self, said_ns: Counter[str] | None = None) -> TimeCharges:
        """Return the time of all calls, divided by their rows, and what the function said."""
        said = TimeCharges.of(dict(said_ns)) if said_ns else TimeCharges.sum_of([])
        return TimeCharges.sum_of([*self.divided, TimeCharges.divided(self.lots), said])


def charge_task(control_path: str, task: RunningTask, charges: TimeCharges) -> None:
    """Charge what a function used in a task of a batch."""
    before = _CHARGED.charges if _CHARGED.task == (control_path, task) else None
    every = charges if before is None else TimeCharges.sum_of([before, charges])
    _CHARGED.task, _CHARGED.charges = (control_path, task), every
    directory = Directory(control_path)
    part = Part(_run(directory), f"{task.stage}-{task.partition}", task.attempt, os.getpid())
    replace_charges(directory, task.batch, every, part)


def charge_driver(directory: Directory, batch: int, charges: TimeCharges, work: str) -> None:
    """Charge what work of the driver used for a batch, beside what a run has charged for that work before."""
    run, place = _run(directory), (directory.location, work)
    with _LOCK:
        before = _OF_DRIVER.get(place)
        parts = [] if before is None or before[:2] != (run, batch) else [before[2]]
        every = TimeCharges.sum_of([*parts, charges])
        _OF_DRIVER[place] = run, batch, every
        replace_charges(directory, batch, every, Part(run, work))


def _run(directory: Directory) -> str:
    return (owner_of(directory) or "")[:_RUN_DIGITS]
