"""A limiter inside a process, by PIP-322: buckets without a scheduler, and producers that wait in one fair queue.

It is useful alone, for whatever calls something that bears only so much: it loads neither Spark nor numpy nor pyarrow.
Threads and asyncio tasks are held by the same levels; nothing runs while nobody calls.

It may import `errors` and the standard library, and no other package of the throttle. Start with `token_bucket` for
the arithmetic, with `turn_queue` for who goes next; users import the names below from here.
"""

from __future__ import annotations

from spark_throttle.pace.clock import Clock, ManualClock, SystemClock
from spark_throttle.pace.limit import NEVER_NS, RESOLUTION_NS, Limit
from spark_throttle.pace.pacer import Level, Pacer
from spark_throttle.pace.producer import AsyncProducer, Producer
from spark_throttle.pace.token_bucket import AsyncTokenBucket

__all__ = [
    "NEVER_NS",
    "RESOLUTION_NS",
    "AsyncProducer",
    "AsyncTokenBucket",
    "Clock",
    "Level",
    "Limit",
    "ManualClock",
    "Pacer",
    "Producer",
    "SystemClock",
]
