"""`Throttle.apply` works in a declarative pipeline (`pyspark.pipelines`), within a flow's function and outside.

A pipeline is code that Spark runs to learn of flows, which Spark itself analyses, starts and refreshes. So:

- Spark refuses to analyse anything in the thread that runs a flow's function. The throttle must know the columns of the
  stream, and asks for them in a thread of its own. A stream that only another flow of the same run will make cannot be
  known in this way, and Spark says so.
- A full refresh empties a flow's table and begins a new checkpoint. What the control directory has is of the former
  one, so it is deleted (`ControlPlane.next_epoch`), where any other query that lost its checkpoint is refused.
- A data source's worker sends what a profiler measured, also if none did (`pyspark.sql.worker.utils`, Spark 4.2). The
  pipeline's client knows no such answer, and ended a run that was complete with an error. So nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")


def is_in_pipeline() -> bool:
    """Return whether this thread runs the definitions of a pipeline."""
    from pyspark.errors import PySparkRuntimeError

    try:
        from pyspark.pipelines.graph_element_registry import get_active_graph_element_registry
    except ImportError:  # Spark Connect's packages are missing, without which there is no pipeline
        return False
    try:
        get_active_graph_element_registry()
    except PySparkRuntimeError:
        return False
    return True


def aside(call: Callable[[], _Result]) -> _Result:
    """Return what a call returns that analyses a stream, made in a thread of which Spark knows no pipeline."""
    with ThreadPoolExecutor(1, "spark-throttle-flow") as thread:
        return thread.submit(call).result()


def send_no_empty_profile() -> None:
    """Let this worker of a data source send no profile, unless one was taken; called in the worker, before it ends."""
    from pyspark.accumulators import _accumulatorRegistry

    for number, profile in list(_accumulatorRegistry.items()):
        if not profile._value:  # noqa: SLF001 - `value` is the driver's
            del _accumulatorRegistry[number]
