"""Spark in, the core in the middle, Spark out."""

from spark_throttle.control.status import ScopeStatus, Status
from spark_throttle.spark.throttle import Throttle
from spark_throttle.spark.writer import ThrottledStreamWriter

__all__ = ["ScopeStatus", "Status", "Throttle", "ThrottledStreamWriter"]
