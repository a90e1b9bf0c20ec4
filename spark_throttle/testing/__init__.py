"""The oracle, the simulated job, and what every policy store promises: for our tests and users' own.

It may import everything but jobs. Begin with `simulation.job` to play a job without Spark, or `oracle.reference` to
read the rules a row at a time. Names are loaded when they are first asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_throttle.doors import door

if TYPE_CHECKING:
    from spark_throttle.testing.simulation.exchange import SimulatedExchange
    from spark_throttle.testing.simulation.job import SimulatedJob
    from spark_throttle.testing.store_suite import StoreSuite

__all__ = ["SimulatedExchange", "SimulatedJob", "StoreSuite"]

__getattr__ = door(
    __name__,
    {
        "SimulatedExchange": "spark_throttle.testing.simulation.exchange",
        "SimulatedJob": "spark_throttle.testing.simulation.job",
        "StoreSuite": "spark_throttle.testing.store_suite",
    },
)
