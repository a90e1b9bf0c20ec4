"""The simulated job, and test suites of policy stores and sinks, for our tests and users' own.

It may import everything except jobs. Start with `simulation.job`, which runs a job without Spark. Names are loaded when
they are first accessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_throttle.lazy_names import loaded_when_asked

if TYPE_CHECKING:
    from spark_throttle.testing.simulation.disk import CRASH_POINTS
    from spark_throttle.testing.simulation.exchange import SimulatedExchange
    from spark_throttle.testing.simulation.job import SimulatedJob
    from spark_throttle.testing.sink_suite import SinkSuite
    from spark_throttle.testing.store_suite import StoreSuite

__all__ = ["CRASH_POINTS", "SimulatedExchange", "SimulatedJob", "SinkSuite", "StoreSuite"]

__getattr__ = loaded_when_asked(
    __name__,
    {
        "CRASH_POINTS": "spark_throttle.testing.simulation.disk",
        "SimulatedExchange": "spark_throttle.testing.simulation.exchange",
        "SimulatedJob": "spark_throttle.testing.simulation.job",
        "SinkSuite": "spark_throttle.testing.sink_suite",
        "StoreSuite": "spark_throttle.testing.store_suite",
    },
)
