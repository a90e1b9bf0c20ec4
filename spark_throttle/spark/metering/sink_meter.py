"""The processing time of our own sinks, which is measured where a policy has a quota on it, and nowhere else.

What a sink used for a batch is divided among the namespaces by their admitted rows. Where Python writes, that is CPU
time; where the JVM does, the driver knows only how long it waited for the write, as if one core had worked on it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from spark_throttle.core.time_charges import TimeCharges
from spark_throttle.core.usage import UsageReport, admitted_messages
from spark_throttle.files.storage import Directory
from spark_throttle.spark.metering.decided_policy import decided_policy
from spark_throttle.spark.metering.task_meter import SINK, charge_driver


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
