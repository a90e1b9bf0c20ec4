"""The clock, the control directory and the task of metered functions, which tests set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from spark_throttle.control.charges import read_charges
from spark_throttle.files.storage import Directory
from spark_throttle.spark.metering.charging import RunningTask
from spark_throttle.spark.metering.metered import Metered, MeteredQuery

SECOND_NS: Final = 1_000_000_000


class World:
    """The clock, the control directory and the task of a test."""

    def __init__(self, control_path: str) -> None:
        self.now_ns = 0
        self.query = MeteredQuery(control_path)
        self.directory = Directory(control_path)
        self.task: RunningTask | None = RunningTask(batch=3, stage=8, partition=0, attempt=20)

    def spend(self, time_ns: int) -> None:
        self.now_ns += time_ns

    def metered(self, function: Callable[..., Any], namespace: str | int | None = "ns") -> Metered:
        return Metered(function, "cpu", namespace, self.query)

    def charged_ns(self, batch: int = 3) -> dict[str | None, int]:
        found = read_charges(self.directory, after_batch=batch - 1).get(batch)
        if found is None:
            return {}
        each = dict(zip(found.names.to_pylist(), found.time_ns.tolist(), strict=True))
        return {**each, None: found.unattributed_ns} if found.unattributed_ns else each
