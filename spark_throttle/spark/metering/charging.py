"""The charges and the refusals of the work for a batch, written to the control directory before the batch ends.

A process of Spark works for one task at a time, but may run several functions for it, or one function several times. It
adds up what they charge, and writes the sum after each: under one name, so that nothing is counted twice. Two processes
may work for the same task, one function after the other, and each has a file of its own. The driver does the same for
a batch.

A sink of ours is metered where the policy that decided the batch has a quota on time, and nowhere else. What it used is
divided among the namespaces by their admitted rows. Where Python writes, that is CPU time; where the JVM does, the
driver knows only how long it waited for the write, as if one core had worked on it.

A function that says "not now" in a task writes a record of the batch (`checkpoint.batch_records`) before the task
fails, for the driver itself learns only that a task failed. Who called the function for the batch reads the record when
the call has failed, and takes it away: so a failure of another cause is never taken for it.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from pyspark import TaskContext

from spark_throttle.checkpoint.batch_records import REFUSAL, record_name
from spark_throttle.control.charges import Part, replace_charges
from spark_throttle.control.epochs import read_policy
from spark_throttle.control.reports import report_of
from spark_throttle.control.run_fence import owner_of
from spark_throttle.core.quota import NEVER_MS, CompiledPolicy
from spark_throttle.core.time_charges import Lot, TimeCharges
from spark_throttle.core.usage import UsageReport, admitted_messages
from spark_throttle.errors import Backpressure, ConfigurationError
from spark_throttle.files.storage import Directory, read_note
from spark_throttle.record import Count, to_json

_BATCH_PROPERTY: Final = "streaming.sql.batchId"

_RUN_DIGITS: Final = 12
_MOST_LOTS: Final = 256
DRIVER: Final = "driver"
SINK: Final = "sink"
"""Works of a batch that no task names."""
_OF_DRIVER: Final[dict[tuple[str, str], tuple[str, int, TimeCharges]]] = {}
"""What a run has charged for a batch, by control directory and work: a function may call several metered ones."""

_LOCK: Final = threading.Lock()
"""They may be called in threads, and other queries run in others."""

_RUNNING: Final[dict[str, tuple[int, UsageReport | None]]] = {}
"""By control directory; a query runs one batch at a time."""


def batch_of_task() -> int:
    """Return the number of the batch to which this task belongs.

    Raises
    ------
    ConfigurationError
        If the task does not belong to a streaming query.
    """
    context = TaskContext.get()
    batch = context.getLocalProperty(_BATCH_PROPERTY) if context is not None else None
    if batch is None:
        raise ConfigurationError("a decided stream was read outside a streaming query; write it with writeStream")
    return int(batch)


@dataclass(frozen=True, slots=True)
class RunningTask:
    """An attempt at a task."""

    batch: int
    stage: int
    partition: int
    attempt: int
    """Another number for each attempt at each task of an application."""

    @classmethod
    def current(cls) -> RunningTask | None:
        """Return the task of this process; `None` outside of Spark's workers."""
        context = TaskContext.get()
        if context is None:
            return None
        return cls(batch_of_task(), context.stageId(), context.partitionId(), context.taskAttemptId())


@dataclass(slots=True)
class _Charged:
    """What this process has charged for a task."""

    task: tuple[str, RunningTask] | None = None
    charges: TimeCharges | None = None


_CHARGED: Final = _Charged()


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

    def charges(self) -> TimeCharges:
        """Return the time of all calls, divided by their rows."""
        return TimeCharges.sum_of([*self.divided, TimeCharges.divided(self.lots)])


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


@dataclass(frozen=True, slots=True)
class Refusal:
    """What a function said in a task."""

    problem: str
    scope: str | None
    retry_after_ms: Count | None


def note_refusal(directory: Directory, batch: int, refusal: Backpressure) -> None:
    """Write what a function said in a task of a batch; the last one that is written counts."""
    seconds = refusal.retry_after_seconds
    retry_after_ms = None if seconds is None else min(math.ceil(seconds * 1000), NEVER_MS)
    directory.write(_name(batch), to_json(Refusal(refusal.problem, refusal.scope, retry_after_ms)))


def take_refusal(directory: Directory, batch: int) -> Backpressure | None:
    """Return what a function said in a task of a batch, and take it away; `None` if none said anything."""
    found = read_note(directory, _name(batch), Refusal, "the refusal of a task")
    if found is None:
        return None
    directory.delete(_name(batch))
    seconds = None if found.retry_after_ms is None else found.retry_after_ms / 1000
    return Backpressure(seconds, found.scope, found.problem)


def _name(batch: int) -> str:
    return record_name(batch, REFUSAL, "task")


@contextmanager
def running_batch(directory: Directory, batch: int, report: UsageReport | None) -> Iterator[None]:
    """Let metered functions that are called meanwhile know the report of a batch.

    Examples
    --------
    >>> directory = Directory("/nowhere/throttle")
    >>> with running_batch(directory, 7, None):
    ...     report_of_running(directory, 7) is None
    True
    """
    _RUNNING[directory.location] = batch, report
    try:
        yield
    finally:
        _RUNNING.pop(directory.location, None)


def report_of_running(directory: Directory, batch: int) -> UsageReport | None:
    """Return the report of the batch that runs; that of a decided stream has been written already."""
    running, report = _RUNNING.get(directory.location, (-1, None))
    return report if running == batch else report_of(directory, batch)


def decided_policy(directory: Directory, report: UsageReport | None) -> CompiledPolicy | None:
    """Return the policy that decided a batch; `None` if nothing reported, or if the policy's file is gone.

    A file of this name never has another policy: the name is a digest of it.
    """
    if report is None:
        return None
    try:
        return _read(directory.location, report.revision)
    except FileNotFoundError:
        return None


@lru_cache(maxsize=2)
def _read(location: str, revision: str) -> CompiledPolicy:
    policy = read_policy(Directory(location), revision)
    if policy is None:
        raise FileNotFoundError(revision)  # so that a file that comes back is found
    return policy


def is_metered(directory: Directory, report: UsageReport) -> bool:
    """Return whether the policy that decided a batch has a quota on processing time."""
    policy = decided_policy(directory, report)
    return policy is not None and policy.has_time


def charge_sink(directory: Directory, batch: int, report: UsageReport, time_ns: int) -> None:
    """Charge what a sink used for a batch."""
    charge_driver(directory, batch, TimeCharges.common(time_ns, *admitted_messages([report])), SINK)


@contextmanager
def metered_write(directory: Directory, batch: int, report: UsageReport | None) -> Iterator[None]:
    """Charge the time for which the driver waits for a write, if the batch's policy has a quota on it."""
    began_ns = time.perf_counter_ns()
    yield
    if report is not None and is_metered(directory, report):
        charge_sink(directory, batch, report, time.perf_counter_ns() - began_ns)
