"""A paced sink: admitted rows leave evenly until the next batch, through a function that the user gives.

It may import every subpackage of `spark` except `sources`, and `pace`, whose buckets hold the calls. Start with
`paced_sink`, which plans a batch on the driver, and sends it on the executors. `calls` is pure: it decides which rows
one call takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_throttle.lazy_names import loaded_when_asked

if TYPE_CHECKING:
    from spark_throttle.spark.paced.calls import IdempotencyKey
    from spark_throttle.spark.paced.http_sender import HttpSender

__all__ = ["HttpSender", "IdempotencyKey"]

__getattr__ = loaded_when_asked(
    __name__,
    {
        "HttpSender": "spark_throttle.spark.paced.http_sender",
        "IdempotencyKey": "spark_throttle.spark.paced.calls",
    },
)
