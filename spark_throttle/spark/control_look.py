"""A query's control directory as its starter reads it: by itself, or through the server of Spark Connect.

A client of Spark Connect need not share a disk with its server, and what it finds at the same path on its own disk is
not the query's. So on Spark Connect the server is always asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from spark_throttle.spark.sources.look_source import ask_counts, ask_explanation, ask_status
from spark_throttle.spark.start.executor_sight import is_served
from spark_throttle.status.explain import explain_job
from spark_throttle.status.explanation import Explanation
from spark_throttle.status.status import Status, batch_counts, read_status


@dataclass(frozen=True, slots=True)
class ControlLook:
    """A look at a control directory."""

    control_path: str
    asked: SparkSession | None = None
    """The session whose server is asked; `None` if this process reads the directory itself."""

    @classmethod
    def of(cls, spark: SparkSession, control_path: str) -> ControlLook:
        """Return the look of a session."""
        return cls(control_path, spark if is_served(spark) else None)

    def status(self) -> Status:
        """Return the numbers of the last batch."""
        return read_status(self.control_path) if self.asked is None else ask_status(self.asked, self.control_path)

    def explanation(self, namespace: str) -> Explanation:
        """Return why a namespace is held as it is."""
        if self.asked is None:
            return explain_job(self.control_path, namespace)
        return ask_explanation(self.asked, self.control_path, namespace)

    def counts(self, batch: int) -> dict[str, int]:
        """Return what a batch moved in all."""
        if self.asked is None:
            return batch_counts(self.control_path, batch)
        return ask_counts(self.asked, self.control_path, batch)
