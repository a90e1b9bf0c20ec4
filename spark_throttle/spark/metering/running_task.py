"""The task of Spark in which this process runs: of which batch it is, and what tells it from others of the batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark import TaskContext

from spark_throttle.errors import ConfigurationError

_BATCH_PROPERTY: Final = "streaming.sql.batchId"


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
