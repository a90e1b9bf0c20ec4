"""Spark in, the core in the middle, Spark out.

The rooms, the upper ones first: `sinks` and `sources`, `columns` and `start`, `shard` and `delta`, `rows`. It may
import all but `admin`, `load` and `testing`. Begin with `throttle`, what users import, then `pipeline`, which puts a
query together.

Names are loaded when they are first asked for: every Python worker of Spark's imports this package for a single module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_throttle.doors import door

if TYPE_CHECKING:
    from spark_throttle.spark.throttle import Throttle
    from spark_throttle.spark.writer import ThrottledStreamWriter
    from spark_throttle.status.status import ScopeStatus, Status

__all__ = ["ScopeStatus", "Status", "Throttle", "ThrottledStreamWriter"]

__getattr__ = door(
    __name__,
    {
        "ScopeStatus": "spark_throttle.status.status",
        "Status": "spark_throttle.status.status",
        "Throttle": "spark_throttle.spark.throttle",
        "ThrottledStreamWriter": "spark_throttle.spark.writer",
    },
)
