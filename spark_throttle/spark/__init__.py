"""The Spark adapter: turns a stream into input for `core`, and the decisions into rows for a sink.

Its subpackages, from the top layer down: `paced`, `sinks` and `sources`, `move`, `references`, `columns` and `start`,
`delta`, `rows` and `metering`. It may import everything except `admin`, `load` and `testing`. Start with `throttle`,
the module that users import, then read `pipeline`, which assembles a query.

Names are loaded on first access, because every Python worker of Spark imports this package for a single module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_throttle.lazy_names import loaded_when_asked
from spark_throttle.spark.spark_version import check_installed

if TYPE_CHECKING:
    from spark_throttle.spark.drained_query import DrainedQuery, drain
    from spark_throttle.spark.sinks.transactional import TransactionalSink
    from spark_throttle.spark.throttle import Throttle
    from spark_throttle.spark.writer import ThrottledStreamWriter
    from spark_throttle.status.status import ScopeStatus, Status

check_installed()

__all__ = ["DrainedQuery", "ScopeStatus", "Status", "Throttle", "ThrottledStreamWriter", "TransactionalSink", "drain"]

__getattr__ = loaded_when_asked(
    __name__,
    {
        "DrainedQuery": "spark_throttle.spark.drained_query",
        "ScopeStatus": "spark_throttle.status.status",
        "Status": "spark_throttle.status.status",
        "Throttle": "spark_throttle.spark.throttle",
        "ThrottledStreamWriter": "spark_throttle.spark.writer",
        "TransactionalSink": "spark_throttle.spark.sinks.transactional",
        "drain": "spark_throttle.spark.drained_query",
    },
)
