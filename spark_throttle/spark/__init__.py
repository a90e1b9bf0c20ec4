"""Spark in, the core in the middle, Spark out.

The rooms, the upper ones first: `sinks` and `sources`, `columns` and `start`, `shard` and `delta`, `rows`. It may
import all but `admin`, `load` and `testing`. Begin with `throttle`, what users import, then `pipeline`, which puts a
query together.

Names are loaded when they are first asked for: every Python worker of Spark's imports this package for a single module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_throttle.spark.throttle import Throttle
    from spark_throttle.spark.writer import ThrottledStreamWriter
    from spark_throttle.status.status import ScopeStatus, Status

__all__ = ["ScopeStatus", "Status", "Throttle", "ThrottledStreamWriter"]

_MODULES = {
    "ScopeStatus": "spark_throttle.status.status",
    "Status": "spark_throttle.status.status",
    "Throttle": "spark_throttle.spark.throttle",
    "ThrottledStreamWriter": "spark_throttle.spark.writer",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
