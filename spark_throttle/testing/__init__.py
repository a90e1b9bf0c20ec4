"""The oracle, the simulated job, and what every policy store promises: for our tests and users' own.

It may import everything but jobs. Begin with `simulation.job` to play a job without Spark, or `oracle.reference` to
read the rules a row at a time. Names are loaded when they are first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_throttle.testing.simulation.exchange import SimulatedExchange
    from spark_throttle.testing.simulation.job import SimulatedJob
    from spark_throttle.testing.store_suite import StoreSuite

__all__ = ["SimulatedExchange", "SimulatedJob", "StoreSuite"]

_MODULES = {
    "SimulatedExchange": "spark_throttle.testing.simulation.exchange",
    "SimulatedJob": "spark_throttle.testing.simulation.job",
    "StoreSuite": "spark_throttle.testing.store_suite",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
